"""Segmentation metrics: mean IoU and Dice coefficient. Updates do not synchronize with the device."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

from composer._numbers import whole_number

__all__ = ["Dice", "MIoU"]


class MIoU(Metric):
    """Mean intersection over union of the classes, in percent.

        MIoU = 100/|K| sum_{c in K} |P_c & T_c| / |P_c | T_c|        K: classes that occur or are predicted

    P_c are the pixels predicted as class c and T_c the pixels with target c, over all updates. Pixels with a negative
    target are ignored. The value is NaN before the first update.

    Args:
        num_classes: C.
        ignore_index: Class index to ignore.

    Raises:
        ValueError: ``num_classes`` is not positive.

    >>> metric = MIoU(num_classes=3)
    >>> metric.update(torch.tensor([[0, 1, 1, 2]]), torch.tensor([[0, 1, 2, -1]]))
    >>> metric.compute()
    tensor(50., dtype=torch.float64)

    Paper: https://doi.org/10.1007/s11263-014-0733-5 (Everingham et al. 2015, the PASCAL VOC challenges)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    total_intersect: Tensor
    total_union: Tensor

    def __init__(self, num_classes: int, ignore_index: int = -1) -> None:
        super().__init__()
        self.num_classes = whole_number("num_classes", num_classes, minimum=1)
        self.ignore_index = whole_number("ignore_index", ignore_index, minimum=None)
        self.add_state("total_intersect", torch.zeros(self.num_classes, dtype=torch.long), dist_reduce_fx="sum")
        self.add_state("total_union", torch.zeros(self.num_classes, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, logits: Tensor, target: Tensor) -> None:
        """Update the state with a batch.

        Args:
            logits: Logits or probabilities, (B, C, ...), of any dtype, or predicted class indices (B, ...).
            target: Class indices, (B, ...).

        Raises:
            ValueError: The shapes do not match.
            RuntimeError: A class index is too large; on an accelerator it is raised asynchronously.
        """
        predicted = _classes(logits, target, self.num_classes)
        counts = _confusion(predicted, target, self.num_classes, self.ignore_index).sum(dim=0)
        intersect = counts.diagonal()
        # Not in place: a state that was reset in inference mode cannot be updated in place outside of it.
        self.total_intersect = self.total_intersect + intersect
        self.total_union = self.total_union + counts.sum(dim=0) + counts.sum(dim=1) - intersect

    def compute(self) -> Tensor:
        """Return the mean over the classes, a scalar from 0 to 100 in float64."""
        of_class = self.total_intersect.double() / self.total_union.clamp_min(1)
        return 100 * of_class.sum() / torch.count_nonzero(self.total_union)


class Dice(Metric):
    """Mean Dice coefficient over images and classes without the background, in percent.

        Dice = 100/(N C) sum_nc 2 |P_nc & T_nc| / (|P_nc| + |T_nc|)

    P_nc are the pixels of image n predicted as class c and T_nc the pixels with target c. A class that is neither
    present nor predicted in an image counts as 1. Class 0 is the background. Pixels with a negative target are ignored.
    The value is NaN before the first update.

    Args:
        num_classes: C, the number of classes without the background; there are C + 1 logits.

    Raises:
        ValueError: ``num_classes`` is not positive.

    >>> metric = Dice(num_classes=2)
    >>> metric.update(torch.tensor([[0, 1, 1, 2]]), torch.tensor([[0, 1, 2, 2]]))
    >>> metric.compute()
    tensor(66.6667)

    Paper: https://doi.org/10.2307/1932409 (Dice 1945)
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    dice: Tensor
    total: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.num_classes = whole_number("num_classes", num_classes, minimum=1)
        self.add_state("dice", torch.zeros(self.num_classes, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("total", torch.tensor(0, dtype=torch.long), dist_reduce_fx="sum")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Update the state with a batch.

        Args:
            preds: Logits or probabilities, (B, C + 1, ...), of any dtype, or predicted class indices (B, ...).
            target: Class indices from 0 to C, (B, ...).

        Raises:
            ValueError: The shapes do not match.
            RuntimeError: A class index is too large; on an accelerator it is raised asynchronously.
        """
        classes = self.num_classes + 1
        counts = _confusion(_classes(preds, target, classes), target, classes)
        sizes = (counts.sum(dim=1) + counts.sum(dim=2))[:, 1:]
        intersect = counts.diagonal(dim1=1, dim2=2)[:, 1:]
        score = torch.where(sizes > 0, 2 * intersect / sizes.clamp_min(1), 1.0)
        # Not in place: a state that was reset in inference mode cannot be updated in place outside of it.
        self.dice = self.dice + score.sum(dim=0)
        self.total = self.total + target.shape[0]

    def compute(self) -> Tensor:
        """Return the mean over images and classes, a scalar from 0 to 100."""
        return (100 * self.dice.mean() / self.total).float()


def _classes(preds: Tensor, target: Tensor, classes: int) -> Tensor:
    """Return the predicted class of each pixel."""
    if preds.is_floating_point() or preds.ndim == target.ndim + 1:  # scores, also of integer dtype
        if preds.ndim < 2 or preds.shape[1] > classes:
            raise ValueError(
                f"The predictions must have at most {classes} classes in dim 1, but have shape {tuple(preds.shape)}."
            )
        preds = (preds.byte() if preds.dtype == torch.bool else preds).argmax(dim=1)
    if preds.shape != target.shape:
        raise ValueError(
            f"Predictions and target must agree in all dims except the class dim, "
            f"but got predictions for {tuple(preds.shape)} and a target for {tuple(target.shape)}."
        )
    return preds


def _confusion(predicted: Tensor, target: Tensor, classes: int, ignore_index: int = -1) -> Tensor:
    """Return the confusion matrix of each image, (B, C, C), as integers: targets in dim 1, predictions in dim 2."""
    counts = (target >= 0) & (target != ignore_index)
    # An index beyond the last class would be counted for the next image. This check does not synchronize.
    torch._assert_async(  # pyright: ignore[reportPrivateImportUsage]
        (torch.where(counts, torch.maximum(target, predicted), 0) < classes).all(),
        f"The class indices must be below {classes}, but one of them is not.",
    )
    images = torch.arange(target.shape[0], device=target.device).view(-1, *[1] * (target.ndim - 1))
    cell = torch.where(counts, (images * classes + target) * classes + predicted, 0)
    table = torch.zeros(target.shape[0] * classes * classes, dtype=torch.long, device=target.device)
    table.index_add_(0, cell.flatten(), counts.flatten().long())
    return table.view(-1, classes, classes)
