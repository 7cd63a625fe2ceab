"""Segmentation loss: weighted sum of cross entropy and Dice loss."""

from __future__ import annotations

import torch
from torch import Tensor

from composer._numbers import non_negative
from composer.loss.dice import dice_loss
from composer.loss.loss import soft_cross_entropy
from composer.loss.utils import as_probabilities

__all__ = ["SegmentationLoss"]

_NO_INDEX = -100


class SegmentationLoss:
    """Weighted sum of cross entropy and Dice loss; the two terms are logged as well.

    The Dice loss is computed over the entire batch and the classes that occur in it.

    Args:
        cross_entropy_weight: Weight of the cross entropy; 0 omits it.
        dice_weight: Weight of the Dice loss; 0 omits it.
        ignore_index: Class index of the pixels to ignore.
        with_background: Whether to include class 0 in the Dice loss.

    Raises:
        ValueError: A weight is negative, or both are 0.

    >>> loss = SegmentationLoss(cross_entropy_weight=1.0, dice_weight=0.5)
    >>> terms = loss(torch.zeros(1, 2, 1, 2), torch.tensor([[[0, 1]]]))
    >>> {name: round(term.item(), 4) for name, term in terms.items()}
    {'total': 0.9431, 'cross_entropy': 0.6931, 'dice': 0.5}
    """

    def __init__(
        self,
        cross_entropy_weight: float,
        dice_weight: float,
        ignore_index: int = -1,
        with_background: bool = True,
    ) -> None:
        self.cross_entropy_weight = non_negative("cross_entropy_weight", cross_entropy_weight)
        self.dice_weight = non_negative("dice_weight", dice_weight)
        if cross_entropy_weight == 0 and dice_weight == 0:
            raise ValueError("cross_entropy_weight and dice_weight must not both be 0.")
        self.ignore_index = ignore_index
        self.with_background = with_background

    def __call__(self, outputs: Tensor, target: Tensor) -> dict[str, Tensor]:
        """Return the loss as ``total``, and its unweighted terms.

        Args:
            outputs: Logits, (B, C, ...).
            target: Class indices, (B, ...), or probabilities, (B, C, ...).
        """
        parts: dict[str, Tensor] = {}
        total: Tensor | None = None
        if self.cross_entropy_weight:
            # In probabilities, ignored pixels are all zero.
            ignored = self.ignore_index if target.ndim == outputs.ndim - 1 else _NO_INDEX
            parts["cross_entropy"] = soft_cross_entropy(outputs, target, ignore_index=ignored)
            total = self.cross_entropy_weight * parts["cross_entropy"]
        if self.dice_weight:
            parts["dice"] = self._dice(outputs, target)
            dice = self.dice_weight * parts["dice"]
            total = dice if total is None else total + dice
        assert total is not None
        return {"total": total, **parts}

    def _dice(self, outputs: Tensor, target: Tensor) -> Tensor:
        if target.ndim == outputs.ndim - 1:
            target = torch.where(target == self.ignore_index, -1, target)
        probabilities = outputs.float().softmax(dim=1)
        target = as_probabilities(target, like=probabilities)
        # Mask the predictions of ignored pixels too.
        probabilities = probabilities * target.sum(dim=1, keepdim=True)
        first = 0 if self.with_background else 1
        return dice_loss(probabilities[:, first:], target[:, first:], batch=True, ignore_absent_classes=True)
