"""Averages over time with power-law weights, and combinations of several into another (post-hoc EMA).

The average of n values with exponent g gives the k-th value the weight
``(k / n) ** (g + 1) - ((k - 1) / n) ** (g + 1)``: for many values the profile
``p(t) = (g + 1) * t ** g / n ** (g + 1)`` on (0, n].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

__all__ = ["LONGEST", "Profile", "combination", "exponent_of", "step_of"]

Profile: TypeAlias = tuple[float, int]
"""An exponent, and the number of values averaged."""

LONGEST = 1 / math.sqrt(12)
"""The length of the plain mean, which has exponent 0."""


def exponent_of(length: float) -> float:
    """Return the exponent for a length: the standard deviation of the profile relative to its duration.

        length = sqrt(g + 1) / ((g + 2) * sqrt(g + 3))

    >>> round(exponent_of(0.05), 2), round(exponent_of(0.1), 2)
    (16.97, 6.94)
    """
    low, high = 0.0, 1 / length  # the length decreases with the exponent, and is less than its inverse
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        if math.sqrt((middle + 1) / (middle + 3)) / (middle + 2) > length:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def step_of(exponent: float, number: int) -> float:
    """Return the interpolation weight with which the average moves towards the ``number``-th value, counted from 1.

    >>> [step_of(0.0, number) for number in (1, 2, 4)]
    [1.0, 0.5, 0.25]
    """
    return 1 - (1 - 1 / number) ** (exponent + 1)


def combination(profiles: Sequence[Profile], target: Profile) -> list[float]:
    """Return the coefficients with which a combination of profiles best fits a target profile, in least squares.

    >>> combination([(16.0, 50), (16.0, 100)], (16.0, 100))[1] > 0.999
    True
    """
    norms = [math.sqrt(_product(profile, profile)) for profile in profiles]
    gram = torch.tensor([[_product(one, other) for other in profiles] for one in profiles], dtype=torch.float64)
    scale = torch.tensor(norms, dtype=torch.float64)
    rhs = torch.tensor([_product(profile, target) for profile in profiles], dtype=torch.float64)
    # On the host, by SVD: profiles of similar times are nearly linearly dependent.
    solution: Tensor = torch.linalg.lstsq(
        gram / scale.outer(scale), (rhs / scale).unsqueeze(1), rcond=1e-13, driver="gelsd"
    ).solution
    weights = solution[:, 0] / scale
    return (weights / weights.sum()).tolist()


def _product(one: Profile, other: Profile) -> float:
    """Return the integral of the product of two profiles."""
    (a, end_a), (b, end_b) = one, other
    end = min(end_a, end_b)
    return (a + 1) * (b + 1) / (a + b + 1) * (end / end_a) ** a * (end / end_b) ** b * end / (end_a * end_b)
