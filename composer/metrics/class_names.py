"""Names of the classes of a metric that computes a value for each class, or a confusion matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from composer.core.array_axes import ArrayAxes

if TYPE_CHECKING:
    from torchmetrics import Metric

__all__ = ["array_axes", "class_names"]

_MAX_WRAPPERS = 10


def array_axes(metric: Metric, data: Any = None) -> ArrayAxes:
    """Return what the rows and columns of a metric's value stand for.

    The names of the classes are those of the metric (an attribute ``labels`` or ``class_names``, a list of strings), or
    those of the data, see :func:`class_names`.

    Args:
        metric: The metric.
        data: The data set, loader or spec whose targets it compares.

    >>> from torchmetrics.classification import BinaryConfusionMatrix
    >>> metric = BinaryConfusionMatrix()
    >>> metric.labels = ["ham", "spam"]
    >>> array_axes(metric)
    ArrayAxes(classes=('ham', 'spam'), rows='target', columns='predicted')
    """
    own = _names(getattr(metric, "labels", None)) or _names(getattr(metric, "class_names", None))
    is_confusion = any("ConfusionMatrix" in one.__name__ for one in type(metric).__mro__)
    # torchmetrics counts targets in the rows.
    titles = ("target", "predicted") if is_confusion else ("", "")
    return ArrayAxes(own or class_names(data), *titles)


def class_names(data: Any) -> tuple[str, ...]:
    """Return the names of the classes of a data set, or an empty tuple if it has none.

    They are its attribute ``classes`` (torchvision) or the names of its feature ``label`` or ``labels`` (Hugging Face).

    Args:
        data: The data set, or a data loader, data spec or subset of it.

    >>> from torch.utils.data import Subset, TensorDataset
    >>> data = TensorDataset(torch.zeros(2))
    >>> data.classes = ["cat", "dog"]
    >>> class_names(Subset(data, [0]))
    ('cat', 'dog')
    """
    for _ in range(_MAX_WRAPPERS):
        found = _names(getattr(data, "classes", None)) or _feature_names(getattr(data, "features", None))
        if found:
            return found
        # Subsets and loaders have the data set under the first name, data specs the loader under the second.
        data = next(
            (inner for key in ("dataset", "dataloader") if (inner := getattr(data, key, None)) is not None), None
        )
    return ()


def _names(value: Any) -> tuple[str, ...]:
    """Return a sequence of strings as a tuple; empty for anything else."""
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes)):
        return ()
    names = cast("Sequence[Any]", value)
    return tuple(names) if all(isinstance(name, str) for name in names) else ()


def _feature_names(features: Any) -> tuple[str, ...]:
    """Return the class names of the label among the features of a Hugging Face data set."""
    if not isinstance(features, Mapping):
        return ()
    known = cast("Mapping[str, Any]", features)
    return next((names for key in ("label", "labels") if (names := _names(getattr(known.get(key), "names", None)))), ())
