"""Training durations such as "10ep", "500ba" or "1h30m": the Time class, its seven units, and time strings."""

from __future__ import annotations

import datetime
import re
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from types import GenericAlias
from typing import TYPE_CHECKING, Final

from composer._text import did_you_mean
from composer.core._time_amounts import checked_amount, is_number
from composer.core._time_strings import UNITS, either, in_words, seconds_of, wall_clock

if TYPE_CHECKING:
    from composer.core.timestamp import Timestamp

__all__ = ["COUNTED_UNITS", "Time", "TimeUnit", "Timestamp", "ensure_time"]

_AMOUNT = re.compile(r"([+-]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:e[+-]?\d+)?)\s*([a-z]*)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"\. (?=[A-Z])")


def __getattr__(name: str) -> object:
    """Import ``Timestamp`` lazily, since its module imports this one."""
    if name == "Timestamp":
        from composer.core.timestamp import Timestamp

        return Timestamp
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _NotATimeError(TypeError, RuntimeError):
    """The input is neither a time, a string nor a number. Scripts catch either of the two base classes."""


class TimeUnit(StrEnum):
    """The unit of a :class:`Time`; the value is the suffix in time strings.

    A unit is accepted by its value, its name or its plural, in any case.

    Raises:
        ValueError: The unit is unknown.

    >>> TimeUnit("ba") is TimeUnit("BATCH") is TimeUnit("batches")
    True
    """

    ITERATION = "iter"
    EPOCH = "ep"
    BATCH = "ba"
    SAMPLE = "sp"
    TOKEN = "tok"
    DURATION = "dur"
    SECOND = "sec"

    @classmethod
    def _missing_(cls, value: object) -> TimeUnit | None:
        if not isinstance(value, str):
            return None
        spellings = {unit.value: unit for unit in cls}
        spellings |= {unit.name.lower() + plural: unit for unit in cls for plural in ("", "s")}
        spellings |= {"batches": cls.BATCH, "secs": cls.SECOND}
        key = value.strip().lower()
        if key not in spellings:
            units = ", ".join(f"{unit.value!r} ({unit.name.lower()})" for unit in cls)
            hint = UNITS.get(key) or did_you_mean(key, spellings)
            raise ValueError(f"{value!r} is not a unit of time.{hint} The units are {units}; or write '1h30m'.")
        return spellings[key]


# Reading a member off an enum class costs more than the comparisons that use this one.
_DURATION: Final = TimeUnit.DURATION
# What a timestamp counts; a fraction of the run is no amount of time by itself.
COUNTED_UNITS: Final = tuple(unit for unit in TimeUnit if unit is not TimeUnit.DURATION)


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class Time:
    """A duration of training in one unit: 10 epochs, 500 batches, half of the run.

    Two times of the same unit add, subtract and compare. A number combined with a time has the unit of that time, and a
    string is parsed. ``time / time`` is a fraction (unit ``dur``), and a time multiplied by a fraction is a time:
    ``max_duration * "0.5dur"``. Multiplied or divided by a number, a time keeps its unit. Results are truncated towards
    zero to integers, except for fractions.

    Args:
        value: The amount: an integer, or any finite number if the unit is ``dur``.
        unit: The unit, as a :class:`TimeUnit` or one of its names.

    Raises:
        TypeError: ``value`` is not a number, or not an integer in a unit other than ``dur``.
        ValueError: ``value`` is infinite or NaN, or the unit is unknown.

    >>> Time(10, "epoch")
    Time(10, TimeUnit.EPOCH)
    >>> Time.from_timestring("1h30m") + "30sec"
    Time(5430, TimeUnit.SECOND)
    >>> Time(25, "ba") / "100ba", Time(5, "ep") * "0.5dur", Time(5, "ep") > 4
    (Time(0.25, TimeUnit.DURATION), Time(2, TimeUnit.EPOCH), True)
    """

    value: int | float
    unit: TimeUnit

    def __init__(self, value: float, unit: TimeUnit | str) -> None:
        if type(unit) is not TimeUnit:
            unit = TimeUnit(unit)
        if type(value) is not int or unit is _DURATION:
            value = checked_amount(value, unit)
        object.__setattr__(self, "value", value)
        object.__setattr__(self, "unit", unit)

    def __class_getitem__(cls, item: object) -> GenericAlias:
        # Scripts for the predecessor, where this class is generic, annotate with Time[int].
        return GenericAlias(cls, item)

    @classmethod
    def from_iteration(cls, iteration: int) -> Time:
        """Return a time in iterations; the same as ``Time(iteration, "iter")``."""
        return cls(iteration, TimeUnit.ITERATION)

    @classmethod
    def from_epoch(cls, epoch: int) -> Time:
        """Return a time in epochs; the same as ``Time(epoch, "ep")``."""
        return cls(epoch, TimeUnit.EPOCH)

    @classmethod
    def from_batch(cls, batch: int) -> Time:
        """Return a time in batches; the same as ``Time(batch, "ba")``."""
        return cls(batch, TimeUnit.BATCH)

    @classmethod
    def from_sample(cls, sample: int) -> Time:
        """Return a time in samples; the same as ``Time(sample, "sp")``."""
        return cls(sample, TimeUnit.SAMPLE)

    @classmethod
    def from_token(cls, token: int) -> Time:
        """Return a time in tokens; the same as ``Time(token, "tok")``."""
        return cls(token, TimeUnit.TOKEN)

    @classmethod
    def from_duration(cls, duration: float) -> Time:
        """Return a fraction of the run, 0 at its start and 1 at its end; the same as ``Time(duration, "dur")``."""
        return cls(duration, TimeUnit.DURATION)

    @classmethod
    def from_timedelta(cls, timestring: str | datetime.timedelta) -> Time:
        """Return a wall-clock time in seconds.

        Args:
            timestring: Days, hours, minutes and seconds, each optional and without upper limit: ``"1h30m"``,
                ``"90m"``, ``"2d12h"``. Or a :class:`datetime.timedelta` without fractions of a second.

        Raises:
            ValueError: The string does not have this form.

        >>> Time.from_timedelta("1h30m") == Time.from_timedelta("90m") == Time(5400, "sec")
        True
        """
        if isinstance(timestring, datetime.timedelta):
            return cls(timestring.total_seconds(), TimeUnit.SECOND)
        seconds = seconds_of(timestring.strip())
        if seconds is None:
            raise ValueError(f"timestring must be a wall-clock time such as '1h30m' or '90s', but got {timestring!r}.")
        return cls(seconds, TimeUnit.SECOND)

    @classmethod
    def from_timestring(cls, timestring: str) -> Time:
        """Parse a time string such as ``"10ep"``, ``"0.5dur"``, ``"1e9tok"`` or ``"1h30m"``.

        Args:
            timestring: A number and a unit, or a wall-clock time as in :meth:`from_timedelta`. Digits may be grouped
                with underscores; case and spaces between number and unit are ignored. An empty string is 0 seconds.

        Raises:
            TypeError: It is not a string, or the number is not an integer in a unit other than ``dur``.
            ValueError: The string has no unit, an unknown unit, or no number.

        >>> Time.from_timestring("1_000ba"), Time.from_timestring("10 epochs")
        (Time(1000, TimeUnit.BATCH), Time(10, TimeUnit.EPOCH))
        """
        try:
            text = timestring.strip()
        except AttributeError:
            raise TypeError(f"timestring must be a string such as '10ep', but got {timestring!r}.") from None
        if not text:
            return cls(0, TimeUnit.SECOND)  # no hours, no minutes and no seconds
        if (seconds := seconds_of(text)) is not None:
            return cls(seconds, TimeUnit.SECOND)
        match = _AMOUNT.fullmatch(text)
        if match is None:
            raise ValueError(f"{timestring!r} is not a time. Write a number and a unit, such as '10ep' or '1h30m'.")
        number, unit = match.groups()
        if (written := wall_clock(number, unit)) is not None:
            raise ValueError(f"{timestring!r} is not a time. Write {written!r}.")
        if not unit:
            suffixes = ("ep", "ba", "sec") if float(number).is_integer() else ("dur",)
            choices = either([repr(f"{number}{suffix}") for suffix in suffixes])
            raise ValueError(f"The time {timestring!r} has no unit. Write {choices}.")
        # float() would round the long counts that int() keeps.
        return cls(int(number) if number.lstrip("+-").replace("_", "").isdigit() else float(number), unit)

    @classmethod
    def from_input(cls, i: Time | str | float, default_int_unit: TimeUnit | str | None = None) -> Time:
        """Convert a time, a time string or a number to a time.

        Args:
            i: A time, which is returned unchanged; a time string; or a number.
            default_int_unit: The unit of a number.

        Raises:
            RuntimeError: A number is given without ``default_int_unit``.
            TypeError: It is none of these; the error is also a ``RuntimeError``.

        >>> Time.from_input(5, "ep"), Time.from_input("5ba", "ep")
        (Time(5, TimeUnit.EPOCH), Time(5, TimeUnit.BATCH))
        """
        if isinstance(i, Time):
            return i
        if isinstance(i, str):
            return cls.from_timestring(i)
        if not is_number(i):
            raise _NotATimeError(
                f"Expected a time: a Time, a string such as '10ep' or a number, but got {i!r} of type "
                f"{type(i).__name__}."
            )
        if default_int_unit is None:
            raise RuntimeError(f"The time {i!r} has no unit. Write a string such as '{i}ep', or pass default_int_unit.")
        return cls(i, default_int_unit)

    def to_timestring(self) -> str:
        """Return the time string, which :meth:`from_timestring` parses to an equal time.

        >>> Time(5, "batch").to_timestring()
        '5ba'
        """
        return f"{self.value}{self.unit}"

    def __str__(self) -> str:
        return self.to_timestring()

    def __repr__(self) -> str:
        return f"Time({self.value!r}, TimeUnit.{self.unit.name})"

    def __hash__(self) -> int:
        return hash((self.value, self.unit))

    def __int__(self) -> int:
        return int(self.value)

    def __float__(self) -> float:
        return float(self.value)

    def __eq__(self, other: object) -> bool:
        value = self._value_of(other)
        return NotImplemented if value is None else self.value == value

    def __lt__(self, other: Time | str | float) -> bool:
        value = self._value_of(other)
        return NotImplemented if value is None else self.value < value

    def __le__(self, other: Time | str | float) -> bool:
        value = self._value_of(other)
        return NotImplemented if value is None else self.value <= value

    def __gt__(self, other: Time | str | float) -> bool:
        value = self._value_of(other)
        return NotImplemented if value is None else self.value > value

    def __ge__(self, other: Time | str | float) -> bool:
        value = self._value_of(other)
        return NotImplemented if value is None else self.value >= value

    def __pos__(self) -> Time:
        return self

    def __neg__(self) -> Time:
        return Time(-self.value, self.unit)

    def __add__(self, other: Time | str | float) -> Time:
        value = self._value_of(other)
        return NotImplemented if value is None else Time(self.value + value, self.unit)

    __radd__ = __add__

    def __sub__(self, other: Time | str | float) -> Time:
        value = self._value_of(other)
        return NotImplemented if value is None else Time(self.value - value, self.unit)

    def __rsub__(self, other: str | float) -> Time:
        value = self._value_of(other)
        return NotImplemented if value is None else Time(value - self.value, self.unit)

    def __mod__(self, other: Time | str | float) -> Time:
        value = self._value_of(other)
        return NotImplemented if value is None else Time(self.value % value, self.unit)

    def __rmod__(self, other: float) -> Time:
        value = self._value_of(other)
        return NotImplemented if value is None else Time(value % self.value, self.unit)

    def __mul__(self, other: Time | str | float) -> Time:
        if isinstance(other, str):
            other = Time.from_timestring(other)
        if isinstance(other, Time):
            if self.unit is _DURATION:
                return _cut(self.value * other.value, other.unit)
            if other.unit is not _DURATION:
                raise RuntimeError(
                    f"Cannot multiply {self} by {other}: one of them must be a fraction of the run such as '0.5dur', "
                    "or a plain number."
                )
            return _cut(self.value * other.value, self.unit)
        return _cut(self.value * other, self.unit) if is_number(other) else NotImplemented

    __rmul__ = __mul__

    def __truediv__(self, other: Time | str | float) -> Time:
        if is_number(other):
            return _cut(self.value / other, self.unit)
        value = self._value_of(other)
        return NotImplemented if value is None else Time(self.value / value, _DURATION)

    def __rtruediv__(self, other: str | float) -> Time:
        value = self._value_of(other)
        return NotImplemented if value is None else Time(value / self.value, _DURATION)

    def _value_of(self, other: object) -> int | float | None:
        """Return the amount of another time in this unit, or None if ``other`` is not a time."""
        if not isinstance(other, Time):
            if not isinstance(other, str) and not is_number(other):
                return None
            other = Time.from_input(other, self.unit)
        if other.unit is not self.unit:
            raise RuntimeError(
                f"{self} and {other} have different units ({self.unit.name.lower()} and {other.unit.name.lower()}) and "
                "cannot be combined. Pass both in the same unit; a Timestamp compares with times in any unit."
            )
        return other.value


def ensure_time(
    maybe_time: Time | str | float,
    int_unit: TimeUnit | str,
    argument: str | None = None,
    units: Collection[TimeUnit] = TimeUnit,
) -> Time:
    """Convert a time, a time string, or a number in ``int_unit`` to a time.

    Args:
        maybe_time: The time, string or number.
        int_unit: The unit of a number.
        argument: Name of the argument, for error messages.
        units: The accepted units; all by default.

    Raises:
        TypeError: It is none of these.
        ValueError: The string is not a time, or empty; or the unit is not accepted.

    >>> ensure_time(3, "ep"), ensure_time("3ba", "ep")
    (Time(3, TimeUnit.EPOCH), Time(3, TimeUnit.BATCH))
    """
    try:
        if isinstance(maybe_time, str) and not maybe_time.strip():  # an argument is never 0 seconds
            raise ValueError("It is empty. Write a number and a unit, such as '10ep' or '1h30m'.")
        time = Time.from_input(maybe_time, int_unit)
    except (TypeError, ValueError) as error:
        reason = str(error)
        if argument is not None:
            if len(units) < len(TimeUnit):  # then the suggestions may be in other units
                first = _SENTENCE_END.split(reason, maxsplit=1)[0].removesuffix(".")
                reason = f"{first}. {argument} is a time in {in_words(units)}."
            reason = f"{argument}={maybe_time!r} is not valid. {reason}"
        raise (TypeError if isinstance(error, TypeError) else ValueError)(reason) from None
    if time.unit not in units:
        raise ValueError(f"{argument or 'The time'} must be in {in_words(units)}; got {maybe_time!r}.")
    return time


def _cut(value: float, unit: TimeUnit) -> Time:
    """Return a time whose amount is truncated towards zero unless the unit is ``dur``."""
    return Time(value if unit is _DURATION else int(value), unit)
