"""Curves of learning-rate schedules as functions of plain numbers: linear, cosine, polynomial, exponential, ...

A ``fraction`` goes from 0 at the start of the curve to 1 at its end; ``elapsed`` counts from 0 in any unit.
"""

from __future__ import annotations

import math

__all__ = [
    "cosine",
    "exponential",
    "inverse_square_root",
    "linear",
    "one_minus_sqrt",
    "polynomial",
    "restarts",
    "staircase",
]


def linear(fraction: float, start: float = 1.0, end: float = 0.0) -> float:
    """Return ``start + (end - start) * fraction``.

    Args:
        fraction: Position on the curve, from 0 to 1.
        start: The value at 0.
        end: The value at 1.

    >>> linear(0.25)
    0.75
    """
    return start + (end - start) * fraction


def cosine(fraction: float, end: float = 0.0) -> float:
    """Return ``end + (1 - end) * (1 + cos(pi * fraction)) / 2``, half a period from 1 to ``end``.

    Args:
        fraction: Position on the curve, from 0 to 1.
        end: The value at 1.

    >>> cosine(0.0), round(cosine(0.5), 6), cosine(1.0, end=0.1)
    (1.0, 0.5, 0.1)
    """
    return end + (1 - end) * (1 + math.cos(math.pi * fraction)) / 2


def polynomial(fraction: float, power: float, end: float = 0.0) -> float:
    """Return ``end + (1 - end) * (1 - fraction) ** power``.

    Args:
        fraction: Position on the curve, from 0 to 1.
        power: The exponent; 1 is linear.
        end: The value at 1.

    >>> polynomial(0.5, power=2)
    0.25
    """
    return end + (1 - end) * (1 - fraction) ** power


def one_minus_sqrt(fraction: float, end: float = 0.0) -> float:
    """Return ``end + (1 - end) * (1 - sqrt(fraction))``, which falls fast at first, then slower.

    Args:
        fraction: Position on the curve, from 0 to 1.
        end: The value at 1.

    >>> one_minus_sqrt(0.25)
    0.5
    """
    return end + (1 - end) * (1 - math.sqrt(fraction))


def inverse_square_root(elapsed: float, timescale: float) -> float:
    """Return ``sqrt(timescale / (timescale + elapsed))``.

    Args:
        elapsed: Time since the curve began.
        timescale: Time until the square of the value has halved, in the same unit.

    >>> inverse_square_root(300, timescale=100)
    0.5
    """
    return math.sqrt(timescale / (timescale + elapsed))


def exponential(elapsed: float, period: float, gamma: float) -> float:
    """Return ``gamma ** (elapsed / period)``.

    Args:
        elapsed: Time since the curve began.
        period: Time in which the value is multiplied by ``gamma`` once, in the same unit.
        gamma: The factor.

    >>> exponential(3, period=1, gamma=0.5)
    0.125
    """
    return gamma ** (elapsed / period)


def staircase(elapsed: float, step: float, gamma: float) -> float:
    """Return ``gamma ** floor(elapsed / step)``.

    Args:
        elapsed: Time since the curve began.
        step: Length of a step, in the same unit.
        gamma: Factor of each step.

    >>> staircase(5, step=2, gamma=0.5)
    0.25
    """
    return gamma ** (elapsed // step)


def restarts(elapsed: float, first: float, factor: float, end: float = 0.0) -> float:
    """Return :func:`cosine` within the period that contains ``elapsed``.

    Args:
        elapsed: Time since the first period began.
        first: Length of the first period, in the same unit.
        factor: Each period is this many times as long as the previous one, truncated to an integer.
        end: The value at the end of each period.

    Raises:
        ValueError: A period would have length 0.

    >>> [round(restarts(t, first=2, factor=2), 3) for t in range(6)]
    [1.0, 0.5, 1.0, 0.854, 0.5, 0.146]
    """
    length = first
    while elapsed >= length:
        elapsed -= length
        following = int(factor * length)
        if following <= 0:
            raise ValueError(
                f"After a period of {length:g} the next would have length 0 (t_mult={factor:g}). Use a longer t_0, "
                f"or a t_mult of at least 1."
            )
        if following == length:
            elapsed %= length  # all further periods have the same length
            break
        length = following
    return cosine(elapsed / length, end)
