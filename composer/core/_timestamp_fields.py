"""The fields of a Timestamp, and the conversion of user input to counters and microseconds."""

from __future__ import annotations

import datetime
from typing import Any

from composer.core.time import Time, TimeUnit

MICROSECOND = datetime.timedelta(microseconds=1)

# Every field in the order of the constructor, and its unit. Clocks hold integer microseconds, the resolution of a
# timedelta, so that saving and loading gives an equal timestamp.
UNITS = {
    "iteration": TimeUnit.ITERATION,
    "epoch": TimeUnit.EPOCH,
    "batch": TimeUnit.BATCH,
    "sample": TimeUnit.SAMPLE,
    "token": TimeUnit.TOKEN,
    "epoch_in_iteration": TimeUnit.EPOCH,
    "token_in_iteration": TimeUnit.TOKEN,
    "batch_in_epoch": TimeUnit.BATCH,
    "sample_in_epoch": TimeUnit.SAMPLE,
    "token_in_epoch": TimeUnit.TOKEN,
    "total_wct": TimeUnit.SECOND,
    "iteration_wct": TimeUnit.SECOND,
    "epoch_wct": TimeUnit.SECOND,
    "batch_wct": TimeUnit.SECOND,
}


def as_field(name: str, value: Any) -> int:
    """Convert ``value`` for the field ``name``; a clock may be None, which is zero."""
    unit = UNITS[name]
    if unit is not TimeUnit.SECOND:
        return as_count(name, value, unit)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, (int, float, datetime.timedelta)):
        raise TypeError(f"{name} must be a timedelta or a number of seconds, but got {value!r}.")
    amount = as_microseconds(value)
    if amount < 0:
        raise ValueError(f"{name} must not be negative, but got {value!r}.")
    return amount


def as_count(name: str, value: Any, unit: TimeUnit) -> int:
    """Convert a number, a time or a time string to a count."""
    if type(value) is int and value >= 0:
        return value
    try:
        time = Time.from_input(value, unit)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}={value!r} is not valid. {error}") from None
    if time.unit is not unit:
        raise ValueError(f"{name} counts in '{unit}', but got '{time}'. Pass a number or a time in that unit.")
    if time.value < 0:
        raise ValueError(f"{name} must not be negative, but got {value!r}.")
    return int(time)


def as_microseconds(duration: datetime.timedelta | float) -> int:
    """Convert a duration in seconds, or a timedelta, to integer microseconds."""
    return duration // MICROSECOND if isinstance(duration, datetime.timedelta) else round(duration * 1_000_000)
