"""Convert images between PIL and tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from composer._lazy import import_extra

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["image_as_type", "is_pillow_image", "map_pillow_function"]


def is_pillow_image(image: Any) -> bool:
    """Return whether an object is a PIL image, without importing PIL.

    Args:
        image: Anything.

    >>> is_pillow_image(torch.zeros(3, 4, 4))
    False
    """
    return any(f"{cls.__module__}.{cls.__name__}" == "PIL.Image.Image" for cls in type(image).__mro__)


def image_as_type(image: Image | Tensor, typ: type) -> Any:
    """Convert one image between PIL and tensors.

    Args:
        image: A PIL image, or a tensor of shape (C, H, W) or (H, W): uint8, or floats from 0 to 1.
        typ: ``PIL.Image.Image`` or ``torch.Tensor``. Tensors are returned as floats from 0 to 1, (C, H, W).

    Raises:
        TypeError: The image, or ``typ``, has another type.
        ValueError: The tensor is not one image.

    >>> from PIL import Image
    >>> picture = image_as_type(torch.tensor([[[0.0, 0.2]]]), Image.Image)
    >>> picture.size, picture.getpixel((1, 0)), image_as_type(picture, Tensor)
    ((2, 1), 51, tensor([[[0.0000, 0.2000]]]))
    """
    is_tensor = isinstance(image, Tensor)
    if not is_tensor and not is_pillow_image(image):
        raise TypeError(f"image must be a PIL image or a tensor, but it is of type {type(image).__name__}.")
    to_tensor = isinstance(typ, type) and issubclass(typ, Tensor)
    if not to_tensor and not (isinstance(typ, type) and f"{typ.__module__}.{typ.__name__}" == "PIL.Image.Image"):
        raise TypeError(f"typ must be PIL.Image.Image or torch.Tensor, but got {typ!r}.")
    if to_tensor:
        return image if is_tensor else _as_bytes(image).float().div_(255)
    return _as_pillow(image) if is_tensor else image


def map_pillow_function(f_pil: Callable[[Any], Any], imgs: Image | Tensor) -> Any:
    """Apply a function of one PIL image to an image or to each image of a batch.

    Tensors are moved to the CPU and processed image by image, which is slow.

    Args:
        f_pil: ``(PIL image) -> PIL image``, of the same size for all images of a batch.
        imgs: A PIL image, or a tensor of shape (C, H, W) or (B, C, H, W): uint8, or floats from 0 to 1.

    Returns:
        The same type as the input: a PIL image, or a tensor of the same dtype, on the same device.

    Raises:
        TypeError: ``imgs`` has another type.
        ValueError: The tensor has another number of dimensions.

    >>> map_pillow_function(lambda image: image.rotate(180), torch.tensor([[[1, 2]]], dtype=torch.uint8))
    tensor([[[2, 1]]], dtype=torch.uint8)
    """
    if is_pillow_image(imgs):
        return f_pil(imgs)
    if not isinstance(imgs, Tensor):
        raise TypeError(f"imgs must be a PIL image or a tensor, but it is of type {type(imgs).__name__}.")
    if imgs.ndim == 4:
        return torch.stack([map_pillow_function(f_pil, image) for image in imgs])
    made = _as_bytes(f_pil(_as_pillow(imgs)))
    made = made.to(imgs.dtype).div_(255) if imgs.is_floating_point() else made.to(imgs.dtype)
    return made.to(imgs.device)


def _as_bytes(image: Any) -> Tensor:
    """Return the pixels of a PIL image, (C, H, W), uint8."""
    numpy = import_extra("numpy", "vision", "A PIL image as a tensor")
    if image.mode in ("1", "P"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    pixels = torch.from_numpy(numpy.array(image))
    return pixels.unsqueeze(0) if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def _as_pillow(image: Tensor) -> Any:
    """Return a tensor as a PIL image of mode L, RGB or RGBA."""
    if image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[0] not in (1, 3, 4)):
        raise ValueError(
            f"A PIL image requires a tensor of shape (H, W) or (C, H, W) with 1, 3 or 4 channels, but got the shape "
            f"{tuple(image.shape)}."
        )
    pillow = import_extra("PIL.Image", "vision", "A tensor as a PIL image", install="pillow")
    if image.is_floating_point():
        image = image.detach().mul(255).round_().clamp_(0, 255)
    pixels = image.to("cpu", torch.uint8)
    if pixels.ndim == 3:
        pixels = pixels[0] if pixels.shape[0] == 1 else pixels.permute(1, 2, 0)
    return pillow.fromarray(pixels.contiguous().numpy())
