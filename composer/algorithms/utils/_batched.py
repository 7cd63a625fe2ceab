"""The operations of :mod:`.augmentation_primitives` on batches of tensors, on any device.

Images are uint8, (B, C, H, W); each operation takes one parameter per image, (B,). Results match those of PIL up to a
difference of one due to rounding. A chain groups the images by the sampled operation, so that every image is processed
once per step, without device synchronization.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from composer._device_copies import copied_to
from composer.algorithms.utils._levels import NUM_UNIFORMS, parameters

__all__ = ["OPERATIONS", "Plan", "apply_plan", "as_bytes", "from_bytes", "sample_plan"]

# The luma of ITU-R 601, in 1 / 65536.
_LUMA = (19595, 38470, 7471)

# Tolerance for float32 rounding of coordinates before they are truncated.
_SLACK = 1e-3


def _autocontrast(images: Tensor, parameter: Tensor) -> Tensor:
    lowest = images.amin((2, 3), keepdim=True).float()
    extent = images.amax((2, 3), keepdim=True) - lowest
    # All integers below 2**16, so that the quotient is truncated where an exact one would be.
    stretched = (images - lowest).mul_(255).div_(extent.clamp(min=1)).to(torch.uint8)
    return torch.where(extent > 0, stretched, images)


def _equalize(images: Tensor, parameter: Tensor) -> Tensor:
    pixels = images.flatten(2).long()
    counts = torch.zeros(*pixels.shape[:2], 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(2, pixels, torch.ones((), dtype=torch.long, device=images.device).expand_as(pixels))
    brightest = counts.gather(2, pixels.amax(2, keepdim=True))
    step = (pixels.shape[2] - brightest) // 255
    below = counts.cumsum(2) - counts
    table = ((step // 2 + below) // step.clamp(min=1)).clamp_(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return table.to(torch.uint8).gather(2, pixels).view_as(images)


def _posterize(images: Tensor, parameter: Tensor) -> Tensor:
    return images & (256 - torch.exp2(8 - parameter)).to(torch.uint8)


def _solarize(images: Tensor, parameter: Tensor) -> Tensor:
    return torch.where(images < parameter, images, 255 - images)


def _rotate(images: Tensor, parameter: Tensor) -> Tensor:
    angle = torch.deg2rad(parameter)
    cosine, sine = torch.cos(angle), torch.sin(angle)
    return _affine(images, (cosine, -sine), (sine, cosine), about_center=True)


def _shear_x(images: Tensor, parameter: Tensor) -> Tensor:
    return _affine(images, (torch.ones_like(parameter), parameter), (torch.zeros_like(parameter), 1))


def _shear_y(images: Tensor, parameter: Tensor) -> Tensor:
    return _affine(images, (torch.ones_like(parameter), 0), (parameter, torch.ones_like(parameter)))


def _translate_x(images: Tensor, parameter: Tensor) -> Tensor:
    return _shift(images, parameter, 3)


def _translate_y(images: Tensor, parameter: Tensor) -> Tensor:
    return _shift(images, parameter, 2)


def _color(images: Tensor, parameter: Tensor) -> Tensor:
    return _blend(_gray(images).float(), images, parameter)


def _contrast(images: Tensor, parameter: Tensor) -> Tensor:
    mean = _gray(images).float().mean((1, 2, 3), keepdim=True)
    return _blend((mean + 0.5).floor_(), images, parameter)


def _brightness(images: Tensor, parameter: Tensor) -> Tensor:
    return (images * parameter.clamp(min=0)).clamp_(0, 255).to(torch.uint8)


def _sharpness(images: Tensor, parameter: Tensor) -> Tensor:
    height, width = images.shape[2:]
    if height < 3 or width < 3:
        return images
    values = images.float()
    inner = values[..., 1:-1, 1:-1]
    # The sum of the nine pixels, with five times the center.
    smooth = F.avg_pool2d(values, 3, stride=1, divisor_override=1) + 4 * inner
    result = images.clone()
    result[..., 1:-1, 1:-1] = _blend(smooth.div_(13).add_(0.5).floor_(), images[..., 1:-1, 1:-1], parameter)
    return result


OPERATIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "posterize": _posterize,
    "rotate": _rotate,
    "solarize": _solarize,
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translate_x,
    "translate_y": _translate_y,
    "color": _color,
    "color_original": _color,
    "contrast": _contrast,
    "contrast_original": _contrast,
    "brightness": _brightness,
    "brightness_original": _brightness,
    "sharpness": _sharpness,
    "sharpness_original": _sharpness,
}
"""Operations by function name: images (B, C, H, W) and parameters (B, 1, 1, 1) -> images."""


@dataclass(frozen=True)
class Plan:
    """The operations to apply to each image, on the host, so that sampling and sorting do not synchronize.

    Attributes:
        choices: Index of the operation in each step, (steps, B); one past the last is a no-op.
        uniforms: Values in [0, 1) that determine the strengths, (steps, NUM_UNIFORMS, B).
    """

    choices: Tensor
    uniforms: Tensor


def sample_plan(size: int, steps: int, num_operations: int) -> Plan:
    """Sample an operation and its strength for each image and step.

    >>> sample_plan(4, 2, 13).choices.shape
    torch.Size([2, 4])
    """
    return Plan(torch.randint(num_operations, (steps, size)), torch.rand(steps, NUM_UNIFORMS, size))


def apply_plan(images: Tensor, plan: Plan, names: Sequence[str], severity: float) -> Tensor:
    """Apply the operations of a plan, step by step.

    >>> images = torch.full((2, 1, 2, 2), 255, dtype=torch.uint8)
    >>> plan = Plan(torch.tensor([[0, 1]]), torch.zeros(1, 3, 2))
    >>> apply_plan(images, plan, ["posterize"], 1.0)[:, 0, 0, 0]
    tensor([240, 255], dtype=torch.uint8)
    """
    for choices, uniforms in zip(plan.choices, plan.uniforms, strict=True):
        images = _apply_step(images, choices, uniforms, names, severity)
    return images


def _apply_step(images: Tensor, choices: Tensor, uniforms: Tensor, names: Sequence[str], severity: float) -> Tensor:
    """Group the images by operation, apply it to each group, and restore the order."""
    order = choices.argsort(stable=True)
    sizes: list[int] = torch.bincount(choices, minlength=len(names) + 1).tolist()
    sorted_uniforms = uniforms[:, order].split(sizes, dim=1)
    strengths = [parameters(name, severity, group) for name, group in zip(names, sorted_uniforms, strict=False)]
    permutations = copied_to(torch.stack((order, order.argsort())), images.device)
    strength = copied_to(torch.cat([*strengths, sorted_uniforms[-1][0]]), images.device).view(-1, 1, 1, 1)
    result = [
        OPERATIONS[names[index]](group, group_strength) if index < len(names) else group
        for index, (group, group_strength) in enumerate(
            zip(images.index_select(0, permutations[0]).split(sizes), strength.split(sizes), strict=True)
        )
        if sizes[index]
    ]
    return torch.cat(result).index_select(0, permutations[1])


def as_bytes(images: Tensor, value_range: tuple[float, float]) -> Tensor:
    """Return images as uint8; floats are mapped from a range to 0 to 255, and clamped.

    >>> as_bytes(torch.tensor([-1.0, 0.0, 1.0]), (-1, 1))
    tensor([  0, 128, 255], dtype=torch.uint8)
    """
    if images.dtype == torch.uint8:
        return images
    low, high = value_range
    return ((images.float() - low) * (255 / (high - low))).round_().clamp_(0, 255).to(torch.uint8)


def from_bytes(images: Tensor, like: Tensor, value_range: tuple[float, float]) -> Tensor:
    """Return images with values from 0 to 255 in the dtype, value range and memory format of others.

    >>> from_bytes(torch.tensor([0, 255], dtype=torch.uint8), torch.zeros(2), (-1, 1))
    tensor([-1.,  1.])
    """
    if like.dtype == torch.uint8:
        result = images if images.dtype == torch.uint8 else images.round().clamp_(0, 255).to(torch.uint8)
    else:
        low, high = value_range
        # Divided rather than multiplied, so that k / 255 round-trips.
        result = (images.float() * (high - low)).div_(255).add_(low).to(like.dtype)
    if like.ndim == 4 and not like.is_contiguous() and like.is_contiguous(memory_format=torch.channels_last):
        return result.contiguous(memory_format=torch.channels_last)
    return result


def _gray(images: Tensor) -> Tensor:
    """Return the luminance of each pixel, (B, 1, H, W), from 0 to 255; the channel mean if images are not RGB."""
    if images.shape[1] != 3:
        return images.float().mean(1, keepdim=True).floor_()
    red, green, blue = images.int().split(1, 1)
    return (red * _LUMA[0] + green * _LUMA[1] + blue * _LUMA[2] + 0x8000) >> 16


def _blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Interpolate from the base to the images, or extrapolate for a factor above 1; fractions are truncated."""
    values = images.float()
    return values.sub_(base).mul_(factor.clamp(min=0)).add_(base).clamp_(0, 255).to(torch.uint8)


def _shift(images: Tensor, fraction: Tensor, dim: int) -> Tensor:
    """Shift images by a fraction of a side; the border is black."""
    side = images.shape[dim]
    shape = [len(images), 1, 1, 1]
    shape[dim] = side
    pixels = torch.arange(side, device=images.device)
    source = ((fraction * side).trunc().long().view(-1, 1) + pixels).view(shape)
    moved = images.gather(dim, source.clamp(0, side - 1).expand_as(images))
    return moved * ((source >= 0) & (source < side))


def _affine(
    images: Tensor, for_x: Sequence[Tensor | int], for_y: Sequence[Tensor | int], about_center: bool = False
) -> Tensor:
    """Sample each pixel at ``(for_x . (x, y), for_y . (x, y))``, bilinearly; black outside."""
    height, width = images.shape[2:]
    half_x, half_y = (width / 2, height / 2) if about_center else (0.0, 0.0)
    # Pixel centers are at half-integers.
    x = torch.arange(width, device=images.device).add(0.5 - half_x).view(1, 1, -1)
    y = torch.arange(height, device=images.device).add(0.5 - half_y).view(1, -1, 1)
    across, down = ([_flat(group) for group in coefficients] for coefficients in (for_x, for_y))
    source_x = (across[0] * x + across[1] * y + half_x).expand(-1, height, width)
    source_y = (down[0] * x + down[1] * y + half_y).expand(-1, height, width)
    inside = (source_x >= 0) & (source_x < width) & (source_y >= 0) & (source_y < height)
    grid = torch.stack((source_x * (2 / width) - 1, source_y * (2 / height) - 1), dim=-1)
    sampled = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return sampled.add_(_SLACK).to(torch.uint8) * inside.unsqueeze(1)


def _flat(group: Tensor | int) -> Tensor | int:
    return group.view(-1, 1, 1) if isinstance(group, Tensor) else group
