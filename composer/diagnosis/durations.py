"""Times of steps as text."""

from __future__ import annotations

__all__ = ["milliseconds"]


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds with three significant digits, without an exponent and the unit.

    Args:
        seconds: The time.

    >>> milliseconds(0.0012345), milliseconds(1.2345), milliseconds(0.0)
    ('1.23', '1,234', '0')
    """
    return f"{seconds * 1e3:.3g}" if 1e-7 < seconds < 0.9995 else f"{seconds * 1e3:,.0f}"
