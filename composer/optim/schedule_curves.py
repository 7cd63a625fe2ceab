"""The shapes of schedules: functions of plain numbers, which know nothing of runs or optimizers.

A ``share`` goes from 0 where the curve begins to 1 where it ends; ``elapsed`` counts from 0 in any unit.
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


def linear(share: float, start: float = 1.0, end: float = 0.0) -> float:
    """Return ``start + (end - start) * share``.

    Args:
        share: Where on the curve, from 0 to 1.
        start: The value at 0.
        end: The value at 1.

    >>> linear(0.25)
    0.75
    """
    return start + (end - start) * share


def cosine(share: float, end: float = 0.0) -> float:
    """Return ``end + (1 - end) * (1 + cos(pi * share)) / 2``, half a period from 1 to ``end``.

    Args:
        share: Where on the curve, from 0 to 1.
        end: The value at 1.

    >>> cosine(0.0), round(cosine(0.5), 6), cosine(1.0, end=0.1)
    (1.0, 0.5, 0.1)
    """
    return end + (1 - end) * (1 + math.cos(math.pi * share)) / 2


def polynomial(share: float, power: float, end: float = 0.0) -> float:
    """Return ``end + (1 - end) * (1 - share) ** power``.

    Args:
        share: Where on the curve, from 0 to 1.
        power: The exponent; 1 is a straight line.
        end: The value at 1.

    >>> polynomial(0.5, power=2)
    0.25
    """
    return end + (1 - end) * (1 - share) ** power


def one_minus_sqrt(share: float, end: float = 0.0) -> float:
    """Return ``end + (1 - end) * (1 - sqrt(share))``, which falls fast and then ever more slowly.

    Args:
        share: Where on the curve, from 0 to 1.
        end: The value at 1.

    >>> one_minus_sqrt(0.25)
    0.5
    """
    return end + (1 - end) * (1 - math.sqrt(share))


def inverse_square_root(elapsed: float, timescale: float) -> float:
    """Return ``sqrt(timescale / (timescale + elapsed))``.

    Args:
        elapsed: Time since the curve began.
        timescale: The time until the square of the value has halved, in the same unit.

    >>> inverse_square_root(300, timescale=100)
    0.5
    """
    return math.sqrt(timescale / (timescale + elapsed))


def exponential(elapsed: float, period: float, gamma: float) -> float:
    """Return ``gamma ** (elapsed / period)``.

    Args:
        elapsed: Time since the curve began.
        period: The time in which the value is multiplied by ``gamma`` once, in the same unit.
        gamma: The factor.

    >>> exponential(3, period=1, gamma=0.5)
    0.125
    """
    return gamma ** (elapsed / period)


def staircase(elapsed: float, step: float, gamma: float) -> float:
    """Return ``gamma ** floor(elapsed / step)``.

    Args:
        elapsed: Time since the curve began.
        step: The length of a stair, in the same unit.
        gamma: The factor of each stair.

    >>> staircase(5, step=2, gamma=0.5)
    0.25
    """
    return gamma ** (elapsed // step)


def restarts(elapsed: float, first: float, factor: float, end: float = 0.0) -> float:
    """Return :func:`cosine` within the period that ``elapsed`` falls into.

    Args:
        elapsed: Time since the first period began.
        first: The length of the first period, in the same unit.
        factor: Each period is this many times as long as the one before, cut to a whole number.
        end: The value that each period ends at.

    Raises:
        ValueError: A period would have no length.

    >>> [round(restarts(t, first=2, factor=2), 3) for t in range(6)]
    [1.0, 0.5, 1.0, 0.854, 0.5, 0.146]
    """
    length = first
    while elapsed >= length:
        elapsed -= length
        following = int(factor * length)
        if following <= 0:
            raise ValueError(
                f"After a period of {length:g} the next would have no length (t_mult={factor:g}). Pass a longer t_0, "
                f"or a t_mult of at least 1."
            )
        if following == length:
            elapsed %= length  # as from here on all are alike
            break
        length = following
    return cosine(elapsed / length, end)
