"""ComposerModel, the base class of models that the trainer can train: forward, loss and metrics."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any, Self, cast

from torch import Tensor, nn

from composer._class_cache import cached_by_class
from composer.core.types import Batch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torchmetrics import Metric

    from composer.core.logger import Logger

__all__ = ["ComposerModel"]


class ComposerModel(nn.Module):
    """A module that takes a batch and defines its loss and metrics.

    Implement :meth:`forward` and :meth:`loss`; for metrics also :meth:`get_metrics` and :meth:`update_metric`. Models
    for early versions, with ``validate(batch) -> (outputs, targets)`` and ``metrics(train)``, work unchanged.

    With gradient accumulation, the loss weight of a microbatch is its number of samples, or of tokens if
    ``batch["labels"]`` has a label per token. By default, tokens whose label is -100 are not counted. If the loss is
    the mean over other tokens, define ``__count_targets__(batch)``, which returns their number as a 0-d tensor, or
    None if unknown.

    Attributes:
        logger: Receives metrics; set by the trainer.

    >>> class Regression(ComposerModel):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.linear = torch.nn.Linear(2, 1)
    ...
    ...     def forward(self, batch):
    ...         return self.linear(batch[0])
    ...
    ...     def loss(self, outputs, batch):
    ...         return torch.nn.functional.mse_loss(outputs, batch[1])
    >>> model = Regression()
    >>> batch = (torch.ones(4, 2), torch.zeros(4, 1))
    >>> model.loss(model(batch), batch).shape
    torch.Size([])
    """

    logger: Logger | None = None
    # TorchScript reads the annotations of attributes, and does not support this type.
    __jit_ignored_attributes__: Sequence[str] = ("logger",)

    def forward(self, batch: Batch) -> Any:
        """Compute the outputs for a batch.

        Args:
            batch: A batch of the data loader, on the device.

        Raises:
            NotImplementedError: The class does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward(self, batch).")

    def loss(
        self, outputs: Any, batch: Batch, *args: Any, **kwargs: Any
    ) -> Tensor | Sequence[Tensor] | Mapping[str, Tensor]:
        """Compute the loss of the outputs.

        Args:
            outputs: The result of :meth:`forward`.
            batch: The batch.
            *args: For use by subclasses.
            **kwargs: For use by subclasses.

        Returns:
            The loss, which is averaged if it has several elements; or several losses, whose means are added. In a
            mapping with the key ``"total"``, that entry is the loss and the others are only logged. All of them are
            real floating-point tensors; log other values with ``self.logger.log_metrics``.

        Raises:
            NotImplementedError: The class does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define loss(self, outputs, batch).")

    def eval_forward(self, batch: Batch, outputs: Any | None = None) -> Any:
        """Compute the outputs for updating metrics.

        Args:
            batch: The batch.
            outputs: The result of :meth:`forward` in the training step, if training metrics are updated.
        """
        if _has_early_validate(type(self)):
            outputs, self.__targets = cast(Any, self).validate(batch)
            return outputs
        return self(batch) if outputs is None else outputs

    def update_metric(self, batch: Batch, outputs: Any, metric: Metric) -> Any:
        """Update a metric with the outputs of a batch.

        Args:
            batch: The batch.
            outputs: The result of :meth:`eval_forward`.
            metric: One of the values of :meth:`get_metrics`.

        Raises:
            NotImplementedError: The class has metrics but does not define it.
        """
        if not _has_early_validate(type(self)):
            raise NotImplementedError(
                f"{type(self).__name__} has metrics, so it must define update_metric(self, batch, outputs, metric), "
                f"for a classifier: metric.update(outputs, batch[1])."
            )
        metric.update(outputs, self.__targets)

    def get_metrics(self, is_train: bool) -> dict[str, Metric]:
        """Return the metrics by name.

        Args:
            is_train: Whether to return the training metrics, rather than the evaluation metrics.
        """
        if not _has_early_metrics(type(self)):
            return {}
        found = cast(Any, self).metrics(train=is_train)
        return dict(found.items()) if hasattr(found, "items") else {type(found).__name__: found}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out run-specific attributes from copies and files: the logger, and the targets of an evaluation."""
        left_out = ("logger", "_ComposerModel__targets")
        return {name: value for name, value in super().__getstate__().items() if name not in left_out}

    def __copy__(self) -> Self:
        """Return a shallow copy, which logs to the same logger."""
        return self._clone_with(ComposerModel.__getstate__(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a deep copy, which logs to the same logger: a logger references the entire run."""
        memo[id(self)] = clone = self._clone_with({})
        clone.__dict__.update(copy.deepcopy(ComposerModel.__getstate__(self), memo))
        return clone

    def _clone_with(self, state: dict[str, Any]) -> Self:
        """Return an object of the same class and with the same logger, but with other attributes."""
        clone = type(self).__new__(type(self))
        kept = {"logger": self.__dict__["logger"]} if "logger" in self.__dict__ else {}
        clone.__dict__.update({**state, **kept})
        return clone


@cached_by_class
def _has_early_metrics(cls: type) -> bool:
    """Return whether a class has the method ``metrics(train)`` of early versions, not another method of that name."""
    return "train" in _parameters(cls, "metrics")


@cached_by_class
def _has_early_validate(cls: type) -> bool:
    """Return whether a class has the corresponding method ``validate(batch)`` of early versions."""
    return _has_early_metrics(cls) and len(_parameters(cls, "validate")) == 2


def _parameters(cls: type, method: str) -> tuple[str, ...]:
    found = getattr(cls, method, None)
    return tuple(inspect.signature(found).parameters) if inspect.isfunction(found) else ()
