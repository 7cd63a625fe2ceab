"""The band of the mean of a few curves: a bootstrap interval at each point, stretched for small samples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from composer.statistics._arguments import Floats, at_least
from composer.statistics.bootstrap import small_sample_factor

__all__ = ["mean_band"]

# Numbers held at once while resampling.
_CHUNK = 4_000_000


def mean_band(
    curves: Floats | Sequence[Sequence[float]], resamples: int = 2_000, seed: int = 0
) -> tuple[Floats, Floats]:
    """Return the ends of the 95 % interval of the mean of several curves, at each point.

    Whole curves are resampled, and the ends of the percentile interval are moved away from the mean as in
    :func:`~composer.statistics.mean_interval`. The band holds at each point, not for all points at once: of 100 points,
    5 are expected outside it.

    Args:
        curves: The curves of n runs at K common points, (n, K). A point at which one is NaN has no interval.
        resamples: Number of bootstrap samples.
        seed: Seed of the bootstrap samples.

    Returns:
        The lower and the upper ends, (K,) each.

    Raises:
        ValueError: There are fewer than two curves.

    >>> low, high = mean_band(np.array([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]]))
    >>> bool(low[0] < 2 < high[0]), low[1].item(), high[1].item()
    (True, 5.0, 5.0)

    Paper: Efron 1979, https://doi.org/10.1214/aos/1176344552
    """
    curves = np.asarray(curves, dtype=np.float64)
    number = len(curves)
    if curves.ndim != 2 or number < 2:
        raise ValueError(f"curves must have shape (n, K) with at least 2 curves, but got {curves.shape}.")
    chosen = np.random.default_rng(seed).integers(number, size=(at_least("resamples", resamples, 2), number))
    # How often each curve is in each sample, as a matrix product is faster than indexing.
    counts = (chosen[:, :, None] == np.arange(number)).sum(axis=1) / number
    mean, factor = curves.mean(axis=0), small_sample_factor(number)
    columns = max(1, _CHUNK // resamples)
    ends: list[Floats] = []
    for start in range(0, curves.shape[1], columns):
        part = slice(start, start + columns)
        with np.errstate(invalid="ignore"):
            found = np.quantile(counts @ curves[:, part], [0.025, 0.975], axis=0)
        ends.append(mean[part] + factor * (found - mean[part]))
    low, high = np.concatenate(ends, axis=1) if ends else np.empty((2, 0))
    # Rounding must not move the ends beyond the mean where all curves agree.
    return np.minimum(low, mean), np.maximum(high, mean)
