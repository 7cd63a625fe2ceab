"""Transforms of an image together with the classes of its pixels."""

from __future__ import annotations

from typing import Any

import torch

from composer._lazy import import_extra
from composer._text import positive

__all__ = ["ForEvaluation", "ForTraining"]

_TRIALS = 10
_MOST_OF_ONE_CLASS = 0.75
# Brightness, contrast and saturation vary by up to this share of themselves, each in half of the images.
_COLOUR = 0.5


class ForEvaluation:
    """Resizes image and annotation to one size.

    Args:
        size: Side in pixels.

    >>> from PIL import Image
    >>> image, annotation = ForEvaluation(8)(Image.new("RGB", (20, 10)), Image.new("L", (20, 10)))
    >>> image.size, annotation.size
    ((8, 8), (8, 8))
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Any, annotation: Any) -> tuple[Any, Any]:
        return _resized(image, annotation, (self.size, self.size))


class ForTraining:
    """Resizes, crops, mirrors and colours at random; what is smaller than the crop is padded, without a class.

    Args:
        base_size: Side in pixels that is multiplied by the factor.
        min_scale: The least factor.
        max_scale: The greatest factor.
        size: Side of the crop in pixels.

    Raises:
        ValueError: A size is not positive, or the factors are not in order.

    >>> from PIL import Image
    >>> image, annotation = ForTraining(8, 0.5, 2.0, 12)(
    ...     Image.new("RGB", (20, 10)), Image.new("L", (20, 10))
    ... )
    >>> image.size, annotation.size
    ((12, 12), (12, 12))
    """

    def __init__(self, base_size: int, min_scale: float, max_scale: float, size: int) -> None:
        self.base_size, self.size = positive("base_size", base_size), positive("final_size", size)
        self.min_scale, self.max_scale = positive("min_resize_scale", min_scale), max_scale
        if max_scale < min_scale:
            raise ValueError(
                f"max_resize_scale must not be below min_resize_scale, {min_scale!r}, but is {max_scale!r}."
            )

    def __call__(self, image: Any, annotation: Any) -> tuple[Any, Any]:
        # Resized so that the shorter side is a random multiple of the base.
        scale = self.min_scale + _uniform() * (self.max_scale - self.min_scale)
        factor = scale * self.base_size / min(image.size)
        image, annotation = _resized(image, annotation, tuple(max(1, round(side * factor)) for side in image.size))
        box = self._box(annotation)
        image, annotation = image.crop(box), annotation.crop(box)
        if _uniform() < 0.5:
            image, annotation = _mirrored(image), _mirrored(annotation)
        image = _coloured(image)
        return self._padded(image), self._padded(annotation)

    def _box(self, annotation: Any) -> tuple[int, int, int, int]:
        """Where to crop: a place at which no class has most of the pixels, if one is found soon."""
        box = (0, 0, 0, 0)
        for _ in range(_TRIALS):
            left, top = (int(_uniform() * (max(side - self.size, 0) + 1)) for side in annotation.size)
            width, height = (min(side, self.size) for side in annotation.size)
            box = left, top, left + width, top + height
            # Class 0 is none.
            counts = annotation.crop(box).convert("L").histogram()[1:]
            if sum(count > 0 for count in counts) > 1 and max(counts) < _MOST_OF_ONE_CLASS * sum(counts):
                break
        return box

    def _padded(self, image: Any) -> Any:
        whole = _pil("Image").new(image.mode, (self.size, self.size))
        whole.paste(image, (0, 0))
        return whole


def _resized(image: Any, annotation: Any, size: tuple[int, ...]) -> tuple[Any, Any]:
    resampling = _pil("Image").Resampling
    # Classes have no middle.
    return image.resize(size, resampling.BILINEAR), annotation.resize(size, resampling.NEAREST)


def _mirrored(image: Any) -> Any:
    return image.transpose(_pil("Image").Transpose.FLIP_LEFT_RIGHT)


def _coloured(image: Any) -> Any:
    enhance = _pil("ImageEnhance")
    for kind in (enhance.Brightness, enhance.Contrast, enhance.Color):
        if _uniform() < 0.5:
            image = kind(image).enhance(1 + (2 * _uniform() - 1) * _COLOUR)
    return image


def _pil(module: str) -> Any:
    return import_extra(f"PIL.{module}", "vision", "build_ade20k_dataloader")


def _uniform() -> float:
    # torch's generator is the one that a loader's workers seed for each batch.
    return float(torch.rand(()))
