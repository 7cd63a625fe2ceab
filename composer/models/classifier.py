"""A classifier from any module that maps inputs to logits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, fx, nn

from composer.core.model import ComposerModel
from composer.core.types import Batch
from composer.loss.loss import soft_cross_entropy
from composer.models._metrics import WithMetrics, made_with_values, metrics_by_name
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from torchmetrics import Metric, MetricCollection

__all__ = ["ComposerClassifier"]


class ComposerClassifier(WithMetrics, ComposerModel):
    """Trains a module that maps inputs to logits, on batches ``(x, y)``.

    ``torch.jit.script``, ``torch.fx.symbolic_trace`` and ``torch.export.export`` take it where they take the module.

    The metrics, unless given, are the accuracy (``MulticlassAccuracy``, micro average), and in evaluation also the
    cross entropy (``CrossEntropy``). None of them waits for the device.

    Args:
        module: Maps x, (B, ...), to logits, (B, C, ...).
        num_classes: C. Needed for the default metrics only; ``module.num_classes``, if it has one, goes before it.
        train_metrics: Metrics of the training steps: one, a list, named by their classes, a collection, or a dict by
            name; ``{}`` for none.
        val_metrics: Metrics of evaluation, in the same forms.
        loss_fn: Takes the logits and y, and returns the loss.

    Attributes:
        module: The module.
        num_classes: C, or ``None`` if nobody said.
        train_metrics: Metrics of the training steps, as they were given; can be set.
        val_metrics: Metrics of evaluation, as they were given; can be set.

    Raises:
        ValueError: A default metric is needed and the number of classes is not known.
        TypeError: ``train_metrics`` or ``val_metrics`` is none of the forms.

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
        wanted = _default_metrics("train_metrics", self.num_classes) if train_metrics is None else train_metrics
        self.train_metrics = cast("Any", wanted)
        wanted = _default_metrics("val_metrics", self.num_classes) if val_metrics is None else val_metrics
        self.val_metrics = cast("Any", wanted)

    def forward(self, batch: tuple[Tensor, Any]) -> Tensor:
        """Return the logits of a batch ``(x, y)``, (B, C, ...).

        Args:
            batch: Inputs and targets; the targets are not read.

        Raises:
            TypeError: The batch is not a pair.
        """
        # TorchScript compiles what stands here, by the types of the signature, and leaves out the check.
        if not torch.jit.is_scripting():  # pyright: ignore[reportPrivateImportUsage]
            _check_pair(batch)
        return self.module(batch[0])

    def loss(self, outputs: Tensor, batch: Batch, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss of the logits against the targets of the batch.

        Args:
            outputs: Logits, (B, C, ...).
            batch: Inputs and targets.
            *args: Handed to ``loss_fn``.
            **kwargs: Handed to ``loss_fn``.

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
        """Return the metrics by name; the objects themselves, which the trainer copies.

        Args:
            is_train: Whether those of the training steps are asked for, rather than those of evaluation.
        """
        name = "train_metrics" if is_train else "val_metrics"
        return metrics_by_name(name, getattr(self, name))


def _check_pair(batch: Batch) -> None:
    """Refuse what is not a pair. A dict or a tensor of length two would unpack as well, into nonsense."""
    if (isinstance(batch, (tuple, list)) and len(batch) == 2) or isinstance(batch, fx.Proxy):
        return
    found = f"{type(batch).__name__} of length {len(batch)}" if hasattr(batch, "__len__") else type(batch).__name__
    raise TypeError(
        f"ComposerClassifier takes batches (x, y), but got a {found}. "
        "Write a subclass of ComposerModel for batches of another form."
    )


def _resolve_num_classes(module: nn.Module, num_classes: int | None) -> int | None:
    """What the module says, else the argument."""
    of_module = getattr(module, "num_classes", None)
    if not isinstance(of_module, int) or of_module < 1:
        return num_classes
    if num_classes is not None and num_classes != of_module:
        warnings.warn(
            f"num_classes={num_classes} differs from the module's own num_classes={of_module}, which is used.",
            ComposerWarning,
            stacklevel=3,
        )
    return of_module


def _default_metrics(argument: str, num_classes: int | None) -> dict[str, Metric]:
    """The metrics of a classifier."""
    if num_classes is None:
        raise ValueError(
            f"num_classes is needed to make {argument}: pass num_classes, or give both train_metrics and val_metrics "
            "({} for none)."
        )
    from composer.metrics.classification import CrossEntropy, MicroAccuracy

    with made_with_values():
        accuracy: dict[str, Metric] = {"MulticlassAccuracy": MicroAccuracy(num_classes)}
        return accuracy if argument == "train_metrics" else {"CrossEntropy": CrossEntropy(), **accuracy}
