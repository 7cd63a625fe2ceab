"""Train any ``nn.Module`` that maps inputs to logits as a classifier, with loss and metrics."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, fx, nn

from composer._numbers import whole_number
from composer.core.model import ComposerModel
from composer.core.types import Batch
from composer.loss.loss import soft_cross_entropy
from composer.models._metrics import MetricAttributes, metrics_by_name, metrics_on_cpu
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from torchmetrics import Metric, MetricCollection

__all__ = ["ComposerClassifier"]


class ComposerClassifier(MetricAttributes, ComposerModel):
    """Train a module that maps inputs to logits on batches ``(x, y)``.

    ``torch.jit.script``, ``torch.fx.symbolic_trace`` and ``torch.export.export`` work if they work for the module.

    The default metrics are the accuracy (``MulticlassAccuracy``, micro average), and in evaluation also the cross
    entropy (``CrossEntropy``). They do not synchronize with the device.

    Args:
        module: Maps x, (B, ...), to logits, (B, C, ...).
        num_classes: C. Only needed for the default metrics; ``module.num_classes`` takes precedence if it exists.
        train_metrics: Training metrics: one, a list (named by class), a collection, or a dict by name; ``{}`` for none.
        val_metrics: Evaluation metrics, in the same formats.
        loss_fn: Maps the logits and y to the loss.

    Attributes:
        module: The module.
        num_classes: C, or ``None`` if not known.
        train_metrics: Training metrics, as passed; can be set.
        val_metrics: Evaluation metrics, as passed; can be set.

    Raises:
        ValueError: A default metric is needed and the number of classes is not known.
        TypeError: ``train_metrics`` or ``val_metrics`` has an unsupported format.

    >>> import torch
    >>> model = ComposerClassifier(torch.nn.Linear(4, 3), num_classes=3)
    >>> batch = (torch.ones(2, 4), torch.tensor([0, 2]))
    >>> outputs = model(batch)
    >>> outputs.shape, model.loss(outputs, batch).shape
    (torch.Size([2, 3]), torch.Size([]))
    >>> sorted(model.get_metrics(is_train=False))
    ['CrossEntropy', 'MulticlassAccuracy']
    """

    def __init__(
        self,
        module: nn.Module,
        num_classes: int | None = None,
        train_metrics: Metric | MetricCollection | Mapping[str, Metric] | Sequence[Metric] | None = None,
        val_metrics: Metric | MetricCollection | Mapping[str, Metric] | Sequence[Metric] | None = None,
        loss_fn: Callable[..., Tensor] = soft_cross_entropy,
    ) -> None:
        super().__init__()
        self.module = module
        self.num_classes = _resolve_num_classes(module, num_classes)
        self._loss_fn = loss_fn
        # Casts, and no annotations, which TorchScript refuses here.
        metrics = _default_metrics("train_metrics", self.num_classes) if train_metrics is None else train_metrics
        self.train_metrics = cast("Any", metrics)
        metrics = _default_metrics("val_metrics", self.num_classes) if val_metrics is None else val_metrics
        self.val_metrics = cast("Any", metrics)

    def forward(self, batch: tuple[Tensor, Any]) -> Tensor:
        """Return the logits of a batch ``(x, y)``, (B, C, ...).

        Args:
            batch: Inputs and targets; the targets are not used.

        Raises:
            TypeError: The batch is not a pair.
        """
        # TorchScript compiles this method with the types of its signature, and skips the check.
        if not torch.jit.is_scripting():  # pyright: ignore[reportPrivateImportUsage]
            _check_pair(batch)
        return self.module(batch[0])

    def loss(self, outputs: Tensor, batch: Batch, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss of the logits against the targets of the batch.

        Args:
            outputs: Logits, (B, C, ...).
            batch: Inputs and targets.
            *args: Passed to ``loss_fn``.
            **kwargs: Passed to ``loss_fn``.

        Raises:
            TypeError: The batch is not a pair.
        """
        _check_pair(batch)
        return self._loss_fn(outputs, batch[1], *args, **kwargs)

    def update_metric(self, batch: Batch, outputs: Tensor, metric: Metric) -> None:
        """Add the logits and targets of a batch to a metric.

        Args:
            batch: Inputs and targets.
            outputs: Logits, (B, C, ...).
            metric: The metric, changed in place.

        Raises:
            TypeError: The batch is not a pair.
        """
        _check_pair(batch)
        metric.update(outputs, batch[1])

    def get_metrics(self, is_train: bool = False) -> dict[str, Metric]:
        """Return the metrics by name, not copied; the trainer makes copies.

        Args:
            is_train: Whether to return the training metrics instead of the evaluation metrics.
        """
        name = "train_metrics" if is_train else "val_metrics"
        return metrics_by_name(name, getattr(self, name))


def _check_pair(batch: Batch) -> None:
    """Raise if a batch is not a pair. A dict or tensor of length two would unpack as well, to wrong values."""
    if (isinstance(batch, (tuple, list)) and len(batch) == 2) or isinstance(batch, fx.Proxy):
        return
    found = f"{type(batch).__name__} of length {len(batch)}" if hasattr(batch, "__len__") else type(batch).__name__
    raise TypeError(
        f"ComposerClassifier requires batches (x, y), but got a {found}. "
        "Write a subclass of ComposerModel for other batch formats."
    )


def _resolve_num_classes(module: nn.Module, num_classes: int | None) -> int | None:
    """Return the module's attribute ``num_classes`` if it is valid, else the argument."""
    num_classes = None if num_classes is None else whole_number("num_classes", num_classes, minimum=1)
    attribute = getattr(module, "num_classes", None)
    if not isinstance(attribute, int) or attribute < 1:
        return num_classes
    if num_classes is not None and num_classes != attribute:
        warnings.warn(
            f"num_classes={num_classes} differs from module.num_classes={attribute}, which is used.",
            ComposerWarning,
            stacklevel=3,
        )
    return attribute


def _default_metrics(argument: str, num_classes: int | None) -> dict[str, Metric]:
    """Return the default metrics of a classifier."""
    if num_classes is None:
        raise ValueError(
            f"num_classes is required for the default {argument}: pass num_classes, or both train_metrics and "
            "val_metrics ({} for none)."
        )
    from composer.metrics.classification import CrossEntropy, MicroAccuracy

    with metrics_on_cpu():
        accuracy: dict[str, Metric] = {"MulticlassAccuracy": MicroAccuracy(num_classes)}
        return accuracy if argument == "train_metrics" else {"CrossEntropy": CrossEntropy(), **accuracy}
