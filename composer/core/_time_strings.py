"""Parts of time strings: wall-clock times, hints for the units of other libraries, and lists of accepted units."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from composer.core.time import TimeUnit

__all__ = ["UNITS", "either", "in_words", "seconds_of", "wall_clock"]

_WALL_CLOCK = re.compile(r"(?=\d)(?:(\d+)\s*d)?\s*(?:(\d+)\s*h)?\s*(?:(\d+)\s*m)?\s*(?:(\d+)\s*s)?", re.IGNORECASE)
_SECONDS_PER = (86400, 3600, 60, 1)

_SECONDS: Final = {
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    "s": 1,
}

_NAMES_AND_EXAMPLES: Final = {
    "iter": ("iterations", "10iter"),
    "ep": ("epochs", "1ep"),
    "ba": ("batches", "10ba"),
    "sp": ("samples", "1000sp"),
    "tok": ("tokens", "1e6tok"),
    "dur": ("fractions of the run", "0.5dur"),
    "sec": ("wall-clock time", "10m"),
}

UNITS: Final = {
    **dict.fromkeys(("step", "steps", "st", "minibatch", "minibatches", "bs"), " Did you mean 'ba' (batch)?"),
    **dict.fromkeys(("it", "its", "iters"), " Did you mean 'ba' (batch), or 'iter' (iteration)?"),
    **dict.fromkeys(("e", "epo", "epoc", "epocs"), " Did you mean 'ep' (epoch)?"),
}
"""Hints for the names that other libraries use for a batch, an iteration or an epoch."""


def seconds_of(text: str) -> int | None:
    """Return the seconds of a wall-clock time; None if it is not one.

    Args:
        text: Days, hours, minutes and seconds, each optional.

    >>> seconds_of("1h30m"), seconds_of("10ba")
    (5400, None)
    """
    match = _WALL_CLOCK.fullmatch(text)
    if match is None:
        return None
    return sum(int(n) * s for n, s in zip(match.groups("0"), _SECONDS_PER, strict=True))


def in_words(units: Iterable[TimeUnit]) -> str:
    """Return the names of units and an example of each, for error messages.

    Args:
        units: The accepted units.

    >>> from composer.core.time import TimeUnit
    >>> in_words([TimeUnit.BATCH, TimeUnit.DURATION])
    "batches or fractions of the run, such as '10ba' or '0.5dur'"
    """
    names, examples = zip(*(_NAMES_AND_EXAMPLES[unit.value] for unit in units), strict=True)
    return f"{either(names)}, such as {either([repr(example) for example in examples])}"


def either(words: Sequence[str]) -> str:
    """Join words with commas and "or".

    Args:
        words: At least one.

    >>> either(["'1ep'", "'1ba'", "'1sec'"])
    "'1ep', '1ba' or '1sec'"
    """
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def wall_clock(number: str, unit: str) -> str | None:
    """Return an amount of wall-clock time in the accepted format; None if the unit is no wall-clock unit.

    Args:
        number: The amount.
        unit: Its unit, in any case.

    >>> wall_clock("1.5", "h"), wall_clock("2", "hours"), wall_clock("2", "ba")
    ('1h30m', '2h', None)
    """
    amount = float(number) * _SECONDS.get(unit.lower(), 0)
    if not 1 <= amount < 1e9:
        return None
    rest, parts = round(amount), list[str]()
    for name, seconds in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, seconds)
        parts += [f"{count}{name}"] if count else []
    return "".join(parts)
