"""How strong an operation is made, as one formula each: of numbers for one image, of tensors for a batch.

Each takes the drawn level, the severity it was drawn under, a coin (0 or 1) and a number in [0, 1), and returns the
parameter of the operation. The levels, from 0 to 10, are those of AugMix (https://arxiv.org/abs/1912.02781).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["NUM_DRAWS", "PARAMETERS", "draw_parameter", "parameters"]

NUM_DRAWS = 3
"""Random numbers in [0, 1) that the strength of one operation takes."""

_LOWEST_LEVEL = 0.1


def _signed(coin: Any) -> Any:
    return 1 - 2 * coin


def _none(level: Any, severity: float, coin: Any, place: Any) -> Any:
    return level


def _posterize(level: Any, severity: float, coin: Any, place: Any) -> Any:
    """Bits kept: 4 to 1."""
    return 4 - _at_most(level * 0.4 // 1, 3)


def _rotate(level: Any, severity: float, coin: Any, place: Any) -> Any:
    """Degrees, whole ones, up to 30."""
    return _signed(coin) * (level * 3 // 1)


def _solarize(level: Any, severity: float, coin: Any, place: Any) -> Any:
    """The value from which on pixels are inverted."""
    return 256 - _at_most(level * 25.6 // 1, 256)


def _shear(level: Any, severity: float, coin: Any, place: Any) -> Any:
    """Pixels of shift for each pixel, up to 0.3."""
    return _signed(coin) * level * 0.03


def _translate(level: Any, severity: float, coin: Any, place: Any) -> Any:
    """Share of the side, up to a third."""
    return _signed(coin) * level / 30


def _factor(level: Any, severity: float, coin: Any, place: Any) -> Any:
    """From 1 to the severity, or from 1 - 0.09 * severity to 1: stronger or weaker, at even odds."""
    return coin * (1 + (severity - 1) * place) + (1 - coin) * (1 - 0.09 * severity * (1 - place))


def _brightness(level: Any, severity: float, coin: Any, place: Any) -> Any:
    """As the others, but what brightens does so by three quarters: white shows nothing."""
    factor = _factor(level, severity, coin, place)
    return factor - 0.25 * factor * ((factor > 1) * 1.0)


def _original(level: Any, severity: float, coin: Any, place: Any) -> Any:
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


def parameters(name: str, severity: float, draws: Any) -> Any:
    """The parameter of an operation, of ``NUM_DRAWS`` random numbers or tensors of them.

    >>> round(parameters("shear_x", 10.0, (1.0, 0.9, 0.0)), 3)
    0.3
    """
    level = _LOWEST_LEVEL + (severity - _LOWEST_LEVEL) * draws[0]
    return PARAMETERS[name](level, severity, (draws[1] < 0.5) * 1.0, draws[2])


def draw_parameter(name: str, severity: float) -> float:
    """Draw the parameter of an operation, from torch's generator of the host.

    >>> draw_parameter("posterize", 1.0)
    4.0
    """
    return parameters(name, severity, torch.rand(NUM_DRAWS).tolist())


def _at_most(value: Any, limit: float) -> Any:
    return value.clamp(max=limit) if isinstance(value, Tensor) else min(value, limit)
