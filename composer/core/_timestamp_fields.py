"""The fields of a Timestamp, and the conversion of user input to counters and microseconds."""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

from composer.core.time import Time, TimeUnit

MICROSECOND = datetime.timedelta(microseconds=1)


class Fields(NamedTuple):
    """The values of a timestamp: counters, and clocks in integer microseconds.

    Microseconds are the resolution of a timedelta, so that saving and loading gives an equal timestamp. The fields are
    in the order of the arguments of :class:`.Timestamp`.
    """

    iteration: int
    epoch: int
    batch: int
    sample: int
    token: int
    epoch_in_iteration: int
    token_in_iteration: int
    batch_in_epoch: int
    sample_in_epoch: int
    token_in_epoch: int
    total_wct: int
    iteration_wct: int
    epoch_wct: int
    batch_wct: int


_CLOCKS = {"total_wct", "iteration_wct", "epoch_wct", "batch_wct"}

# The unit of every field, in their order.
UNITS = {name: TimeUnit.SECOND if name in _CLOCKS else TimeUnit(name.partition("_in_")[0]) for name in Fields._fields}


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
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(f"{name}={value!r} is not valid. {error}") from None
    if time.unit is not unit:
        raise ValueError(f"{name} counts in '{unit}', but got '{time}'. Pass a number or a time in that unit.")
    if time.value < 0:
        raise ValueError(f"{name} must not be negative, but got {value!r}.")
    return int(time)


def as_microseconds(duration: datetime.timedelta | float) -> int:
    """Convert a duration in seconds, or a timedelta, to integer microseconds."""
    return duration // MICROSECOND if isinstance(duration, datetime.timedelta) else round(duration * 1_000_000)
