"""Strengths of augmentation operations as formulas, for scalars (one image) or tensors (a batch).

Each takes the sampled level, the severity it was sampled with, a coin flip (0 or 1) and a value in [0, 1), and returns
the parameter of the operation. The levels, from 0 to 10, are those of AugMix (https://arxiv.org/abs/1912.02781).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["NUM_UNIFORMS", "PARAMETERS", "parameters", "sample_parameter"]

NUM_UNIFORMS = 3
"""Number of random values in [0, 1) that determine the strength of one operation."""

_LOWEST_LEVEL = 0.1


def _signed(coin: Any) -> Any:
    return 1 - 2 * coin


def _none(level: Any, severity: float, coin: Any, position: Any) -> Any:
    return level


def _posterize(level: Any, severity: float, coin: Any, position: Any) -> Any:
    """Number of bits to keep: 4 to 1."""
    return 4 - _at_most(level * 0.4 // 1, 3)


def _rotate(level: Any, severity: float, coin: Any, position: Any) -> Any:
    """Integer degrees, up to 30."""
    return _signed(coin) * (level * 3 // 1)


def _solarize(level: Any, severity: float, coin: Any, position: Any) -> Any:
    """The threshold above which pixels are inverted."""
    return 256 - _at_most(level * 25.6 // 1, 256)


def _shear(level: Any, severity: float, coin: Any, position: Any) -> Any:
    """Shift in pixels per pixel, up to 0.3."""
    return _signed(coin) * level * 0.03


def _translate(level: Any, severity: float, coin: Any, position: Any) -> Any:
    """Fraction of the side, up to a third."""
    return _signed(coin) * level / 30


def _factor(level: Any, severity: float, coin: Any, position: Any) -> Any:
    """From 1 to the severity, or from 1 - 0.09 * severity to 1: stronger or weaker, with equal probability."""
    return coin * (1 + (severity - 1) * position) + (1 - coin) * (1 - 0.09 * severity * (1 - position))


def _brightness(level: Any, severity: float, coin: Any, position: Any) -> Any:
    """As for the others, but brightening is scaled by 0.75: white images show nothing."""
    factor = _factor(level, severity, coin, position)
    return factor - 0.25 * factor * ((factor > 1) * 1.0)


def _original(level: Any, severity: float, coin: Any, position: Any) -> Any:
    """The factor of the paper: from 0.1 to 1.9."""
    return level * 0.18 + 0.1


PARAMETERS: dict[str, Callable[[Any, float, Any, Any], Any]] = {
    "autocontrast": _none,
    "equalize": _none,
    "posterize": _posterize,
    "rotate": _rotate,
    "solarize": _solarize,
    "shear_x": _shear,
    "shear_y": _shear,
    "translate_x": _translate,
    "translate_y": _translate,
    "color": _factor,
    "color_original": _original,
    "contrast": _factor,
    "contrast_original": _original,
    "brightness": _brightness,
    "brightness_original": _original,
    "sharpness": _factor,
    "sharpness_original": _original,
}


def parameters(name: str, severity: float, uniforms: Any) -> Any:
    """Return the parameter of an operation from ``NUM_UNIFORMS`` random values or tensors.

    >>> round(parameters("shear_x", 10.0, (1.0, 0.9, 0.0)), 3)
    0.3
    """
    level = _LOWEST_LEVEL + (severity - _LOWEST_LEVEL) * uniforms[0]
    return PARAMETERS[name](level, severity, (uniforms[1] < 0.5) * 1.0, uniforms[2])


def sample_parameter(name: str, severity: float) -> float:
    """Sample the parameter of an operation, from torch's CPU generator.

    >>> sample_parameter("posterize", 1.0)
    4.0
    """
    return parameters(name, severity, torch.rand(NUM_UNIFORMS).tolist())


def _at_most(value: Any, limit: float) -> Any:
    return value.clamp(max=limit) if isinstance(value, Tensor) else min(value, limit)
