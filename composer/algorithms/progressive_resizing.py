"""Progressive resizing: start with small images, grow them to full size, and finish at full size.

    scale(t) = s0 + (1 - s0) * clip((t - delay) / (1 - finetune - delay), 0, 1)     t: fraction of the run completed

Early steps cost a fraction of a full step. From fast.ai, see
https://www.fast.ai/posts/2018-04-30-dawnbench-fastai.html
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer import trees
from composer._numbers import in_unit_interval, positive, whole_number
from composer._text import one_of
from composer.algorithms._images import is_channels_last
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.distributed_support import Sharding
from composer.core.traits import Traits

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["ProgressiveResizing", "resize_batch"]

_MODES = ("resize", "crop")


def resize_batch(
    input: Any,
    target: Any,
    scale_factor: float,
    mode: str = "resize",
    resize_targets: bool = False,
) -> tuple[Any, Any]:
    """Make the images of a batch smaller.

    Args:
        input: Images, (B, C, H, W), or a collection of them, which are resized alike.
        target: Targets of any shape, or a collection of them.
        scale_factor: Height and width of the result as fractions of the input's, above 0 up to 1; rounded down to
            pixels.
        mode: ``"resize"`` uses nearest-neighbor interpolation; ``"crop"`` cuts a random window, the same for the
            entire batch.
        resize_targets: Whether to resize targets with at least 3 dimensions too: masks (B, H, W) or (B, C, H, W).

    Returns:
        The input and the target, resized; memory formats are kept.

    Raises:
        ValueError: An argument is out of range, the input is not an image, or there is no target to resize.

    >>> x, _ = resize_batch(torch.arange(16.0).view(1, 1, 4, 4), torch.tensor([0]), scale_factor=0.5)
    >>> x
    tensor([[[[ 0.,  2.],
              [ 8., 10.]]]])
    """
    _check_scale("scale_factor", scale_factor)
    return _resize(input, target, (scale_factor, scale_factor), mode, resize_targets)


class ProgressiveResizing(Algorithm):
    """Applies :func:`resize_batch` to each batch, on a schedule from small to full size.

    The scale is ``initial_scale`` for the first ``delay_fraction`` of the run, then grows linearly, and is 1 for the
    last ``finetune_fraction``. Sizes are rounded to multiples of ``size_increment``, except for the full size.

    Logs ``progressive_resizing/height``, ``/width`` (pixels) and ``/scale_factor``.

    When to use it:
        For convolutional image classifiers, in nearly every recipe: early epochs cost a fraction of the time.

    When not to:
        For models with a fixed input size (vision transformers with learned positions). A compiled model with
        convolutions is compiled once for each size, which pays only for few of them: see ``size_increment``.

    How to choose:
        ``initial_scale`` 0.5, ``delay_fraction`` 0.4 to 0.5, ``finetune_fraction`` 0.2: the last epochs must use the
        full size. ``mode="crop"`` keeps the scale of objects, which small images of digits or letters need.

    Cost:
        It saves time: a resize of the batch, and convolutions on ``scale ** 2`` of the pixels. With
        ``torch.backends.cudnn.benchmark`` the convolutions are tuned once for each size.

    Args:
        mode: ``"resize"`` or ``"crop"``, see :func:`resize_batch`.
        initial_scale: Height and width at the start as fractions of the full ones, above 0 up to 1 (off).
        finetune_fraction: Fraction of the run at the end with full size.
        delay_fraction: Fraction of the run at the start with the initial size.
        size_increment: Sizes are multiples of this, in pixels: with few sizes, little is tuned or compiled again.
        resize_targets: Whether masks are resized too.
        input_key: Key of the input in the batch, or a list of keys.
        target_key: Key of the target, or a list of keys.

    Raises:
        ValueError: An argument is out of range, or the sum of both fractions exceeds 1.

    >>> ProgressiveResizing(initial_scale=0.5, delay_fraction=0.5, finetune_fraction=0.2).scale_at(0.65)
    0.75
    """

    __traits__ = Traits(
        slot=Slot.AUGMENT,
        changes_shapes=True,
        dynamic_dims=(2, 3),
        sharding=Sharding.SAFE,
        sharding_reason="All ranks use the same size; each samples the windows of mode='crop'.",
        neutral={"initial_scale": 1.0},
    )

    def __init__(
        self,
        mode: str = "resize",
        initial_scale: float = 0.5,
        finetune_fraction: float = 0.2,
        delay_fraction: float = 0.5,
        size_increment: int = 4,
        resize_targets: bool = False,
        input_key: trees.BatchKey = 0,
        target_key: trees.BatchKey = 1,
    ) -> None:
        self.mode = one_of("mode", mode, _MODES)
        if self.mode == "crop":
            self.__traits__ = replace(self.__traits__, sharding=Sharding.PER_RANK)
        self.initial_scale = _check_scale("initial_scale", initial_scale)
        self.finetune_fraction = in_unit_interval("finetune_fraction", finetune_fraction)
        self.delay_fraction = in_unit_interval("delay_fraction", delay_fraction)
        if self.delay_fraction + self.finetune_fraction > 1:
            raise ValueError(
                f"The sum of delay_fraction and finetune_fraction must not exceed 1, but got {delay_fraction} and "
                f"{finetune_fraction}: no time would remain to grow."
            )
        self.size_increment = whole_number("size_increment", size_increment, minimum=1)
        self.resize_targets = resize_targets
        self.input_key = input_key
        self.target_key = target_key

    def scale_at(self, elapsed: float) -> float:
        """Return the scale before rounding to pixels.

        Args:
            elapsed: Fraction of the run completed, from 0 to 1.

        >>> ProgressiveResizing(delay_fraction=0.5, finetune_fraction=0.5).scale_at(0.5)
        1.0
        """
        if elapsed < self.delay_fraction:
            return self.initial_scale
        if elapsed >= 1 - self.finetune_fraction:
            return 1.0  # also if there is no time to grow
        progress = (elapsed - self.delay_fraction) / (1 - self.finetune_fraction - self.delay_fraction)
        return min(self.initial_scale + (1 - self.initial_scale) * progress, 1.0)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Resize the batch and log its size."""
        if self.initial_scale == 1:
            return
        scale = self.scale_at(state.progress("dur"))
        input, target = state.batch_get_item(self.input_key), state.batch_get_item(self.target_key)
        full = _image_size(input)
        height, width = (self._rounded(side, scale) for side in full)
        if (height, width) != full:
            factors = (height / full[0], width / full[1])
            input, target = _resize(input, target, factors, self.mode, self.resize_targets)
            state.batch_set_item(self.input_key, input)
            if self.resize_targets:
                state.batch_set_item(self.target_key, target)
        logger.log_metrics(
            {
                "progressive_resizing/height": height,
                "progressive_resizing/width": width,
                "progressive_resizing/scale_factor": scale,
            }
        )

    def _rounded(self, side: int, scale: float) -> int:
        """Return a side in pixels: a multiple of the increment, at least one increment, at most the full side."""
        if scale == 1:
            return side
        rounded = round(side * scale / self.size_increment) * self.size_increment
        return min(max(rounded, self.size_increment), side)


def _resize(input: Any, target: Any, factors: tuple[float, float], mode: str, resize_targets: bool) -> tuple[Any, Any]:
    """Resize every image by the same factors, and cut every crop at the same position."""
    one_of("mode", mode, _MODES)
    _image_size(input)
    # Sampled on the host, since slices are made there; no device synchronization.
    position: list[float] = torch.rand(2).tolist() if mode == "crop" else [0.0, 0.0]
    resized: list[bool] = []

    def resize(tensor: Tensor) -> Tensor:
        # Rounded down, as torch's interpolation does; 0.29 * 100 is less than 29.
        height, width = (max(int(side * f + 1e-6), 1) for side, f in zip(tensor.shape[-2:], factors, strict=True))
        if (height, width) == tuple(tensor.shape[-2:]):
            return tensor
        if mode == "resize":
            return _nearest(tensor, height, width)
        top = int(position[0] * (tensor.shape[-2] - height + 1))
        left = int(position[1] * (tensor.shape[-1] - width + 1))
        return _compact(tensor[..., top : top + height, left : left + width], tensor)

    def resize_mask(tensor: Tensor) -> Tensor:
        if tensor.ndim < 3:
            return tensor
        resized.append(True)
        return resize(tensor)

    input = trees.map_tensors(resize, input)
    if resize_targets:
        target = trees.map_tensors(resize_mask, target)
        if not resized:
            raise ValueError("resize_targets=True requires a target of shape (B, H, W) or (B, C, H, W); found none.")
    return input, target


def _nearest(tensor: Tensor, height: int, width: int) -> Tensor:
    """Pick row ``floor(i * H / height)`` and column likewise; any dtype, so that masks stay aligned with images."""
    H, W = tensor.shape[-2:]
    if H % height == 0 and W % width == 0:
        return _compact(tensor[..., :: H // height, :: W // width], tensor)
    rows = torch.arange(height, device=tensor.device).mul_(H).div_(height, rounding_mode="floor")
    columns = torch.arange(width, device=tensor.device).mul_(W).div_(width, rounding_mode="floor")
    if is_channels_last(tensor):
        return tensor.permute(0, 2, 3, 1).index_select(1, rows).index_select(2, columns).permute(0, 3, 1, 2)
    indices = (rows.mul_(W).unsqueeze(1) + columns).flatten()
    # One gather over pixels takes a quarter of the time of selecting rows, then columns.
    pixels = tensor.flatten(-2)
    return pixels.gather(-1, indices.expand(*pixels.shape[:-1], -1)).unflatten(-1, (height, width))


def _compact(view: Tensor, original: Tensor) -> Tensor:
    """Copy a view into contiguous memory, in the memory format of the original."""
    return view.contiguous(memory_format=torch.channels_last if is_channels_last(original) else torch.contiguous_format)


def _image_size(input: Any) -> tuple[int, int]:
    """Return height and width of the first image of an input; raise if any tensor of it is not a batch of images."""
    tensors = [leaf for leaf in trees.leaves(input) if isinstance(leaf, Tensor)]
    for tensor in tensors:
        if tensor.ndim < 4:
            raise ValueError(f"input must be images of shape (B, C, H, W), but it has the shape {tuple(tensor.shape)}.")
    if not tensors:
        raise ValueError(f"input must be a tensor of images (B, C, H, W), but it is of type {type(input).__name__}.")
    return tensors[0].shape[-2], tensors[0].shape[-1]


def _check_scale(argument: str, scale: float) -> float:
    return in_unit_interval(argument, positive(argument, scale))
