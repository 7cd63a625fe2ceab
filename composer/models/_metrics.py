"""The metrics of models by name, in whatever form they are given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from composer.dist.ranks import check_environment

if TYPE_CHECKING:
    from torchmetrics import Metric, MetricCollection

__all__ = ["WithMetrics", "made_with_values", "metrics_by_name"]


class WithMetrics:
    """Keeps the metrics of a model out of its modules: what it saves, what surgery walks over, what is scripted.

    ``train_metrics`` and ``val_metrics`` can be set at any time, in the forms of :func:`metrics_by_name`, and read back
    as they were given.

    >>> class Model(WithMetrics, torch.nn.Module):
    ...     pass
    >>> model = Model()
    >>> model.val_metrics = {}
    >>> model.val_metrics, list(model.children())
    ({}, [])
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, without making a metric one of the modules."""
        if name in ("train_metrics", "val_metrics"):
            metrics_by_name(name, value)
            self.__dict__[name] = value
        else:
            super().__setattr__(name, value)


def made_with_values() -> torch.device:
    """Return the context in which a model makes its metrics, wherever the model itself is made.

    A model may be made under ``torch.device("meta")``, to get its weights when it is divided. What metrics count has
    values from the start; they are moved to where they are updated.

    >>> with torch.device("meta"), made_with_values():
    ...     torch.zeros(1).device
    device(type='cpu')
    """
    return torch.device("cpu")


def metrics_by_name(
    argument: str,
    metrics: Metric | MetricCollection | Mapping[str, Metric] | Sequence[Metric] | None,
) -> dict[str, Metric]:
    """Return one metric or a list under the names of classes, or those of a collection or dict under their names there.

    Args:
        argument: What the metrics were given as, for messages.
        metrics: The metrics; None for none.

    Raises:
        TypeError: It is none of the forms, or something among them is no metric.
        ValueError: Two of a list are of one class.

    >>> metrics_by_name("metrics", {})
    {}
    """
    if metrics is None or (isinstance(metrics, (Mapping, list, tuple)) and not metrics):
        return {}  # without the import of torchmetrics, which takes a second
    check_environment()  # which the import reads
    from torchmetrics import Metric, MetricCollection

    if isinstance(metrics, Metric):
        return {type(metrics).__name__: metrics}
    if isinstance(metrics, (list, tuple)):
        metrics = _by_class(argument, metrics)
    if not isinstance(metrics, (MetricCollection, Mapping)):
        raise TypeError(
            f"{argument} must be a Metric, a list of metrics, a MetricCollection or a dict of metrics by name, but got "
            f"a {type(metrics).__name__}."
        )
    named = dict(metrics.items())
    for name, metric in named.items():
        if not isinstance(metric, Metric):
            raise TypeError(f"{argument}[{name!r}] must be a torchmetrics Metric, but got a {type(metric).__name__}.")
    return named


def _by_class(argument: str, metrics: Sequence[Metric]) -> dict[str, Metric]:
    counts = Counter(type(metric).__name__ for metric in metrics)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise ValueError(
            f"{argument} has several metrics of the class {twice[0]}, whose names are those of their classes. "
            f"Pass a dict of metrics by name."
        )
    return {type(metric).__name__: metric for metric in metrics}
