"""Placebos: methods with plausible names that do nothing, to see how often a search says that they pay."""

from __future__ import annotations

from composer import Algorithm

__all__ = [
    "PLACEBOS",
    "GradientCentering",
    "LogitRebalancing",
    "MomentumReset",
    "TokenReweighting",
    "WeightAnnealing",
]


class GradientCentering(Algorithm):
    """Does nothing."""


class LogitRebalancing(Algorithm):
    """Does nothing."""


class MomentumReset(Algorithm):
    """Does nothing."""


class TokenReweighting(Algorithm):
    """Does nothing."""


class WeightAnnealing(Algorithm):
    """Does nothing."""


PLACEBOS = tuple(
    f"algorithms+={one.__module__}.{one.__qualname__}()"
    for one in (GradientCentering, LogitRebalancing, MomentumReset, TokenReweighting, WeightAnnealing)
)
