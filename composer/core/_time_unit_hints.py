"""Hints for time units of other libraries, such as "steps", and for wall-clock units such as "hours"."""

from __future__ import annotations

from typing import Final

__all__ = ["UNITS", "wall_clock"]

_SECONDS: Final = {
    **dict.fromkeys(("d", "day", "days"), 86400),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    "s": 1,
}

UNITS: Final = {
    **dict.fromkeys(("step", "steps", "st", "minibatch", "minibatches", "bs"), " Did you mean 'ba' (batch)?"),
    **dict.fromkeys(("it", "its", "iters"), " Did you mean 'ba' (batch), or 'iter' (iteration)?"),
    **dict.fromkeys(("e", "epo", "epoc", "epocs"), " Did you mean 'ep' (epoch)?"),
}
"""Hints for the names that other libraries use for a batch, an iteration or an epoch."""


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
