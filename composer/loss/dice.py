"""Dice loss for segmentation: one minus the overlap of predicted and target regions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from composer._text import one_of
from composer.loss.utils import as_probabilities, infer_target_type

__all__ = ["DiceLoss", "dice_loss"]

# Gives classes that are neither predicted nor present a loss of 0 and finite gradients.
_SMOOTHING = 1e-5


def dice_loss(
    input: Tensor,
    target: Tensor,
    *,
    sigmoid: bool = False,
    softmax: bool = False,
    squared_pred: bool = False,
    jaccard: bool = False,
    batch: bool = False,
    ignore_absent_classes: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """Return one minus the Dice coefficient of predictions and targets, for each image and class.

        l = 1 - (2 sum_i p_i y_i + e) / (sum_i p_i + sum_i y_i + e)          e = 1e-5

    The sums are over the pixels i of an image, in at least float32. It does not synchronize with the device.

    Args:
        input: Predictions, (B, C, ...): probabilities, which may be integers if one-hot, or logits with ``sigmoid`` or
            ``softmax``.
        target: Class indices (B, ...), where negative ones are ignored, or probabilities (B, C, ...).
        sigmoid: Whether to apply a sigmoid to the input, independently for each class.
        softmax: Whether to apply a softmax over the classes to the input.
        squared_pred: Whether to square p_i and y_i in the denominator (Milletari et al.), which reduces the weight of
            uncertain pixels.
        jaccard: Whether to use intersection over union: the denominator minus the intersection, doubled.
        batch: Whether to sum the pixels of all images before dividing, which is more stable for rare classes.
        ignore_absent_classes: Whether to ignore classes that are in no target of the batch. Otherwise small predicted
            probabilities of them dominate the loss.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one loss per image and class, (B, C), or, with ``batch``,
            per class, (C,), where ignored absent classes are 0.

    Returns:
        A scalar, or (B, C) or (C,) with ``reduction="none"``.

    Raises:
        ValueError: ``reduction`` is unknown, both ``sigmoid`` and ``softmax`` are True, ``softmax`` is used with one
            class, or an argument has the wrong shape or dtype.

    >>> prediction = torch.tensor([[[0.8, 0.4, 0.1], [0.2, 0.6, 0.9]]])
    >>> dice_loss(prediction, torch.tensor([[0, 1, 1]]), reduction="none")
    tensor([[0.3043, 0.1892]])

    Paper: https://arxiv.org/abs/1606.04797 (Milletari et al. 2016)
    """
    _check(sigmoid, softmax, reduction)
    if input.ndim < 2:
        raise ValueError(f"input must have shape (B, C, ...), but got {tuple(input.shape)}.")
    indices = infer_target_type(input, target) == "indices"
    probabilities = _probabilities(input, sigmoid, softmax)
    target_of_class = as_probabilities(target, like=probabilities)
    if indices:
        probabilities = probabilities * (target >= 0).unsqueeze(1)
    dims = [*([0] if batch else []), *range(2, input.ndim)]

    def total(values: Tensor) -> Tensor:
        return values.sum(dim=dims) if dims else values

    intersection = total(probabilities * target_of_class)
    if squared_pred:
        size = total(probabilities.square()) + total(target_of_class.square())
    else:
        size = total(probabilities) + total(target_of_class)
    if jaccard:
        size = 2 * (size - intersection)
    loss = 1 - (2 * intersection + _SMOOTHING) / (size + _SMOOTHING)

    present = torch.ones_like(loss)
    if ignore_absent_classes:
        batch_and_dims = [0, *range(2, input.ndim)]
        present = (target_of_class.sum(dim=batch_and_dims) > 0).to(loss.dtype).expand_as(loss)
        loss = loss * present
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / present.sum().clamp_min(1)


class DiceLoss(nn.Module):
    """The Dice loss as a module; see :func:`dice_loss` for details.

    Args:
        sigmoid: Whether to apply a sigmoid to the input, independently for each class.
        softmax: Whether to apply a softmax over the classes to the input.
        squared_pred: Whether to square the terms of the denominator.
        jaccard: Whether to use intersection over union.
        batch: Whether to sum the pixels of all images before dividing.
        ignore_absent_classes: Whether to ignore classes that are in no target of the batch.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ValueError: ``reduction`` is unknown, or both ``sigmoid`` and ``softmax`` are given.

    >>> loss = DiceLoss(softmax=True)
    >>> loss(torch.tensor([[[9.0, -9.0], [-9.0, 9.0]]]), torch.tensor([[0, 1]])).round(decimals=4)
    tensor(0.)

    Paper: https://arxiv.org/abs/1606.04797 (Milletari et al. 2016)
    """

    def __init__(
        self,
        sigmoid: bool = False,
        softmax: bool = False,
        squared_pred: bool = False,
        jaccard: bool = False,
        batch: bool = False,
        ignore_absent_classes: bool = False,
        reduction: str = "mean",
    ) -> None:
        super().__init__()
        _check(sigmoid, softmax, reduction)
        self.sigmoid, self.softmax = sigmoid, softmax
        self.squared_pred, self.jaccard, self.batch = squared_pred, jaccard, batch
        self.ignore_absent_classes, self.reduction = ignore_absent_classes, reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Return the loss.

        Args:
            input: Predictions, (B, C, ...).
            target: Class indices (B, ...), or probabilities (B, C, ...).
        """
        return dice_loss(input, target, **self._options())

    def extra_repr(self) -> str:
        """Return the arguments, for the module's repr."""
        return ", ".join(f"{name}={value!r}" for name, value in self._options().items())

    def _options(self) -> dict[str, Any]:
        names = ("sigmoid", "softmax", "squared_pred", "jaccard", "batch", "ignore_absent_classes", "reduction")
        return {name: getattr(self, name) for name in names}


def _check(sigmoid: bool, softmax: bool, reduction: str) -> None:
    """Raise if arguments exclude each other."""
    one_of("reduction", reduction, ("mean", "none", "sum"))
    if sigmoid and softmax:
        raise ValueError(
            "sigmoid=True and softmax=True are mutually exclusive. Use softmax for one class per pixel, else sigmoid."
        )


def _probabilities(input: Tensor, sigmoid: bool, softmax: bool) -> Tensor:
    """Return predictions as probabilities, in float32 if the dtype is too narrow for sums over many pixels."""
    if input.dtype in (torch.float16, torch.bfloat16) or not input.is_floating_point():
        input = input.float()
    if sigmoid:
        return input.sigmoid()
    if softmax:
        if input.shape[1] == 1:
            raise ValueError(
                "softmax=True requires at least two classes, since for one it is always 1. Use sigmoid=True."
            )
        return input.softmax(dim=1)
    return input
