"""Downsample a curve to a number of points, so that its minima and maxima stay (M4)."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["downsample"]

# Of each bucket: the first, the last, the smallest, the largest and the first value that is not finite.
_KEPT = 5


def downsample(values: np.ndarray, limit: int) -> np.ndarray:
    """Return the indices of at most ``limit`` values that draw the same curve, in their order.

    The values are split into buckets of equal length. Each keeps its first and last value, its minimum and maximum, and
    its first NaN or infinity. A line through these covers the same pixels as one through all values if the buckets are
    the columns of pixels, so that no spike is lost, unlike with a mean or with every n-th value.

    Args:
        values: The values in their order, (N,).
        limit: The largest number of indices, at least 5.

    Raises:
        ValueError: ``limit`` is less than 5.

    >>> values = np.zeros(1000)
    >>> values[321] = 7
    >>> kept = downsample(values, 20)
    >>> len(kept) <= 20, values[kept].max(), kept[0], kept[-1]
    (True, np.float64(7.0), np.int64(0), np.int64(999))

    Paper: http://www.vldb.org/pvldb/vol7/p797-jugel.pdf (Jugel et al. 2014, M4: A Visualization-Oriented Time Series
    Data Aggregation)
    """
    if limit < _KEPT:
        raise ValueError(f"limit must be at least {_KEPT}, the points of one bucket; got {limit}.")
    count = len(values)
    if count <= limit:
        return np.arange(count)
    size = math.ceil(count / (limit // _KEPT))
    num_buckets = math.ceil(count / size)
    # The last bucket is filled up with its last value.
    padded = np.concatenate([values, np.full(num_buckets * size - count, values[-1])]).reshape(num_buckets, size)
    finite = np.isfinite(padded)
    starts = np.arange(num_buckets) * size
    kept = [
        starts,
        np.append(starts[1:] - 1, count - 1),
        starts + np.where(finite, padded, np.inf).argmin(axis=1),
        starts + np.where(finite, padded, -np.inf).argmax(axis=1),
    ]
    if not finite.all():
        kept.append((starts + finite.argmin(axis=1))[~finite.all(axis=1)])
    # What np.unique does, without its overhead of 20 us: a page may have 20,000 curves.
    ordered = np.sort(np.minimum(np.concatenate(kept), count - 1))
    return ordered[np.append(True, ordered[1:] != ordered[:-1])]
