"""CutMix: paste a box of another image into each image, and mix the labels by the areas.

    x' = M * x_i + (1 - M) * x_j,    y' = l * y_i + (1 - l) * y_j          l: share of the pixels that stay, mean of M

The sides of the box are ``sqrt(1 - l)`` of the image's, ``l ~ Beta(a, a)``, before it is cut off at the edges. The
model learns to recognise an object by any of its parts, and unlike with MixUp every part of an image looks real.

Paper: CutMix: Regularization Strategy to Train Strong Classifiers with Localizable Features, Yun et al. 2019,
https://arxiv.org/abs/1905.04899
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from composer import trees
from composer._device_copies import copied_to
from composer._text import in_unit_interval, non_negative
from composer.algorithms._boxes import Box, draw_box, draw_boxes, fill_box, image_size
from composer.algorithms._host_random import draw_beta, draw_dirichlet
from composer.algorithms._images import select_samples
from composer.algorithms._mixing import PairMixing

__all__ = ["CutMix", "cutmix_batch"]


def cutmix_batch(
    input: Any,
    target: Any,
    length: float | None = None,
    alpha: float = 1.0,
    bbox: Sequence[int] | Tensor | None = None,
    indices: Tensor | None = None,
    uniform_sampling: bool = False,
    per_sample: bool = False,
) -> tuple[Any, Any, float | Tensor, Box | Tensor]:
    """Paste into each image a box of another one of the batch.

        x'[box] = x[indices][box],    l = 1 - area of the box / area of the image

    The targets are to be mixed likewise: ``l * loss(outputs, target) + (1 - l) * loss(outputs, permuted)``, or with
    one-hot targets ``l * y + (1 - l) * y[indices]``; masks are to be pasted like the images.

    Args:
        input: Images, (B, C, H, W), of any dtype; or a collection of them, which get the same box.
        target: Targets, (B, ...), or a collection of them.
        length: Height and width of the box as a share of the image's, from 0 to 1; drawn by default.
        alpha: Parameter of the Beta distribution that the area is drawn from; at 1 it is uniform, 0 is no box.
        bbox: The box, ``(top, left, bottom, right)`` in pixels, the last two excluded; or one for each image, (B, 4).
        indices: Partner of each image, (B,); a random permutation by default.
        uniform_sampling: Whether each pixel is equally likely to be pasted over. By default the centre of the box
            is drawn evenly from the image, as in the paper, which favours the middle.
        per_sample: Whether each image gets a box of its own.

    Returns:
        The mixed input; the target of the partners, ``target[indices]``; l after the box was cut off at the edges,
        a number, or (B,) for boxes of their own; the box.

    Raises:
        ValueError: The input is no image, an argument is out of its range, or both ``length`` and ``bbox`` are given.

    >>> x = torch.tensor([[[[1, 1], [1, 1]]], [[[2, 2], [2, 2]]]])
    >>> mixed, permuted, kept, _ = cutmix_batch(
    ...     x, torch.tensor([0, 1]), bbox=(0, 1, 1, 2), indices=torch.tensor([1, 0])
    ... )
    >>> mixed[0, 0], permuted, kept
    (tensor([[1, 2],
            [1, 1]]), tensor([1, 0]), 0.75)

    Paper: https://arxiv.org/abs/1905.04899 (Yun et al. 2019)
    """
    size = image_size(input)
    first = next(leaf for leaf in trees.leaves(input) if isinstance(leaf, Tensor))
    if first.ndim < 4:
        raise ValueError(f"input must be images of shape (B, C, H, W), but it has the shape {tuple(first.shape)}.")
    if bbox is not None:
        if length is not None:
            raise ValueError(f"Give length or bbox, not both; got length={length} and bbox={bbox}.")
        box = _checked_box(bbox, size)
    elif per_sample:
        box = _draw_boxes(first, size, length, alpha, uniform_sampling)
    else:
        side = _side(length, draw_beta(non_negative("alpha", alpha)) if alpha else 1.0)
        box = draw_box(size, (int(size[0] * side), int(size[1] * side)), uniform_sampling)
    if indices is None:
        indices = torch.randperm(first.shape[0], device=first.device)
    mixed = trees.map_tensors(lambda tensor: _paste(tensor, indices, box), input)
    permuted = trees.map_tensors(lambda tensor: select_samples(tensor, indices), target)
    return mixed, permuted, _kept(box, size), box


class CutMix(PairMixing):
    """Applies :func:`cutmix_batch` to each microbatch, and mixes its targets or its losses by the areas.

    Targets may be class indices, probabilities, or numbers to regress to. Masks, targets with the height and width of
    the images, are pasted like the images. The batch is as it was once the loss, or with ``interpolate_loss`` the
    gradient, is there: metrics see the original data.

    When to use it:
        For classifiers of images that are trained for many epochs and overfit; it goes well with label smoothing and
        RandAugment. Masks are pasted too, so that segmentation works.

    When not to:
        In short trainings, which gain little, and where what matters may be a small part of the image.

    How to choose:
        ``alpha=1`` is right for most; lower it if training is slow to fit. ``per_sample=True`` varies more within a
        batch. ``interpolate_loss=True`` is for losses that take class indices only.

    Cost:
        One copy of the batch; with ``interpolate_loss`` the loss twice, with ``per_sample`` one more pass over the
        batch.

    Args:
        alpha: Parameter of the Beta distribution, 0 (off) or greater; 1 in the paper.
        interpolate_loss: Whether to mix the losses of both targets rather than the targets, for losses that take
            class indices only. The loss is computed twice. Not for masks, nor with ``per_sample``.
        uniform_sampling: Whether each pixel is equally likely to be pasted over, see :func:`cutmix_batch`.
        input_key: Where the images are in the batch, or a list of such keys; all get the same box.
        target_key: Where the target is, or a list of such keys.
        per_sample: Whether each image gets a box of its own, at the cost of one more pass over the batch; by default
            one box serves the batch, as in the authors' code.

    Raises:
        ValueError: ``alpha`` is negative; or, in training, the losses of masks are to be mixed.

    >>> CutMix(alpha=1.0)
    CutMix(alpha=1.0, interpolate_loss=False, uniform_sampling=False, input_key=0, target_key=1, per_sample=False)

    Paper: https://arxiv.org/abs/1905.04899 (Yun et al. 2019)
    """

    __traits__ = replace(
        PairMixing.__traits__,
        conflicts_with={
            "LabelSmoothing": "the targets of the partners would stay unsmoothed. Use interpolate_loss=False.",
            "MixUp": "each example would be made of up to four. Take one of them.",
        },
    )

    def __init__(
        self,
        alpha: float = 1.0,
        interpolate_loss: bool = False,
        uniform_sampling: bool = False,
        input_key: trees.BatchKey = 0,
        target_key: trees.BatchKey = 1,
        per_sample: bool = False,
    ) -> None:
        super().__init__(alpha, interpolate_loss, input_key, target_key, per_sample)
        self.uniform_sampling = uniform_sampling
        self._box: Box | Tensor = (0, 0, 0, 0)
        self._size = (0, 0)

    def mix(self, input: Any, target: Any) -> tuple[Any, Any, float | Tensor]:
        """Paste the boxes."""
        mixed, permuted, kept, self._box = cutmix_batch(
            input,
            target,
            alpha=self.alpha,
            uniform_sampling=self.uniform_sampling,
            per_sample=self.per_sample,
        )
        self._size = image_size(input)
        if self.interpolate_loss and any(self._is_dense(leaf) for leaf in trees.leaves(target)):
            raise ValueError(
                "interpolate_loss=True mixes the losses of whole images, but the target is a mask, which is pasted "
                "pixel by pixel. Use CutMix(interpolate_loss=False)."
            )
        return mixed, permuted, 1 - kept

    def mix_target(self, outputs: Any, target: Tensor, permuted: Tensor) -> Tensor:
        """Paste masks, mix other targets."""
        if self._is_dense(target):
            return fill_box(target, self._box, permuted)
        return super().mix_target(outputs, target, permuted)

    def _is_dense(self, target: Any) -> bool:
        return isinstance(target, Tensor) and target.ndim > 2 and tuple(target.shape[-2:]) == self._size


def _side(length: float | None, kept: float) -> float:
    """The sides of the box as a share of the image's."""
    return math.sqrt(1 - kept) if length is None else in_unit_interval("length", length)


def _draw_boxes(first: Tensor, size: tuple[int, int], length: float | None, alpha: float, uniform: bool) -> Tensor:
    """Draw a box for each image, on the device."""
    batch = first.shape[0]
    if length is not None or non_negative("alpha", alpha) == 0:
        sides = torch.full((batch,), _side(length, 1.0), device=first.device)
    else:
        # The first of two shares that sum to one follows Beta(alpha, alpha).
        kept = copied_to(draw_dirichlet(alpha, 2, batch)[:, 0], first.device)
        sides = (1 - kept).sqrt_()
    return draw_boxes(size, (sides * size[0]).long(), (sides * size[1]).long(), uniform)


def _checked_box(bbox: Sequence[int] | Tensor, size: tuple[int, int]) -> Box | Tensor:
    """A box inside of the image; those on a device are not looked at, which would wait for it."""
    if isinstance(bbox, Tensor) and bbox.ndim == 2:
        return bbox
    top, left, bottom, right = (int(edge) for edge in bbox)
    if not (0 <= top <= bottom <= size[0] and 0 <= left <= right <= size[1]):
        raise ValueError(
            f"bbox must be (top, left, bottom, right) within images of {size[0]} x {size[1]} pixels, "
            f"but got {(top, left, bottom, right)}."
        )
    return top, left, bottom, right


def _paste(tensor: Tensor, indices: Tensor, box: Box | Tensor) -> Tensor:
    if isinstance(box, Tensor):
        return fill_box(tensor, box, select_samples(tensor, indices))
    top, left, bottom, right = box
    mixed = tensor.clone()
    # Only what is pasted is gathered.
    mixed[..., top:bottom, left:right] = tensor[..., top:bottom, left:right].index_select(0, indices)
    return mixed


def _kept(box: Box | Tensor, size: tuple[int, int]) -> float | Tensor:
    """The share of the pixels that stay."""
    if isinstance(box, Tensor):
        top, left, bottom, right = box.unbind(1)
        return 1 - (bottom - top) * (right - left) / (size[0] * size[1])
    top, left, bottom, right = box
    return 1 - (bottom - top) * (right - left) / (size[0] * size[1])
