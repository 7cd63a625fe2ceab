"""Base class of models: what the trainer needs of them."""

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
    """A module that takes a batch, and knows its loss and its metrics.

    Write :meth:`forward` and :meth:`loss`; for metrics also :meth:`get_metrics` and :meth:`update_metric`. Models of
    early versions, with ``validate(batch) -> (outputs, targets)`` and ``metrics(train)``, work unchanged.

    The losses of microbatches are weighted by their samples, or by their tokens where ``batch["labels"]`` has one for
    each. A model whose loss is a mean over other tokens than those whose label is not -100 counts them in a method
    ``__count_targets__(batch)``, which returns a 0-d tensor, or None where it does not know.

    Attributes:
        logger: Takes metrics; set by the trainer.

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
    # TorchScript reads the annotations of attributes, and knows no loggers.
    __jit_ignored_attributes__: Sequence[str] = ("logger",)

    def forward(self, batch: Batch) -> Any:
        """Compute the outputs of a batch.

        Args:
            batch: What the data loader yields, on the device.

        Raises:
            NotImplementedError: The class does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define forward(self, batch).")

    def loss(
        self, outputs: Any, batch: Batch, *args: Any, **kwargs: Any
    ) -> Tensor | Sequence[Tensor] | Mapping[str, Tensor]:
        """Compute the loss of the outputs.

        Args:
            outputs: What :meth:`forward` returned.
            batch: The batch.
            *args: For a subclass's own use.
            **kwargs: For a subclass's own use.

        Returns:
            The loss, its mean if it has elements; or several, whose means are added. Of a mapping with the key
            ``"total"`` that entry is the loss and the others are only logged.

        Raises:
            NotImplementedError: The class does not define it.
        """
        raise NotImplementedError(f"{type(self).__name__} must define loss(self, outputs, batch).")

    def eval_forward(self, batch: Batch, outputs: Any | None = None) -> Any:
        """Compute the outputs that metrics are updated with.

        Args:
            batch: The batch.
            outputs: What :meth:`forward` returned in the training step, where metrics of training are updated.
        """
        if _has_early_validate(type(self)):
            outputs, self.__targets = cast(Any, self).validate(batch)
            return outputs
        return self(batch) if outputs is None else outputs

    def update_metric(self, batch: Batch, outputs: Any, metric: Metric) -> Any:
        """Update a metric with the outputs of a batch.

        Args:
            batch: The batch.
            outputs: What :meth:`eval_forward` returned.
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
            is_train: Whether those of the training steps are asked for, rather than those of evaluation.
        """
        if not _has_early_metrics(type(self)):
            return {}
        found = cast(Any, self).metrics(train=is_train)
        return dict(found.items()) if hasattr(found, "items") else {type(found).__name__: found}

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of copies and files what belongs to a run: the logger, and the targets of an evaluation."""
        left_out = ("logger", "_ComposerModel__targets")
        return {name: value for name, value in super().__getstate__().items() if name not in left_out}

    def __copy__(self) -> Self:
        """Return a shallow copy, which logs to the same logger."""
        return self._twin(ComposerModel.__getstate__(self))

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return a deep copy, which logs to the same logger: a logger has the whole run behind it."""
        memo[id(self)] = twin = self._twin({})
        twin.__dict__.update(copy.deepcopy(ComposerModel.__getstate__(self), memo))
        return twin

    def _twin(self, state: dict[str, Any]) -> Self:
        """An object of the same class and logger, with other attributes."""
        twin = type(self).__new__(type(self))
        kept = {"logger": self.__dict__["logger"]} if "logger" in self.__dict__ else {}
        twin.__dict__.update({**state, **kept})
        return twin


@cached_by_class
def _has_early_metrics(kind: type) -> bool:
    """Whether a class has the method ``metrics(train)`` of models of early versions, not another of that name."""
    return "train" in _parameters(kind, "metrics")


@cached_by_class
def _has_early_validate(kind: type) -> bool:
    """Whether a class has the method ``validate(batch)`` that went with it."""
    return _has_early_metrics(kind) and len(_parameters(kind, "validate")) == 2


def _parameters(kind: type, method: str) -> tuple[str, ...]:
    found = getattr(kind, method, None)
    return tuple(inspect.signature(found).parameters) if inspect.isfunction(found) else ()
