"""Joint transforms of an image and its segmentation mask: resize, random crop, flip, color jitter, padding."""

from __future__ import annotations

from typing import Any

import torch

from composer._lazy import import_extra
from composer._numbers import positive, whole_number

__all__ = ["EvalTransform", "TrainTransform"]

_TRIALS = 10
_MOST_OF_ONE_CLASS = 0.75
# Brightness, contrast and saturation vary by up to this fraction, each in half of the images.
_COLOR_JITTER = 0.5


class EvalTransform:
    """Resize image and annotation to a fixed size.

    Args:
        size: Side in pixels.

    >>> from PIL import Image
    >>> image, annotation = EvalTransform(8)(Image.new("RGB", (20, 10)), Image.new("L", (20, 10)))
    >>> image.size, annotation.size
    ((8, 8), (8, 8))
    """

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, image: Any, annotation: Any) -> tuple[Any, Any]:
        return _resized(image, annotation, (self.size, self.size))


class TrainTransform:
    """Random resize, crop, horizontal flip and color jitter; images smaller than the crop are padded with class 0.

    Args:
        base_size: Side in pixels, multiplied by the random factor.
        min_scale: The smallest factor.
        max_scale: The largest factor.
        size: Side of the crop in pixels.

    Raises:
        ValueError: A size is not positive, or ``max_scale`` is below ``min_scale``.

    >>> from PIL import Image
    >>> image, annotation = TrainTransform(8, 0.5, 2.0, 12)(
    ...     Image.new("RGB", (20, 10)), Image.new("L", (20, 10))
    ... )
    >>> image.size, annotation.size
    ((12, 12), (12, 12))
    """

    def __init__(self, base_size: int, min_scale: float, max_scale: float, size: int) -> None:
        self.base_size = whole_number("base_size", base_size, minimum=1)
        self.size = whole_number("final_size", size, minimum=1)
        self.min_scale, self.max_scale = positive("min_resize_scale", min_scale), max_scale
        if max_scale < min_scale:
            raise ValueError(
                f"max_resize_scale must not be below min_resize_scale, {min_scale!r}, but is {max_scale!r}."
            )

    def __call__(self, image: Any, annotation: Any) -> tuple[Any, Any]:
        # Resize so that the shorter side is a random multiple of the base size.
        scale = self.min_scale + _uniform() * (self.max_scale - self.min_scale)
        factor = scale * self.base_size / min(image.size)
        image, annotation = _resized(image, annotation, tuple(max(1, round(side * factor)) for side in image.size))
        box = self._box(annotation)
        image, annotation = image.crop(box), annotation.crop(box)
        if _uniform() < 0.5:
            image, annotation = _flipped(image), _flipped(annotation)
        image = _jittered(image)
        return self._padded(image), self._padded(annotation)

    def _box(self, annotation: Any) -> tuple[int, int, int, int]:
        """Return a random crop box in which no class dominates, or the last one tried."""
        box = (0, 0, 0, 0)
        for _ in range(_TRIALS):
            left, top = (int(_uniform() * (max(side - self.size, 0) + 1)) for side in annotation.size)
            width, height = (min(side, self.size) for side in annotation.size)
            box = left, top, left + width, top + height
            # Class 0 means unlabeled.
            counts = annotation.crop(box).convert("L").histogram()[1:]
            if sum(count > 0 for count in counts) > 1 and max(counts) < _MOST_OF_ONE_CLASS * sum(counts):
                break
        return box

    def _padded(self, image: Any) -> Any:
        padded = _pil("Image").new(image.mode, (self.size, self.size))
        padded.paste(image, (0, 0))
        return padded


def _resized(image: Any, annotation: Any, size: tuple[int, ...]) -> tuple[Any, Any]:
    resampling = _pil("Image").Resampling
    # Class indices cannot be interpolated.
    return image.resize(size, resampling.BILINEAR), annotation.resize(size, resampling.NEAREST)


def _flipped(image: Any) -> Any:
    return image.transpose(_pil("Image").Transpose.FLIP_LEFT_RIGHT)


def _jittered(image: Any) -> Any:
    enhance = _pil("ImageEnhance")
    for enhancer in (enhance.Brightness, enhance.Contrast, enhance.Color):
        if _uniform() < 0.5:
            image = enhancer(image).enhance(1 + (2 * _uniform() - 1) * _COLOR_JITTER)
    return image


def _pil(module: str) -> Any:
    return import_extra(f"PIL.{module}", "vision", "build_ade20k_dataloader")


def _uniform() -> float:
    # torch's global generator, which DataLoader workers seed.
    return float(torch.rand(()))
