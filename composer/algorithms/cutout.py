"""CutOut: mask random squares of each image, so that the model does not rely on a single region.

Paper: Improved Regularization of Convolutional Neural Networks with Cutout, DeVries and Taylor 2017,
https://arxiv.org/abs/1708.04552
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer import trees
from composer._numbers import in_unit_interval, whole_number
from composer.algorithms._boxes import box_mask, image_size, sample_box, sample_boxes, widen
from composer.algorithms.utils.augmentation_common import is_pillow_image
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["CutOut", "cutout_batch"]


def cutout_batch(
    input: Any,
    num_holes: int = 1,
    length: float = 0.5,
    uniform_sampling: bool = False,
    per_sample: bool = False,
) -> Any:
    """Set random squares of images to zero.

    The side of a square is ``int(min(H, W) * length)``. Its center is sampled uniformly from the image, and the square
    is clipped at the edges, so that the mean area is smaller than ``length ** 2``.

    Args:
        input: Images, (B, C, H, W) or (C, H, W), of any dtype; a collection of them, which get the same holes; or a
            PIL image.
        num_holes: Number of squares, which may overlap.
        length: Side of a square as a fraction of the shorter side of the image, from 0 to 1.
        uniform_sampling: Whether each pixel is equally likely to be in a square. By default the middle is masked more
            often than the edges.
        per_sample: Whether to sample squares for each image, as in the paper; by default the batch shares them.

    Returns:
        A copy of the images with holes; the input is not modified.

    Raises:
        ValueError: The input is not an image, or an argument is out of range.

    >>> cutout_batch(torch.ones(1, 1, 4, 4), length=0.5).sum() <= 15
    tensor(True)

    Paper: https://arxiv.org/abs/1708.04552 (DeVries and Taylor 2017)
    """
    num_holes = whole_number("num_holes", num_holes)
    in_unit_interval("length", length)
    if is_pillow_image(input):
        return _cut_pillow(input, num_holes, length, uniform_sampling)
    size = image_size(input)
    side = int(min(size) * length)
    first = next(leaf for leaf in trees.leaves(input) if isinstance(leaf, Tensor))
    if per_sample and first.ndim > 3 and num_holes > 0:
        sides = torch.full((first.shape[0],), side, device=first.device)
        holes = [box_mask(sample_boxes(size, sides, sides, uniform_sampling), size) for _ in range(num_holes)]
        mask = functools.reduce(torch.logical_or, holes)
        # torch.where takes a third of the time of filling by a broadcast mask.
        return trees.map_tensors(lambda tensor: torch.where(widen(mask, tensor), tensor.new_zeros(()), tensor), input)
    boxes = [sample_box(size, (side, side), uniform_sampling) for _ in range(num_holes)]

    def cut(tensor: Tensor) -> Tensor:
        holed = tensor.clone()
        for top, left, bottom, right in boxes:
            holed[..., top:bottom, left:right] = 0
        return holed

    return trees.map_tensors(cut, input)


class CutOut(Algorithm):
    """Applies :func:`cutout_batch` to each batch on the device.

    When to use it:
        For small images, such as CIFAR, in runs long enough to overfit.

    When not to:
        On ImageNet, where it gains little by itself, and for dense prediction. CutMix fills the hole with useful
        content, and is usually the better choice.

    How to choose:
        ``length`` 0.5 on CIFAR-10 and 0.25 on CIFAR-100 (16 and 8 pixels of 32 in the paper), one hole.
        ``per_sample=True`` is the variant of the paper.

    Cost:
        One copy of the batch.

    Args:
        num_holes: Number of squares; 0 is off.
        length: Side of a square as a fraction of the shorter side, from 0 to 1. A half on CIFAR-10 in the paper.
        uniform_sampling: Whether each pixel is equally likely to be in a square.
        input_key: Key of the images in the batch, or a list of keys; all get the same holes.
        per_sample: Whether to sample squares for each image, as in the paper; by default the batch shares them.

    Raises:
        ValueError: An argument is out of range.

    >>> CutOut(num_holes=1, length=0.5)
    CutOut(num_holes=1, length=0.5, uniform_sampling=False, input_key=0, per_sample=False)

    Paper: https://arxiv.org/abs/1708.04552 (DeVries and Taylor 2017)
    """

    __traits__ = Traits(
        slot=Slot.AUGMENT,
        conflicts_with={
            "CutMix": "both mask boxes of the images, and CutMix would paste boxes with holes. Omit CutOut.",
        },
        sharding=Sharding.PER_RANK,
        sharding_reason="Each rank samples holes for its shard of the batch.",
        neutral={"num_holes": 0},
    )

    def __init__(
        self,
        num_holes: int = 1,
        length: float = 0.5,
        uniform_sampling: bool = False,
        input_key: trees.BatchKey = 0,
        per_sample: bool = False,
    ) -> None:
        self.num_holes = whole_number("num_holes", num_holes)
        self.length = in_unit_interval("length", length)
        self.uniform_sampling = uniform_sampling
        self.input_key = input_key
        self.per_sample = per_sample

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Mask the squares."""
        if self.num_holes == 0 or self.length == 0:
            return
        input = state.batch_get_item(self.input_key)
        holed = cutout_batch(input, self.num_holes, self.length, self.uniform_sampling, self.per_sample)
        state.batch_set_item(self.input_key, holed)


def _cut_pillow(image: Any, num_holes: int, length: float, uniform: bool) -> Any:
    """Mask squares of a PIL image."""
    width, height = image.size
    side = int(min(image.size) * length)
    holed = image.copy()
    for _ in range(num_holes):
        top, left, bottom, right = sample_box((height, width), (side, side), uniform)
        holed.paste(0 if len(image.getbands()) == 1 else (0,) * len(image.getbands()), (left, top, right, bottom))
    return holed
