"""Convert logged images and segmentation masks to uint8 arrays, and overlay masks on images."""

from __future__ import annotations

import colorsys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["class_color", "class_maps", "color_mask", "image_arrays", "overlay_mask"]

# The golden angle, as a fraction of the circle: hues of successive classes are far apart, for any number of classes.
_GOLDEN = 0.381966011250105
_CHANNELS = (1, 3, 4)


def image_arrays(images: Any, channels_last: bool = False) -> list[np.ndarray]:
    """Return images as uint8 arrays of shape (H, W, C), where C is 1, 3 or 4.

    Bytes are unchanged. Floats in [0, 1] become 0 to 255. An image of floats beyond that range, such as a normalized
    one, is shifted and scaled to fill the range. NaN is black.

    Args:
        images: One image (H, W), (C, H, W) or a batch (N, C, H, W), as a tensor or array, or a sequence of these.
        channels_last: Whether the channels are the last dimension.

    Raises:
        TypeError: ``images`` has another type.
        ValueError: A shape is not one of these.

    >>> [array.shape for array in image_arrays(torch.rand(2, 3, 8, 6))]
    [(8, 6, 3), (8, 6, 3)]
    >>> image_arrays(torch.tensor([[0.0, 0.5, 1.0]])).pop().ravel().tolist()
    [0, 128, 255]
    """
    if isinstance(images, Sequence) and not isinstance(images, (str, bytes)):
        return [array for image in images for array in image_arrays(image, channels_last)]
    array = _array("images", images)
    if array.ndim == 2:
        array = array[..., None]
    elif array.ndim in (3, 4) and not channels_last:
        array = np.moveaxis(array, -3, -1)
    if array.ndim not in (3, 4) or array.shape[-1] not in _CHANNELS:
        raise ValueError(_bad_shape(tuple(np.shape(images)), channels_last))
    return [_bytes(image) for image in (array if array.ndim == 4 else array[None])]


def class_maps(masks: Mapping[str, Any], num_images: int, channels_last: bool = False) -> dict[str, list[np.ndarray]]:
    """Return segmentation masks by name as arrays of class indices (H, W), one per image.

    Args:
        masks: Masks by name: indices (H, W) or (N, H, W), or scores (N, C, H, W), of which the argmax over classes is
            used; as a tensor or array, or a sequence of (H, W) or (C, H, W).
        num_images: Number of images.
        channels_last: Whether the class scores are in the last dimension.

    Raises:
        TypeError: A mask is not a tensor or array.
        ValueError: A shape is not one of these, or the number of masks differs from that of the images.

    >>> class_maps({"predicted": torch.tensor([[[0, 1, 1]]])}, num_images=1)
    {'predicted': [array([[0, 1, 1]])]}
    """
    maps: dict[str, list[np.ndarray]] = {}
    for name, given in masks.items():
        if isinstance(given, Sequence) and not isinstance(given, (str, bytes)):
            arrays = [_array(f"masks[{name!r}]", mask) for mask in given]
        else:
            array = _array(f"masks[{name!r}]", given)
            arrays = [array] if array.ndim == 2 else list(array)
        if len(arrays) != num_images:
            raise ValueError(
                f"masks[{name!r}] must contain one mask per image, but there are {len(arrays)} masks and "
                f"{num_images} images."
            )
        maps[name] = [_indices(name, array, channels_last) for array in arrays]
    return maps


def class_color(index: int) -> tuple[int, int, int]:
    """Return the color of a class, as red, green and blue from 0 to 255; class 0 is black.

    Args:
        index: The class.

    >>> class_color(0), class_color(1) != class_color(2)
    ((0, 0, 0), True)
    """
    if index == 0:
        return 0, 0, 0
    red, green, blue = colorsys.hsv_to_rgb((index - 1) * _GOLDEN % 1.0, 0.75, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def color_mask(mask: np.ndarray) -> np.ndarray:
    """Return a mask in the colors of its classes, (H, W, 3), uint8.

    Args:
        mask: Class indices, (H, W).

    >>> color_mask(np.array([[0, 1]])).tolist()
    [[[0, 0, 0], [242, 61, 61]]]
    """
    classes, inverse = np.unique(mask, return_inverse=True)
    palette = np.array([class_color(int(index)) for index in classes], dtype=np.uint8)
    return palette[inverse.reshape(mask.shape)]


def overlay_mask(image: np.ndarray, mask: np.ndarray, opacity: float = 0.5) -> np.ndarray:
    """Return an image with the colors of a mask overlaid, (H, W, 3), uint8; class 0 is transparent.

    Args:
        image: Bytes, (H, W, C), where C is 1, 3 or 4; the alpha channel is dropped.
        mask: Class indices, (H, W).
        opacity: Weight of the mask's color, from 0 to 1.

    Raises:
        ValueError: The sizes differ.

    >>> overlay_mask(np.zeros((1, 2, 3), np.uint8), np.array([[0, 1]])).tolist()
    [[[0, 0, 0], [121, 30, 30]]]
    """
    if image.shape[:2] != mask.shape:
        raise ValueError(f"A mask must have the size of its image, {image.shape[:2]}; got {mask.shape}.")
    base = image[..., :3] if image.shape[-1] > 1 else np.repeat(image, 3, axis=-1)
    mixed = np.rint((1 - opacity) * base + opacity * color_mask(mask)).astype(np.uint8)
    return np.where((mask == 0)[..., None], base, mixed)


def _array(argument: str, value: Any) -> np.ndarray:
    if isinstance(value, Tensor):
        value = value.detach()
        return (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).cpu().numpy()
    if isinstance(value, np.ndarray):
        return value
    raise TypeError(f"{argument} must be tensors or arrays, or a sequence of them; got {type(value).__name__}.")


def _bytes(image: np.ndarray) -> np.ndarray:
    """Convert the values of one image to bytes."""
    if image.dtype == np.uint8:
        return np.array(image, order="C")  # a copy: some trackers send it from a thread
    if image.dtype == np.bool_:
        return image.astype(np.uint8) * np.uint8(255)
    scale = 255.0 if np.issubdtype(image.dtype, np.floating) else 1.0
    values = scale * np.nan_to_num(image.astype(np.float64), nan=0.0, posinf=1.0, neginf=0.0)
    low, high = (values.min(), values.max()) if values.size else (0.0, 0.0)
    if low < 0 or high > 255:
        values = (values - low) * (255 / (high - low)) if high > low else np.full_like(values, 127.5)
    return np.rint(values).astype(np.uint8)


def _indices(name: str, mask: np.ndarray, channels_last: bool) -> np.ndarray:
    """Convert one mask to class indices."""
    if mask.ndim == 3:
        axis = -1 if channels_last else 0
        mask = mask.take(0, axis) if mask.shape[axis] == 1 else mask.argmax(axis)
    if mask.ndim != 2:
        raise ValueError(
            f"masks[{name!r}] must have the shape (N, H, W) or (N, C, H, W); one of its masks is {mask.shape}."
        )
    return mask.astype(np.int64)


def _bad_shape(shape: tuple[int, ...], channels_last: bool) -> str:
    expected = "(H, W), (H, W, C) or (N, H, W, C)" if channels_last else "(H, W), (C, H, W) or (N, C, H, W)"
    hint = ""
    if not channels_last and len(shape) in (3, 4) and shape[-1] in _CHANNELS:
        hint = " For channels in the last dimension pass channels_last=True."
    elif channels_last and len(shape) in (3, 4) and shape[-3] in _CHANNELS:
        hint = " For channels before height and width pass channels_last=False."
    return f"images must have the shape {expected} with 1, 3 or 4 channels C; got {shape}.{hint}"
