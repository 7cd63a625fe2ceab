"""Random boxes in images, for CutMix and CutOut: ``(top, left, bottom, right)``, the last two exclusive."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from composer import trees
from composer._device_copies import copied_to

__all__ = ["Box", "box_mask", "fill_box", "image_size", "sample_box", "sample_boxes", "widen"]

Box: TypeAlias = tuple[int, int, int, int]


def image_size(input: Any) -> tuple[int, int]:
    """Return the common height and width of all tensors of an input, (..., C, H, W).

    >>> image_size((torch.zeros(2, 3, 4, 5), torch.zeros(2, 1, 4, 5)))
    (4, 5)
    """
    sizes = {
        tuple(leaf.shape[-2:]) if leaf.ndim > 2 else () for leaf in trees.leaves(input) if isinstance(leaf, Tensor)
    }
    size = next(iter(sizes), ())
    if len(sizes) != 1 or len(size) != 2:
        found = [tuple(leaf.shape) for leaf in trees.leaves(input) if isinstance(leaf, Tensor)]
        raise ValueError(
            f"input must be images (B, C, H, W) of the same height and width, but got "
            f"{f'shapes {found}' if found else f'an object of type {type(input).__name__}'}. Check input_key."
        )
    return size[0], size[1]


def sample_box(size: tuple[int, int], box: tuple[int, int], uniform: bool) -> Box:
    """Sample the position of a box of given height and width, and clip it to the image.

    The center is sampled uniformly from the image; or, if ``uniform``, the box from all positions at which it overlaps
    the image, so that every pixel is covered equally often.

    >>> sample_box((8, 8), (16, 16), uniform=False)
    (0, 0, 8, 8)
    """
    # Sampled on the host, where slices are made: no device synchronization.
    positions: list[float] = torch.rand(2).tolist()
    (top, bottom), (left, right) = (
        _edges(position, side, extent, uniform) for position, side, extent in zip(positions, size, box, strict=True)
    )
    return top, left, bottom, right


def _edges(position: float, side: int, extent: int, uniform: bool) -> tuple[int, int]:
    """Return the start and end of a box in one dimension."""
    start = int(position * (side + extent - 1)) - extent + 1 if uniform else int(position * side) - extent // 2
    return min(max(start, 0), side), min(max(start + extent, 0), side)


def sample_boxes(size: tuple[int, int], heights: Tensor, widths: Tensor, uniform: bool) -> Tensor:
    """Sample a box for each sample, of heights (B,) and widths (B,); return (B, 4), on their device.

    >>> sample_boxes((8, 8), torch.tensor([20]), torch.tensor([20]), uniform=False)
    tensor([[0, 0, 8, 8]])
    """
    extents = torch.stack((heights, widths))
    sides = copied_to(torch.tensor(size), extents.device).unsqueeze(1)
    positions = torch.rand(extents.shape, device=extents.device)
    if uniform:
        starts = (positions * (sides + extents - 1)).long() - extents + 1
    else:
        starts = (positions * sides).long() - extents // 2
    ends = torch.minimum((starts + extents).clamp(min=0), sides)
    starts = torch.minimum(starts.clamp(min=0), sides)
    return torch.cat((starts, ends)).T.contiguous()


def box_mask(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a mask of the box of each sample, (B, H, W).

    >>> box_mask(torch.tensor([[0, 1, 1, 2]]), (2, 2)).int()
    tensor([[[0, 1],
             [0, 0]]], dtype=torch.int32)
    """
    top, left, bottom, right = boxes.view(-1, 4, 1, 1).unbind(1)
    rows = torch.arange(size[0], device=boxes.device).view(1, -1, 1)
    columns = torch.arange(size[1], device=boxes.device)
    return ((rows >= top) & (rows < bottom)) & ((columns >= left) & (columns < right))


def fill_box(tensor: Tensor, box: Box | Tensor, other: Tensor) -> Tensor:
    """Return a copy of images or masks, (B, ..., H, W), with a box, or one per sample (B, 4), filled from ``other``.

    >>> fill_box(torch.zeros(1, 2, 2), (0, 1, 1, 2), torch.ones(1, 2, 2))
    tensor([[[0., 1.],
             [0., 0.]]])
    """
    if isinstance(box, Tensor):
        return torch.where(widen(box_mask(box, (tensor.shape[-2], tensor.shape[-1])), tensor), other, tensor)
    top, left, bottom, right = box
    filled = tensor.clone()
    filled[..., top:bottom, left:right] = other[..., top:bottom, left:right]
    return filled


def widen(mask: Tensor, like: Tensor) -> Tensor:
    """View a mask (B, H, W) so that it broadcasts to images (B, ..., H, W).

    >>> widen(torch.ones(2, 4, 4), torch.ones(2, 3, 4, 4)).shape
    torch.Size([2, 1, 4, 4])
    """
    return mask.view(mask.shape[0], *[1] * (like.ndim - 3), *mask.shape[1:])
