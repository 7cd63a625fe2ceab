"""Operations on PIL images, each of random strength up to a severity, for AugMix and RandAugment.

The strength is a level sampled uniformly from [0.1, severity]; level 10 is the strongest. Random values come from
torch's CPU generator, which DataLoaders seed in each worker.

Paper: AugMix, Hendrycks et al. 2020, https://arxiv.org/abs/1912.02781
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from composer._lazy import import_extra
from composer._text import did_you_mean
from composer.algorithms.utils._levels import sample_parameter

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = [
    "AugmentationFn",
    "augmentation_sets",
    "autocontrast",
    "brightness",
    "brightness_original",
    "color",
    "color_original",
    "contrast",
    "contrast_original",
    "equalize",
    "operations_of",
    "posterize",
    "rotate",
    "sharpness",
    "sharpness_original",
    "shear_x",
    "shear_y",
    "solarize",
    "translate_x",
    "translate_y",
]

AugmentationFn: TypeAlias = "Callable[[Image, float], Image]"
"""An operation: ``(PIL image, severity) -> PIL image``."""


def autocontrast(pil_img: Image, level: float = 0.0) -> Image:
    """Stretch the values of each channel to the full range.

    Args:
        pil_img: The image.
        level: Not used.

    >>> from PIL import Image
    >>> image = Image.linear_gradient("L").point(lambda value: value // 2)
    >>> image.getextrema(), autocontrast(image).getextrema()
    ((0, 127), (0, 255))
    """
    return _pil("ImageOps").autocontrast(pil_img)


def equalize(pil_img: Image, level: float = 0.0) -> Image:
    """Equalize the histogram of each channel.

    Args:
        pil_img: The image.
        level: Not used.

    >>> from PIL import Image
    >>> equalize(Image.new("L", (2, 2), 7)).getpixel((0, 0))
    7
    """
    return _pil("ImageOps").equalize(pil_img)


def posterize(pil_img: Image, level: float) -> Image:
    """Keep the 4 to 1 most significant bits of each value.

    Args:
        pil_img: The image.
        level: The severity; one bit fewer at 2.5, 5 and 7.5.

    >>> from PIL import Image
    >>> posterize(Image.new("L", (1, 1), 255), 1.0).getpixel((0, 0))
    240
    """
    return _pil("ImageOps").posterize(pil_img, int(sample_parameter("posterize", level)))


def rotate(pil_img: Image, level: float) -> Image:
    """Rotate the image about its center, in either direction.

    Args:
        pil_img: The image.
        level: The severity; 30 degrees at 10.

    >>> from PIL import Image
    >>> rotate(Image.new("L", (5, 5), 9), 10.0).getpixel((2, 2))
    9
    """
    degrees = sample_parameter("rotate", level)
    return pil_img.copy() if degrees == 0 else pil_img.rotate(degrees, resample=_pil("Image").Resampling.BILINEAR)


def solarize(pil_img: Image, level: float) -> Image:
    """Invert the values above a threshold.

    Args:
        pil_img: The image.
        level: The severity; at 10 everything is inverted.

    >>> from PIL import Image
    >>> solarize(Image.new("L", (1, 1), 3), 5.0).getpixel((0, 0))
    3
    """
    return _pil("ImageOps").solarize(pil_img, int(sample_parameter("solarize", level)))


def shear_x(pil_img: Image, level: float) -> Image:
    """Shear the image horizontally, in either direction.

    Args:
        pil_img: The image.
        level: The severity; 0.3 pixels per row at 10.

    >>> from PIL import Image
    >>> shear_x(Image.new("L", (5, 5), 9), 1.0).getpixel((2, 0))
    9
    """
    return _affine(pil_img, (1, sample_parameter("shear_x", level), 0, 0, 1, 0))


def shear_y(pil_img: Image, level: float) -> Image:
    """Shear the image vertically, in either direction.

    Args:
        pil_img: The image.
        level: The severity; 0.3 pixels per column at 10.

    >>> from PIL import Image
    >>> shear_y(Image.new("L", (5, 5), 9), 1.0).getpixel((0, 2))
    9
    """
    return _affine(pil_img, (1, 0, 0, sample_parameter("shear_y", level), 1, 0))


def translate_x(pil_img: Image, level: float) -> Image:
    """Shift the image left or right, by integer pixels; the border is black.

    Args:
        pil_img: The image.
        level: The severity; a third of the width at 10.

    >>> from PIL import Image
    >>> translate_x(Image.new("L", (5, 5), 9), 10.0).getpixel((2, 0))
    9
    """
    return _shift(pil_img, int(sample_parameter("translate_x", level) * pil_img.size[0]), 0)


def translate_y(pil_img: Image, level: float) -> Image:
    """Shift the image up or down, by integer pixels; the border is black.

    Args:
        pil_img: The image.
        level: The severity; a third of the height at 10.

    >>> from PIL import Image
    >>> translate_y(Image.new("L", (5, 5), 9), 10.0).getpixel((0, 2))
    9
    """
    return _shift(pil_img, 0, int(sample_parameter("translate_y", level) * pil_img.size[1]))


def color(pil_img: Image, level: float) -> Image:
    """Increase or decrease color saturation; a factor of 0 is gray.

    Args:
        pil_img: The image.
        level: The severity; the factor is sampled from [1, level] or from [1 - 0.09 * level, 1].

    >>> from PIL import Image
    >>> color(Image.new("RGB", (1, 1), (9, 9, 9)), 5.0).getpixel((0, 0))
    (9, 9, 9)
    """
    return _enhance("color", "Color", pil_img, level)


def color_original(pil_img: Image, level: float) -> Image:
    """Increase or decrease color saturation, as in the paper.

    Args:
        pil_img: The image.
        level: The severity; the factor is 0.18 times the sampled level plus 0.1.

    >>> from PIL import Image
    >>> color_original(Image.new("RGB", (1, 1), (9, 9, 9)), 5.0).getpixel((0, 0))
    (9, 9, 9)
    """
    return _enhance("color_original", "Color", pil_img, level)


def contrast(pil_img: Image, level: float) -> Image:
    """Increase or decrease contrast: move values away from their mean, or towards it.

    Args:
        pil_img: The image.
        level: The severity; the factor is sampled from [1, level] or from [1 - 0.09 * level, 1].

    >>> from PIL import Image
    >>> contrast(Image.new("L", (1, 1), 9), 5.0).getpixel((0, 0))
    9
    """
    return _enhance("contrast", "Contrast", pil_img, level)


def contrast_original(pil_img: Image, level: float) -> Image:
    """Increase or decrease contrast, as in the paper.

    Args:
        pil_img: The image.
        level: The severity; the factor is 0.18 times the sampled level plus 0.1.

    >>> from PIL import Image
    >>> contrast_original(Image.new("L", (1, 1), 9), 5.0).getpixel((0, 0))
    9
    """
    return _enhance("contrast_original", "Contrast", pil_img, level)


def brightness(pil_img: Image, level: float) -> Image:
    """Increase or decrease brightness: multiply the values.

    Args:
        pil_img: The image.
        level: The severity; the factor is sampled from [1, level] or from [1 - 0.09 * level, 1], and factors above 1
            are multiplied by 0.75.

    >>> from PIL import Image
    >>> brightness(Image.new("L", (1, 1), 0), 5.0).getpixel((0, 0))
    0
    """
    return _enhance("brightness", "Brightness", pil_img, level)


def brightness_original(pil_img: Image, level: float) -> Image:
    """Increase or decrease brightness, as in the paper.

    Args:
        pil_img: The image.
        level: The severity; the factor is 0.18 times the sampled level plus 0.1.

    >>> from PIL import Image
    >>> brightness_original(Image.new("L", (1, 1), 0), 5.0).getpixel((0, 0))
    0
    """
    return _enhance("brightness_original", "Brightness", pil_img, level)


def sharpness(pil_img: Image, level: float) -> Image:
    """Sharpen or blur the image.

    Args:
        pil_img: The image.
        level: The severity; the factor is sampled from [1, level] or from [1 - 0.09 * level, 1]; 0 is blurred.

    >>> from PIL import Image
    >>> sharpness(Image.new("L", (3, 3), 9), 5.0).getpixel((1, 1))
    9
    """
    return _enhance("sharpness", "Sharpness", pil_img, level)


def sharpness_original(pil_img: Image, level: float) -> Image:
    """Sharpen or blur the image, as in the paper.

    Args:
        pil_img: The image.
        level: The severity; the factor is 0.18 times the sampled level plus 0.1.

    >>> from PIL import Image
    >>> sharpness_original(Image.new("L", (3, 3), 9), 5.0).getpixel((1, 1))
    9
    """
    return _enhance("sharpness_original", "Sharpness", pil_img, level)


_SAFE: tuple[AugmentationFn, ...] = (
    autocontrast,
    equalize,
    posterize,
    rotate,
    solarize,
    shear_x,
    shear_y,
    translate_x,
    translate_y,
)

augmentation_sets: dict[str, list[AugmentationFn]] = {
    "all": [*_SAFE, color, contrast, brightness, sharpness],
    # Without the operations that resemble the corruptions of ImageNet-C, which measures robustness.
    "safe": [*_SAFE],
    "original": [*_SAFE, color_original, contrast_original, brightness_original, sharpness_original],
}
"""The sets of operations by name: ``"all"``, ``"safe"`` (without color, contrast, brightness and sharpness) and
``"original"`` (with the factors of the paper)."""


def operations_of(augmentation_set: str | Sequence[AugmentationFn]) -> list[AugmentationFn]:
    """Return the operations of a set.

    Args:
        augmentation_set: The name of a set, or operations.

    Raises:
        KeyError: ``augmentation_set`` is an unknown name.
        ValueError: The sequence is empty, or contains an object that is not callable.

    >>> len(operations_of("all")), operations_of([rotate]) == [rotate]
    (13, True)
    """
    if isinstance(augmentation_set, str):
        if augmentation_set not in augmentation_sets:
            raise KeyError(
                f"augmentation_set must be one of {', '.join(map(repr, augmentation_sets))}, or a list of functions, "
                f"but got {augmentation_set!r}.{did_you_mean(augmentation_set, augmentation_sets)}"
            )
        return augmentation_sets[augmentation_set]
    operations = list(augmentation_set)
    if not operations or not all(map(callable, operations)):
        raise ValueError(f"augmentation_set must contain functions (image, severity) -> image; got {operations!r}.")
    return operations


def _pil(module: str) -> Any:
    return import_extra(f"PIL.{module}", "vision", "Augmenting PIL images", install="pillow")


def _affine(image: Image, matrix: tuple[float, ...]) -> Image:
    """Sample each pixel at the coordinates that the matrix maps it to; black outside."""
    pil = _pil("Image")
    return image.transform(image.size, pil.Transform.AFFINE, matrix, resample=pil.Resampling.BILINEAR)


def _shift(image: Image, right: int, down: int) -> Image:
    """Shift the image left and up by some pixels; cropping beyond the edges fills with black."""
    width, height = image.size
    return image.crop((right, down, right + width, down + height))


def _enhance(name: str, enhancer: str, image: Image, level: float) -> Image:
    # Extreme severities would give negative factors, which invert.
    factor = max(sample_parameter(name, level), 0.0)
    return getattr(_pil("ImageEnhance"), enhancer)(image).enhance(factor)
