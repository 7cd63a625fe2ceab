"""The amounts of times: integers, or any finite numbers as fractions of the run."""

from __future__ import annotations

import math
from numbers import Real
from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from composer.core.time import TimeUnit

__all__ = ["checked_amount", "is_number"]


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a number; a bool is not.

    Args:
        value: The value.

    >>> is_number(0.5), is_number(True)
    (True, False)
    """
    return isinstance(value, (int, float, Real)) and not isinstance(value, bool)


def checked_amount(value: object, unit: TimeUnit) -> int | float:
    """Check an amount and convert it to the number type of the unit.

    Args:
        value: The amount.
        unit: Its unit.

    Raises:
        TypeError: It is not a number, or not an integer in a unit other than ``dur``.
        ValueError: It is infinite or NaN.

    >>> from composer.core.time import TimeUnit
    >>> checked_amount(5.0, TimeUnit.BATCH)
    5
    """
    if not is_number(value):
        raise TypeError(f"The value of a Time must be a number, but got {value!r} of type {type(value).__name__}.")
    if not math.isfinite(value):
        raise ValueError(f"The value of a Time must be finite, but got {value!r}.")
    if unit.value == "dur":
        return float(value)
    integer = int(value)
    if integer != value:
        raise TypeError(
            f"A time in {unit.name.lower()} units must be an integer, but got {value!r}. Round it, use a smaller unit "
            "such as 'ba', or give a fraction of the run such as '0.5dur'."
        )
    return integer
