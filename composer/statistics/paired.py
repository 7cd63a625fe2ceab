"""Statistics of paired times: the ratio of two runs with its interval, by blocks of steps measured in turn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from composer.statistics._arguments import finite

__all__ = ["Ratio", "paired_ratio"]

# 97.5 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
# One of so many pairs is left out at each end.
_TRIMMED = 8


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one run is as another.

    Args:
        value: Mean of the ratios of the paired times.
        low: Lower end of its 95 % interval.
        high: Upper end.

    >>> Ratio(1.5, 1.4, 1.6).gain
    0.5
    """

    value: float
    low: float
    high: float

    @property
    def gain(self) -> float:
        """The gain in steps per second, as a fraction."""
        return self.value - 1.0

    def __str__(self) -> str:
        """The gain in percent, with its interval."""
        return f"{self.gain:+.0%} [{self.low - 1:+.0%}, {self.high - 1:+.0%}]"


def paired_ratio(before: Sequence[float], after: Sequence[float]) -> Ratio:
    """Return the mean ratio of paired times, with its 95 % interval.

    The duration of a run follows from the mean of its steps, not from their median, so the mean of the logarithms of
    the ratios is taken. Of eight pairs and more, the largest and smallest eighth are left out, since other programs may
    have disturbed them; the interval is that of Yuen's trimmed mean (Biometrika 61, 1974).

    Args:
        before: Seconds of a step in each block as it is.
        after: Seconds of a step in the block beside it with a change.

    Raises:
        TypeError: A time is not a number.
        ValueError: There are fewer than two pairs, or a time is not positive and finite.

    >>> round(paired_ratio([2.0, 2.2, 2.1], [1.0, 1.1, 1.0]).value, 2)
    2.03
    """
    if len(before) < 2 or len(before) != len(after):
        raise ValueError(
            f"before and after must have the same number of blocks, at least 2; got {len(before)} and {len(after)}."
        )
    for name, times in (("before", before), ("after", after)):
        if not (finite(name, times) > 0).all():
            raise ValueError(f"{name} must be positive seconds, but has {min(times)!r}.")
    logs = sorted(math.log(one / two) for one, two in zip(before, after, strict=True))
    number, trimmed = len(logs), len(logs) // _TRIMMED
    kept = logs[trimmed : number - trimmed]
    winsorized = [min(max(value, kept[0]), kept[-1]) for value in logs]
    center, mean = fmean(winsorized), fmean(kept)
    deviation = math.sqrt(sum((value - center) ** 2 for value in winsorized) / (number - 1))
    error = deviation / ((1 - 2 * trimmed / number) * math.sqrt(number))
    width = _T[min(len(kept) - 1, len(_T)) - 1] * error
    return Ratio(math.exp(mean), math.exp(mean - width), math.exp(mean + width))
