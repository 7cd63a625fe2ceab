"""Validate numbers given by callers: finite, positive, and named in the error message."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from composer._numbers import as_integer, in_unit_interval, real_number

__all__ = ["Floats", "at_least", "checked_times", "finite", "open_unit"]

Floats = npt.NDArray[np.float64]


def finite(argument: str, values: Iterable[object]) -> Floats:
    """Return finite numbers as an array.

    Args:
        argument: Name of the argument, for the message.
        values: The given values.

    Raises:
        TypeError: A value is not a number.
        ValueError: A value is NaN or infinite, or there is none.
    """
    found = [real_number(f"{argument}[{number}]", value) for number, value in enumerate(values)]
    for number, value in enumerate(found):
        if not math.isfinite(value):
            raise ValueError(f"{argument}[{number}] must be finite, but got {value!r}; leave it out, with its pair.")
    if not found:
        raise ValueError(f"{argument} must have at least one value, but is empty.")
    return np.array(found, dtype=np.float64)


def open_unit(argument: str, value: float) -> float:
    """Return ``value`` if it is between 0 and 1, both excluded.

    Args:
        argument: Name of the argument, for the message.
        value: The number to check.

    Raises:
        TypeError: ``value`` is not a number.
        ValueError: ``value`` is outside the interval.
    """
    if in_unit_interval(argument, value) in (0.0, 1.0):
        raise ValueError(f"{argument} must be between 0 and 1 (both excluded), but got {value!r}.")
    return float(value)


def at_least(argument: str, value: object, minimum: int) -> int:
    """Return an integer that is not less than a minimum.

    Args:
        argument: Name of the argument, for the message.
        value: The given value.
        minimum: The least allowed value.

    Raises:
        TypeError: ``value`` is not an integer.
        ValueError: ``value`` is less than ``minimum``.
    """
    number = as_integer(value)
    if number is None:
        raise TypeError(f"{argument} must be an integer, but got {value!r} of type {type(value).__name__}.")
    if number < minimum:
        raise ValueError(f"{argument} must be at least {minimum}, but got {number}.")
    return number


def checked_times(argument: str, times: Sequence[float | None], limits: Sequence[float]) -> list[float | None]:
    """Return the times to a target, None for those not within their limit.

    Args:
        argument: Name of the argument, for the message.
        times: Seconds, each None if the target was not reached.
        limits: Seconds; infinite where no limit was given.

    Raises:
        TypeError: A time is not a number.
        ValueError: A time is not positive and finite, or is missing without a limit.
    """
    checked: list[float | None] = []
    for number, (time, limit) in enumerate(zip(times, limits, strict=True)):
        name = f"{argument}[{number}]"
        if time is None:
            if math.isinf(limit):
                raise ValueError(f"{name} is None (the target was not reached), so limit must say within how long.")
            checked.append(None)
            continue
        seconds = real_number(name, time)
        if not 0 < seconds < math.inf:
            raise ValueError(
                f"{name} must be a positive, finite time, but got {time!r}; for a run that did not reach the target, "
                "give None and a limit."
            )
        checked.append(seconds if seconds <= limit else None)
    return checked
