"""Loss functions: cross entropy for indices and probabilities, binary cross entropy, and Dice."""

from __future__ import annotations

from composer.loss.dice import DiceLoss, dice_loss
from composer.loss.loss import binary_cross_entropy_with_logits, loss_registry, soft_cross_entropy

__all__ = ["DiceLoss", "binary_cross_entropy_with_logits", "dice_loss", "loss_registry", "soft_cross_entropy"]
