"""Classification metrics: cross entropy and micro accuracy. Updates do not synchronize with the device."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from composer._numbers import whole_number
from composer.loss.loss import soft_cross_entropy

__all__ = ["CrossEntropy", "MicroAccuracy"]


class CrossEntropy(Metric):
    """Mean cross entropy over all samples (or pixels, tokens), whatever the sizes of the batches.

        CE = sum_i l_i / sum_i m_i

    where l_i is :func:`composer.loss.soft_cross_entropy` of position i, and m_i is 1 for a class index that is
    not ignored, or the sum of the target probabilities at the position. The value is NaN before the first update.

    Args:
        ignore_index: Class index to ignore. Target probabilities that are all zero are ignored too.
        dist_sync_on_step: Whether each ``forward`` call returns the value over all ranks.

    >>> metric = CrossEntropy()
    >>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, -100]))
    >>> metric.compute()
    tensor(0.1269)
    """

    is_differentiable = True
    higher_is_better = False
    full_state_update = False

    sum_loss: Tensor
    total: Tensor

    def __init__(self, ignore_index: int = -100, dist_sync_on_step: bool = False) -> None:
        super().__init__(dist_sync_on_step=dist_sync_on_step)
        self.ignore_index = whole_number("ignore_index", ignore_index, minimum=None)
        # float32 stops accumulating after about ten million positions.
        self.add_state("sum_loss", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Update the state with a batch.

        Args:
            preds: Logits, (B, C, ...).
            target: Class indices (B, ...), or probabilities (B, C, ...).
        """
        preds = preds.float()
        if target.ndim == preds.ndim - 1:
            loss = soft_cross_entropy(preds, target, ignore_index=self.ignore_index, reduction="sum")
            total = (target != self.ignore_index).sum()
        else:
            loss = soft_cross_entropy(preds, target, reduction="sum")
            total = target.sum(dtype=torch.float32)
        # Not in place: a state that was reset in inference mode cannot be updated in place outside of it.
        self.sum_loss = self.sum_loss + loss
        self.total = self.total + total

    def compute(self) -> Tensor:
        """Return the mean cross entropy, a scalar."""
        return (self.sum_loss / self.total).float()


class MicroAccuracy(MulticlassAccuracy):
    """Fraction of samples (or pixels, tokens) whose most likely class is the target class.

    It equals torchmetrics' ``MulticlassAccuracy(num_classes, average="micro")`` at a third of the cost: it keeps two
    counts, ``tp`` and ``total``, and derives ``fp``, ``fn`` and ``tn`` from them. A target given as probabilities
    counts as its most likely class.

    Args:
        num_classes: C, the number of classes.

    >>> metric = MicroAccuracy(num_classes=2)
    >>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(0.5000)
    """

    # torchmetrics also types its counts as lists, which other averages use.
    tp: Tensor  # pyright: ignore[reportIncompatibleVariableOverride]
    total: Tensor

    def __init__(self, num_classes: int) -> None:
        num_classes = whole_number("num_classes", num_classes, minimum=1)
        super().__init__(num_classes=num_classes, average="micro", validate_args=False)
        self._num_classes = num_classes
        self.validate_args = True  # checked in the first update

    def _create_state(self, size: int, multidim_average: str = "global") -> None:
        self.add_state("tp", torch.zeros(size, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("total", torch.zeros(size, dtype=torch.long), dist_reduce_fx="sum")

    @property
    def fn(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """False negatives: each error is one for the target class."""
        return self.total - self.tp

    @property
    def fp(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """False positives: each error is one for the predicted class."""
        return self.total - self.tp

    @property
    def tn(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True negatives: C - 1 for a correct prediction, C - 2 for an error."""
        return self.tp + (self._num_classes - 2) * self.total

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Update the state with a batch.

        Args:
            preds: Logits or probabilities (B, C, ...), or predicted class indices (B, ...).
            target: Class indices (B, ...), or probabilities (B, C, ...).

        Raises:
            ValueError: The shapes do not match.
        """
        state = vars(self)
        if state["validate_args"]:
            state["validate_args"] = False
            self._check_classes(preds, target)
        if target.is_floating_point():
            target = target.argmax(dim=1)
        if preds.is_floating_point():
            preds = preds.argmax(dim=1)
        # Different shapes would be broadcast and counted incorrectly.
        if preds.shape != target.shape:
            raise ValueError(
                f"preds and target must agree in all dims except the class dim, "
                f"but got predictions for {tuple(preds.shape)} and a target for {tuple(target.shape)}."
            )
        # Bypasses `nn.Module.__setattr__`, which costs more than the addition. Not in place: a state that was reset in
        # inference mode cannot be updated in place outside of it.
        state["tp"] = state["tp"] + torch.count_nonzero(preds == target)
        state["total"] = state["total"] + target.numel()

    def _check_classes(self, preds: Tensor, target: Tensor) -> None:
        """Raise if the outputs have a different number of classes."""
        if preds.is_floating_point() and preds.ndim > 1 and preds.shape[1] != self._num_classes:
            raise ValueError(
                f"num_classes={self._num_classes}, but the outputs {tuple(preds.shape)} have {preds.shape[1]} classes. "
                f"Set num_classes={preds.shape[1]}, or change the last layer to {self._num_classes} outputs."
            )

    def compute(self) -> Tensor:
        """Return the accuracy, a scalar; 0 before the first update."""
        return self.tp / self.total.clamp_min(1)
