"""CutMix: paste a box of another image into each image, and mix the labels in proportion to the areas.

    x' = M * x_i + (1 - M) * x_j,    y' = l * y_i + (1 - l) * y_j     l: fraction of the pixels kept, mean of M

The sides of the box are ``sqrt(1 - l)`` of the image's, ``l ~ Beta(a, a)``, before clipping at the edges. The
model learns to recognize an object by any of its parts, and unlike with MixUp every region of an image looks natural.

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
from composer._numbers import in_unit_interval, non_negative
from composer.algorithms._boxes import Box, fill_box, image_size, sample_box, sample_boxes
from composer.algorithms._host_random import sample_beta, sample_dirichlet
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
    """Paste a box of another image of the batch into each image.

        x'[box] = x[indices][box],    l = 1 - area of the box / area of the image

    Mix the targets likewise: ``l * loss(outputs, target) + (1 - l) * loss(outputs, permuted)``, or with one-hot
    targets ``l * y + (1 - l) * y[indices]``; paste masks like the images.

    Args:
        input: Images, (B, C, H, W), of any dtype; or a collection of them, which get the same box.
        target: Targets, (B, ...), or a collection of them.
        length: Height and width of the box as a fraction of the image's, from 0 to 1; sampled by default.
        alpha: Parameter of the Beta distribution that the area is sampled from; 1 is uniform, 0 pastes no box.
        bbox: The box, ``(top, left, bottom, right)`` in pixels, the last two exclusive; or one per image, (B, 4).
        indices: Partner of each image, (B,); a random permutation by default.
        uniform_sampling: Whether each pixel is equally likely to be pasted over. By default the center of the box
            is sampled uniformly from the image, as in the paper, which favors the middle.
        per_sample: Whether to sample a separate box for each image.

    Returns:
        The mixed input; the target of the partners, ``target[indices]``; l after the box was clipped at the edges,
        a number, or (B,) for separate boxes; the box.

    Raises:
        ValueError: The input is not an image, an argument is out of range, or both ``length`` and ``bbox`` are given.

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
            raise ValueError(f"Pass length or bbox, not both; got length={length} and bbox={bbox}.")
        box = _checked_box(bbox, size)
    elif per_sample:
        box = _sample_boxes(first, size, length, alpha, uniform_sampling)
    else:
        side = _side(length, sample_beta(non_negative("alpha", alpha)) if alpha else 1.0)
        box = sample_box(size, (int(size[0] * side), int(size[1] * side)), uniform_sampling)
    if indices is None:
        indices = torch.randperm(first.shape[0], device=first.device)
    mixed = trees.map_tensors(lambda tensor: _paste(tensor, indices, box), input)
    permuted = trees.map_tensors(lambda tensor: select_samples(tensor, indices), target)
    return mixed, permuted, _kept(box, size), box


class CutMix(PairMixing):
    """Applies :func:`cutmix_batch` to each microbatch, and mixes its targets or its losses by the areas.

    Targets may be class indices, probabilities, or numbers to regress to. Masks, targets with the height and width of
    the images, are pasted like the images. The batch is restored after the loss, or with ``interpolate_loss`` after
    the backward pass: metrics see the original data.

    When to use it:
        For image classifiers that train for many epochs and overfit. It combines well with RandAugment and, unless
        ``interpolate_loss=True``, with label smoothing. Masks are pasted too, so segmentation works.

    When not to:
        In short runs, which gain little, and if the relevant object may cover a small area of the image.

    How to choose:
        ``alpha=1`` suits most tasks; lower it if the training loss decreases slowly. ``per_sample=True`` varies more
        within a batch. Use ``interpolate_loss=True`` only for losses that require class indices.

    Cost:
        One copy of the batch; with ``interpolate_loss`` a second loss computation, with ``per_sample`` one more pass
        over the batch.

    Args:
        alpha: Parameter of the Beta distribution, 0 (off) or greater; 1 in the paper.
        interpolate_loss: Whether to mix the losses of both targets rather than the targets, for losses that require
            class indices. The loss is computed twice. Not supported for masks or with ``per_sample``.
        uniform_sampling: Whether each pixel is equally likely to be pasted over, see :func:`cutmix_batch`.
        input_key: Key of the images in the batch, or a list of keys; all get the same box.
        target_key: Key of the target, or a list of keys.
        per_sample: Whether to sample a box for each image, at the cost of one more pass over the batch; by default
            one box serves the batch, as in the authors' code.

    Raises:
        ValueError: ``alpha`` is negative; or, in training, ``interpolate_loss`` is used with masks.

    >>> CutMix(alpha=1.0)
    CutMix(alpha=1.0, interpolate_loss=False, uniform_sampling=False, input_key=0, target_key=1, per_sample=False)

    Paper: https://arxiv.org/abs/1905.04899 (Yun et al. 2019)
    """

    __traits__ = replace(
        PairMixing.__traits__,
        conflicts_with={
            "LabelSmoothing": (
                "with interpolate_loss=True the partner's targets are not smoothed. Use interpolate_loss=False."
            ),
            "MixUp": "each example would mix up to four images. Use one of them.",
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
                "interpolate_loss=True mixes losses of entire images, but the target is a mask, which is pasted "
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
    """Return the sides of the box as a fraction of the image's."""
    return math.sqrt(1 - kept) if length is None else in_unit_interval("length", length)


def _sample_boxes(first: Tensor, size: tuple[int, int], length: float | None, alpha: float, uniform: bool) -> Tensor:
    """Sample a box for each image, on the device."""
    batch = first.shape[0]
    if length is not None or non_negative("alpha", alpha) == 0:
        sides = torch.full((batch,), _side(length, 1.0), device=first.device)
    else:
        # The first of two Dirichlet components follows Beta(alpha, alpha).
        kept = copied_to(sample_dirichlet(alpha, 2, batch)[:, 0], first.device)
        sides = (1 - kept).sqrt_()
    return sample_boxes(size, (sides * size[0]).long(), (sides * size[1]).long(), uniform)


def _checked_box(bbox: Sequence[int] | Tensor, size: tuple[int, int]) -> Box | Tensor:
    """Check that a box is inside the image; boxes on a device are not read, which would synchronize."""
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
    # Only the pasted pixels are gathered.
    mixed[..., top:bottom, left:right] = tensor[..., top:bottom, left:right].index_select(0, indices)
    return mixed


def _kept(box: Box | Tensor, size: tuple[int, int]) -> float | Tensor:
    """Return the fraction of the pixels kept."""
    if isinstance(box, Tensor):
        top, left, bottom, right = box.unbind(1)
        return 1 - (bottom - top) * (right - left) / (size[0] * size[1])
    top, left, bottom, right = box
    return 1 - (bottom - top) * (right - left) / (size[0] * size[1])
