"""Classification losses for class indices or probabilities: soft cross entropy and binary cross entropy."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from composer._text import one_of
from composer.loss.dice import DiceLoss, dice_loss
from composer.loss.utils import as_probabilities
from composer.warnings import NoEffectWarning

__all__ = ["DiceLoss", "binary_cross_entropy_with_logits", "loss_registry", "soft_cross_entropy"]


def soft_cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Return the cross entropy of logits against class indices or probabilities.

        l_i = -sum_c w_c y_ic log softmax(x_i)_c        mean = sum_i l_i / sum_ic w_c y_ic

    Class indices are passed to :func:`torch.nn.functional.cross_entropy`. With probabilities, the mean divides by the
    weighted sum of the targets, so one-hot targets give the same value as their indices, including class weights, and
    positions whose probabilities are all zero are ignored. If all positions are ignored, the mean with probabilities is
    0 with zero gradients. It does not synchronize with the device.

    Args:
        input: Logits, (B, C, ...), or (C,) for a single sample.
        target: Class indices (B, ...), or probabilities (B, C, ...) that sum to one over C.
        weight: Weight of each class, (C,).
        ignore_index: Class index to ignore. Only for class indices; with probabilities, positions that are all zero
            are ignored.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one loss per position, (B, ...).

    Returns:
        A scalar, or (B, ...) with ``reduction="none"``.

    Raises:
        ValueError: ``reduction`` is unknown, or the target has the wrong shape.

    >>> logits = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    >>> soft_cross_entropy(logits, torch.tensor([0, 1]))
    tensor(0.2201)
    >>> soft_cross_entropy(logits, torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor(0.2201)
    """
    if target.ndim == input.ndim - 1:
        return F.cross_entropy(input, target, weight, ignore_index=ignore_index, reduction=reduction)
    if target.shape != input.shape:
        raise ValueError(
            f"target must have shape (B, ...) with class indices or (B, C, ...) with probabilities, "
            f"but got {tuple(target.shape)} for logits of shape {tuple(input.shape)}."
        )
    if ignore_index >= 0:
        warnings.warn(
            f"ignore_index={ignore_index} has no effect on probabilities; "
            "set the probabilities of ignored positions to zero instead.",
            NoEffectWarning,
            stacklevel=2,
        )
    if not target.is_floating_point():
        target = target.to(input.dtype)
    if reduction != "mean":
        return F.cross_entropy(input, target, weight, reduction=one_of("reduction", reduction, ("mean", "none", "sum")))
    total = F.cross_entropy(input, target, weight, reduction="sum")
    if weight is not None:
        target = target * weight.view(-1, *[1] * (input.ndim - 2))
    # Summed in the dtype of the loss (float32 under autocast). The clamp replaces a check that would synchronize with
    # the device: an empty target divides zero by a tiny number.
    mass = target.sum(dtype=total.dtype)
    return total / mass.clamp_min(torch.finfo(mass.dtype).tiny)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "sum",
    pos_weight: Tensor | None = None,
    scale_by_batch_size: bool = True,
) -> Tensor:
    """Return the binary cross entropy, independent for each class, against class indices or one value per class.

        l_ic = -w_ic (p_c y_ic log sigmoid(x_ic) + (1 - y_ic) log(1 - sigmoid(x_ic)))

    By default it is the sum over all elements divided by B: the loss of a sample is the sum over its classes.
    A negative class index means that no class is present.

    Args:
        input: Logits, (B, C, ...).
        target: Class indices (B, ...), or one value in [0, 1] per class, (B, C, ...).
        weight: Weight of each element, broadcast to (B, C, ...).
        reduction: ``"sum"``, ``"mean"`` over all elements, or ``"none"``.
        pos_weight: Weight of the positive term, broadcast to (B, C, ...).
        scale_by_batch_size: Whether the result, whatever the reduction, is divided by B.

    Returns:
        A scalar, or (B, C, ...) with ``reduction="none"``.

    Raises:
        ValueError: ``reduction`` is unknown, or the target has the wrong shape or dtype.

    >>> binary_cross_entropy_with_logits(torch.zeros(2, 3), torch.tensor([0, 2]))
    tensor(2.0794)

    Paper: https://arxiv.org/abs/2110.00476 (Wightman et al. 2021, who train ImageNet classifiers with it)
    """
    one_of("reduction", reduction, ("mean", "none", "sum"))
    target = as_probabilities(target, like=input)
    loss = F.binary_cross_entropy_with_logits(input, target, weight, pos_weight=pos_weight, reduction=reduction)
    return loss / input.shape[0] if scale_by_batch_size else loss


loss_registry: dict[str, Callable[..., Tensor]] = {
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    "dice_loss": dice_loss,
    "soft_cross_entropy": soft_cross_entropy,
}
"""The loss functions by name."""
