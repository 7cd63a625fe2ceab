"""Statistics of paired times: the ratio of two runs with its interval, by blocks of steps measured in turn."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Ratio", "paired_ratio"]


@dataclass(frozen=True)
class Ratio:
    """How many times as fast one run is as another.

    Args:
        value: Median of the ratios of the paired times.
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


def paired_ratio(before: Sequence[float], after: Sequence[float], samples: int = 2000) -> Ratio:
    """Return the median ratio of paired times, with a bootstrap interval.

    With few pairs the interval is that of all of them, which the bootstrap would make too narrow.

    Args:
        before: Seconds of each block as it is.
        after: Seconds of the block beside it with a change.
        samples: Number of bootstrap samples.

    Raises:
        ValueError: There is no pair.

    >>> paired_ratio([2.0, 2.2, 2.1], [1.0, 1.1, 1.0]).value
    2.0
    """
    if not before or len(before) != len(after):
        raise ValueError(f"before and after must have the same number of blocks; got {len(before)} and {len(after)}.")
    ratios = [one / two for one, two in zip(before, after, strict=True)]
    if len(ratios) < 5:
        return Ratio(statistics.median(ratios), min(ratios), max(ratios))
    choice = random.Random(0)
    medians = sorted(statistics.median(choice.choices(ratios, k=len(ratios))) for _ in range(samples))
    return Ratio(statistics.median(ratios), medians[int(0.025 * samples)], medians[int(0.975 * samples)])
