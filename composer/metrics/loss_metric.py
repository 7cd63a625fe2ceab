"""Use any loss function as a metric (``LossMetric``)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from composer.core.microbatches import count_samples

__all__ = ["LossMetric"]


class LossMetric(Metric):
    """Mean of a loss over all samples, independent of the batch sizes.

        L = sum_b n_b l_b / sum_b n_b          l_b: mean loss of batch b, n_b: its number of samples

    The value is NaN before the first update. Updates do not synchronize with the device.

    Args:
        loss_function: Function ``(outputs, targets) -> loss`` that returns the mean loss, a scalar, or one loss per
            position, (B, ...). It is copied with the metric.
        dist_sync_on_step: Whether each ``forward`` call returns the value over all ranks.

    Raises:
        TypeError: ``loss_function`` is not callable.

    >>> metric = LossMetric(torch.nn.MSELoss())
    >>> metric.update(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 2.0, 3.0]))
    >>> metric.update(torch.tensor([4.0]), torch.tensor([2.0]))
    >>> metric.compute()
    tensor(1.)
    """

    higher_is_better = False
    full_state_update = False

    sum_loss: Tensor
    total: Tensor

    def __init__(self, loss_function: Callable[[Any, Any], Tensor], dist_sync_on_step: bool = False) -> None:
        super().__init__(dist_sync_on_step=dist_sync_on_step)
        if not callable(loss_function):
            raise TypeError(f"loss_function must be callable as (outputs, targets) -> loss, but got {loss_function!r}.")
        self.loss_function = loss_function
        # float32 stops accumulating after about ten million samples.
        self.add_state("sum_loss", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, preds: Any, target: Any) -> None:
        """Update the state with a batch.

        Args:
            preds: The outputs, as ``loss_function`` takes them.
            target: The targets, as ``loss_function`` takes them: a tensor (B, ...), or a collection of tensors.

        Raises:
            NotImplementedError: The loss is a scalar, and the number of samples cannot be inferred from the targets.
        """
        loss = self.loss_function(preds, target).detach().float()
        is_mean = loss.ndim == 0
        num_elements = count_samples(target) if is_mean else loss.numel()
        # Not in place: a state that was reset in inference mode cannot be updated in place outside of it.
        self.sum_loss = self.sum_loss + (loss * num_elements if is_mean else loss.sum())
        self.total = self.total + num_elements

    def compute(self) -> Tensor:
        """Return the mean loss, a scalar."""
        return (self.sum_loss / self.total).float()
