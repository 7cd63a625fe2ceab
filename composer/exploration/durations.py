"""Durations as people write them, such as "10m"."""

from __future__ import annotations

import math
import numbers
import re

__all__ = ["as_seconds"]

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([smhd]?)")


def as_seconds(argument: str, text: str | float) -> float:
    """Return the seconds of a duration.

    Args:
        argument: Name of the argument, for the message.
        text: A number of seconds, or numbers with units: "90s", "10m", "1h30m", "2d".

    Raises:
        TypeError: It is neither a number nor a string.
        ValueError: It has another form, or is not positive.

    >>> as_seconds("budget", "1h30m")
    5400.0
    """
    if isinstance(text, str):
        parts = _PART.findall(text)
        written = "".join(f"{number}{unit}" for number, unit in parts)
        # A number without a unit must stand alone: "1h30" may mean minutes or seconds.
        is_clear = written == text.strip() and (len(parts) == 1 or all(unit for _, unit in parts))
        seconds = sum(float(number) * _UNITS[unit or "s"] for number, unit in parts) if is_clear else math.nan
    elif isinstance(text, bool) or not isinstance(text, numbers.Real):
        raise TypeError(f"{argument} must be a duration such as 90s, or a number of seconds; got {text!r}.")
    else:
        seconds = float(text)
    if not (0 < seconds < math.inf):
        raise ValueError(
            f"{argument} must be a positive duration such as 90s, 10m or 1h30m, or a number of seconds; got {text!r}."
        )
    return seconds
