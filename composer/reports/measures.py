"""What one run came to: final and best metric, time to a target, throughput, and time trained."""

from __future__ import annotations

import math

import numpy as np

from composer.core.metric_target import MetricTarget
from composer.history.history import History
from composer.history.series import Series
from composer.statistics.crossing import Crossing, first_crossing, in_float32

__all__ = ["best_value", "throughput", "throughput_unit", "time_to_target"]


def best_value(series: Series, mode: str) -> float:
    """Return the best finite value of a metric; NaN if there is none.

    Args:
        series: The metric.
        mode: "max" or "min".

    >>> best_value(Series("accuracy", np.array([0, 1, 2]), np.array([0.5, 0.9, np.nan])), "max")
    0.9
    """
    values = series.finite().values
    if not len(values):
        return math.nan
    return float(values.max() if mode == "max" else values.min())


def time_to_target(series: Series, target: MetricTarget) -> Crossing | None:
    """Return when a metric first reached a target, in seconds of training; None if the log has no times.

    Args:
        series: The metric.
        target: The target.

    >>> seconds = np.array([10.0, 20.0])
    >>> accuracy = Series("accuracy", np.array([1, 2]), np.array([0.5, 0.9]), seconds=seconds)
    >>> time_to_target(accuracy, MetricTarget("accuracy", 0.7, "max")).time
    15.0
    """
    if series.seconds is None:
        return None
    # An evaluation at the end may follow another at the same time, and says the same.
    known = np.isfinite(series.seconds)
    times, values = series.seconds[known], series.values[known]
    later = np.append(np.diff(times) > 0, True) if len(times) else np.array([], dtype=bool)
    times, values = times[later], values[later]
    rising = times > np.concatenate([[-1.0], np.maximum.accumulate(times)[:-1]]) if len(times) else later
    times, values = times[rising], values[rising]
    if not len(times):
        return None
    reached = values >= target.value if target.mode == "max" else values <= target.value
    reached |= values == in_float32(target.value)
    # The rest of a long curve does not matter.
    last = int(reached.argmax()) if reached.any() else len(times) - 1
    part = slice(max(0, last - 1), last + 1)
    found = first_crossing(times[part].tolist(), values[part].tolist(), target.value, target.mode)
    return Crossing(found.time, found.low, found.high, found.at_first, float(times[-1]))


def throughput_unit(runs: list[History]) -> str | None:
    """Return the finest unit of throughput that all runs have: "token", "sample" or "step"; None without times.

    Args:
        runs: The runs.

    >>> throughput_unit([History("night")]) is None
    True
    """
    for unit in ("token", "sample", "step"):
        if all((throughput(run, unit) or 0) > 0 for run in runs):
            return unit
    return None


def throughput(run: History, unit: str) -> float | None:
    """Return how many steps, samples or tokens a second a run trained, on average over its time of training.

    Evaluations do not count as time of training.

    Args:
        run: The run.
        unit: "step", "sample" or "token".

    >>> seconds = np.array([0.0, 5.0])
    >>> throughput(
    ...     History("a", {"x": Series("x", np.array([0, 100]), np.zeros(2), seconds=seconds)}), "step"
    ... )
    20.0
    """
    points: list[tuple[float, float]] = []
    for series in run.series.values():
        counts = getattr(series, unit)
        if series.seconds is None or counts is None:
            continue
        known = np.flatnonzero(np.isfinite(series.seconds) & np.isfinite(counts))
        points += [(float(series.seconds[at]), float(counts[at])) for at in {*known[:1], *known[-1:]}]
    if not points:
        return None
    (start, first), (end, last) = min(points), max(points)
    return (last - first) / (end - start) if end > start else None
