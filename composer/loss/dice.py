"""The Dice loss: how far prediction and target are from covering the same places."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from composer._text import one_of
from composer.loss.utils import as_probabilities, infer_target_type

__all__ = ["DiceLoss", "dice_loss"]

# Keeps classes that are neither predicted nor there at a loss of 0, and their gradients finite.
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

    The sums run over the places i of an image. Nothing is read back from the device, and sums are those of float32
    at least.

    Args:
        input: Predictions, (B, C, ...): probabilities, of whole numbers too where they are one-hot, or logits with
            ``sigmoid`` or ``softmax``.
        target: Class indices (B, ...), of which negative ones are places that do not count, or probabilities
            (B, C, ...).
        sigmoid: Whether to turn logits into probabilities of each class on its own.
        softmax: Whether to turn logits into probabilities over the classes.
        squared_pred: Whether p_i and y_i are squared in the denominator (Milletari et al.), which weighs down places
            that the model is unsure of.
        jaccard: Whether to use intersection over union: the denominator less the intersection, doubled.
        batch: Whether to add up the places of all images before the fraction, which is steadier where classes are rare.
        ignore_absent_classes: Whether classes that no target of the batch has do not count. Otherwise predicting a
            little of them costs the most.
        reduction: ``"mean"``, ``"sum"``, or ``"none"`` for one loss for each image and class, (B, C), or with ``batch``
            each class, (C,); there absent classes that are ignored are 0.

    Returns:
        A scalar, or (B, C) or (C,) with ``reduction="none"``.

    Raises:
        ValueError: ``reduction`` is unknown, both ``sigmoid`` and ``softmax`` are given, ``softmax`` is for one class
            only, or the shape or dtype of an argument does not fit.

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
    """The Dice loss as a module, see :func:`dice_loss`, which also describes the arguments in full.

    Args:
        sigmoid: Whether to turn logits into probabilities of each class on its own.
        softmax: Whether to turn logits into probabilities over the classes.
        squared_pred: Whether the denominator has squares.
        jaccard: Whether to use intersection over union.
        batch: Whether to add up the places of all images before the fraction.
        ignore_absent_classes: Whether classes that no target of the batch has do not count.
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
    """Refuse arguments that do not go together."""
    one_of("reduction", reduction, ("mean", "none", "sum"))
    if sigmoid and softmax:
        raise ValueError(
            "sigmoid=True and softmax=True exclude each other: softmax for one class a place, else sigmoid."
        )


def _probabilities(input: Tensor, sigmoid: bool, softmax: bool) -> Tensor:
    """Predictions as probabilities, in float32 where sums over many places would not fit into the dtype."""
    if input.dtype in (torch.float16, torch.bfloat16) or not input.is_floating_point():
        input = input.float()
    if sigmoid:
        return input.sigmoid()
    if softmax:
        if input.shape[1] == 1:
            raise ValueError("softmax=True needs two classes or more, of one it is always 1; use sigmoid=True.")
        return input.softmax(dim=1)
    return input
