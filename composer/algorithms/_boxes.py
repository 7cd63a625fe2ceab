"""Boxes in images, as CutMix and CutOut place them: ``(top, left, bottom, right)``, the last two excluded."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor

from composer import trees
from composer._device_copies import copied_to

__all__ = ["Box", "box_mask", "draw_box", "draw_boxes", "fill_box", "image_size", "widen"]

Box: TypeAlias = tuple[int, int, int, int]


def image_size(input: Any) -> tuple[int, int]:
    """Return the height and width that all tensors of an input, (..., C, H, W), have.

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
            f"input must be images (B, C, H, W) of one height and width, but got "
            f"{f'shapes {found}' if found else f'an object of type {type(input).__name__}'}. Check input_key."
        )
    return size[0], size[1]


def draw_box(size: tuple[int, int], box: tuple[int, int], uniform: bool) -> Box:
    """Place a box of some height and width, and cut off what lies outside.

    The centre is drawn evenly from the image; or, if ``uniform``, the box from all places at which it meets the
    image, so that every pixel is covered equally often.

    >>> draw_box((8, 8), (16, 16), uniform=False)
    (0, 0, 8, 8)
    """
    # Drawn on the host, where slices are made: no device is waited for.
    places: list[float] = torch.rand(2).tolist()
    (top, bottom), (left, right) = (
        _place(place, side, extent, uniform) for place, side, extent in zip(places, size, box, strict=True)
    )
    return top, left, bottom, right


def _place(place: float, side: int, extent: int, uniform: bool) -> tuple[int, int]:
    """Where a box begins and ends along one side."""
    start = int(place * (side + extent - 1)) - extent + 1 if uniform else int(place * side) - extent // 2
    return min(max(start, 0), side), min(max(start + extent, 0), side)


def draw_boxes(size: tuple[int, int], heights: Tensor, widths: Tensor, uniform: bool) -> Tensor:
    """Place a box for each sample, of heights (B,) and widths (B,); return (B, 4), on their device.

    >>> draw_boxes((8, 8), torch.tensor([20]), torch.tensor([20]), uniform=False)
    tensor([[0, 0, 8, 8]])
    """
    extents = torch.stack((heights, widths))
    sides = copied_to(torch.tensor(size), extents.device).unsqueeze(1)
    places = torch.rand(extents.shape, device=extents.device)
    if uniform:
        starts = (places * (sides + extents - 1)).long() - extents + 1
    else:
        starts = (places * sides).long() - extents // 2
    ends = torch.minimum((starts + extents).clamp(min=0), sides)
    starts = torch.minimum(starts.clamp(min=0), sides)
    return torch.cat((starts, ends)).T.contiguous()


def box_mask(boxes: Tensor, size: tuple[int, int]) -> Tensor:
    """Return where the box of each sample lies, (B, H, W).

    >>> box_mask(torch.tensor([[0, 1, 1, 2]]), (2, 2)).int()
    tensor([[[0, 1],
             [0, 0]]], dtype=torch.int32)
    """
    top, left, bottom, right = boxes.view(-1, 4, 1, 1).unbind(1)
    rows = torch.arange(size[0], device=boxes.device).view(1, -1, 1)
    columns = torch.arange(size[1], device=boxes.device)
    return ((rows >= top) & (rows < bottom)) & ((columns >= left) & (columns < right))


def fill_box(tensor: Tensor, box: Box | Tensor, other: Tensor) -> Tensor:
    """Return a copy of images or masks, (B, ..., H, W), with a box, or one for each sample (B, 4), from others.

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
    """View a mask (B, H, W) so that it fits images (B, ..., H, W).

    >>> widen(torch.ones(2, 4, 4), torch.ones(2, 3, 4, 4)).shape
    torch.Size([2, 1, 4, 4])
    """
    return mask.view(mask.shape[0], *[1] * (like.ndim - 3), *mask.shape[1:])
