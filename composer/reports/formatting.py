"""Format numbers, durations and nested values for pages and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["duration", "flat", "number"]


def duration(seconds: float | None) -> str:
    """Return a duration as people say it.

    Args:
        seconds: The duration in seconds; None counts as 0.

    >>> duration(12.34), duration(90), duration(7260)
    ('12.3 s', '1.5 min', '2 h 1 min')
    """
    seconds = seconds or 0.0
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{seconds / 60:.1f} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def number(value: float) -> str:
    """Return a number with six digits.

    Args:
        value: The number.

    >>> number(0.123456789)
    '0.123457'
    """
    return f"{value:.6g}"


def flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and values of nested mappings, and of lists of them, as text, the names joined by dots.

    Args:
        values: The mapping.
        above: What stands before each name.

    >>> list(flat({"optimizer": {"lr": 0.1}, "algorithms": [{"class": "EMA"}], "betas": [0.9, 0.99]}))
    [('optimizer.lr', '0.1'), ('algorithms.0.class', 'EMA'), ('betas', '[0.9, 0.99]')]
    """
    for name, value in values.items():
        if isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
            value = {str(number): one for number, one in enumerate(value)}
        if isinstance(value, Mapping):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", str(value)
