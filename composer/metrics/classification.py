"""Metrics of classification. Their updates read nothing back from the device."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.classification import MulticlassAccuracy

from composer.loss.loss import soft_cross_entropy

__all__ = ["CrossEntropy", "MicroAccuracy"]


class CrossEntropy(Metric):
    """Mean cross entropy over all samples (or pixels, tokens), whatever the sizes of the batches.

        CE = sum_i l_i / sum_i m_i

    where l_i is :func:`composer.loss.soft_cross_entropy` of place i, and m_i is 1 for a class index that is not
    ignored, or the sum of the place's probabilities. Before the first update it is NaN.

    Args:
        ignore_index: Class index that does not count. Among probabilities those that are all zero do not count.
        dist_sync_on_step: Whether ``forward`` returns the value over all ranks at each call.

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
        self.ignore_index = ignore_index
        # float32 stops growing after some ten million places.
        self.add_state("sum_loss", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0.0, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch.

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
        # Not in place: a state that was reset in inference mode could not be updated outside of it.
        self.sum_loss = self.sum_loss + loss
        self.total = self.total + total

    def compute(self) -> Tensor:
        """Return the mean over what was added, a scalar."""
        return (self.sum_loss / self.total).float()


class MicroAccuracy(MulticlassAccuracy):
    """Share of samples (or pixels, tokens) whose most likely class is the target's.

    The value is that of torchmetrics' ``MulticlassAccuracy(num_classes, average="micro")`` at a third of the cost:
    it keeps two counts, ``tp`` and ``total``, and derives ``fp``, ``fn`` and ``tn`` from them. A target of
    probabilities stands for its most likely class.

    Args:
        num_classes: C, the number of classes.

    >>> metric = MicroAccuracy(num_classes=2)
    >>> metric.update(torch.tensor([[2.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 0]))
    >>> metric.compute()
    tensor(0.5000)
    """

    # torchmetrics types its counts as lists too, which they are for averages other than this one.
    tp: Tensor  # pyright: ignore[reportIncompatibleVariableOverride]
    total: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__(num_classes=num_classes, average="micro", validate_args=False)
        self._num_classes = num_classes
        self.validate_args = True  # of the first update

    def _create_state(self, size: int, multidim_average: str = "global") -> None:
        self.add_state("tp", torch.zeros(size, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("total", torch.zeros(size, dtype=torch.long), dist_reduce_fx="sum")

    @property
    def fn(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """False negatives: each miss is one for the class of the target."""
        return self.total - self.tp

    @property
    def fp(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """False positives: each miss is one for the class predicted."""
        return self.total - self.tp

    @property
    def tn(self) -> Tensor:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True negatives: a hit has C - 1 of them, a miss C - 2."""
        return self.tp + (self._num_classes - 2) * self.total

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Add a batch.

        Args:
            preds: Logits or probabilities (B, C, ...), or predicted class indices (B, ...).
            target: Class indices (B, ...), or probabilities (B, C, ...).

        Raises:
            ValueError: The shapes do not fit.
        """
        state = vars(self)
        if state["validate_args"]:
            state["validate_args"] = False
            self._check_classes(preds, target)
        if target.is_floating_point():
            target = target.argmax(dim=1)
        if preds.is_floating_point():
            preds = preds.argmax(dim=1)
        # Different shapes would be broadcast against each other and counted wrong.
        if preds.shape != target.shape:
            raise ValueError(
                f"preds and target must agree in all dims but that of the classes, "
                f"but got predictions for {tuple(preds.shape)} and a target for {tuple(target.shape)}."
            )
        # Written past `nn.Module.__setattr__`, which costs more than the addition. Not in place: a state that was
        # reset in inference mode could not be updated outside of it.
        state["tp"] = state["tp"] + torch.count_nonzero(preds == target)
        state["total"] = state["total"] + target.numel()

    def _check_classes(self, preds: Tensor, target: Tensor) -> None:
        """Refuse outputs of another number of classes."""
        if preds.is_floating_point() and preds.ndim > 1 and preds.shape[1] != self._num_classes:
            raise ValueError(
                f"num_classes={self._num_classes}, but the outputs {tuple(preds.shape)} have {preds.shape[1]} classes. "
                f"Pass num_classes={preds.shape[1]}, or let the last layer have {self._num_classes} outputs."
            )

    def compute(self) -> Tensor:
        """Return the share of hits, a scalar; 0 if nothing was added."""
        return self.tp / self.total.clamp_min(1)
