"""Base class of models: what the trainer needs of them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self, cast

from torch import Tensor, nn

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
    ``count_targets(batch)``, which returns a 0-d tensor, or None where it does not know.

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
        if self._is_of_early_version("validate"):
            outputs, self._targets = cast(Any, self).validate(batch)
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
        if not self._is_of_early_version("validate"):
            raise NotImplementedError(
                f"{type(self).__name__} has metrics, so it must define update_metric(self, batch, outputs, metric), "
                f"for a classifier: metric.update(outputs, batch[1])."
            )
        metric.update(outputs, self._targets)

    def get_metrics(self, is_train: bool) -> dict[str, Metric]:
        """Return the metrics by name.

        Args:
            is_train: Whether those of the training steps are asked for, rather than those of evaluation.
        """
        if not self._is_of_early_version("metrics"):
            return {}
        found = cast(Any, self).metrics(train=is_train)
        return dict(found.items()) if hasattr(found, "items") else {type(found).__name__: found}

    def _is_of_early_version(self, method: str) -> bool:
        """Whether the class defines a method by which models of early versions were evaluated."""
        return callable(getattr(type(self), method, None))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out of copies and files what belongs to a run: the logger, and the targets of an evaluation."""
        return {name: value for name, value in super().__getstate__().items() if name not in ("logger", "_targets")}

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
