"""The Pareto front of time against quality: groups of runs that no other group beats in both."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from composer.reports.run_groups import RunGroup

__all__ = ["pareto_front", "pareto_points"]


def pareto_points(groups: Sequence[RunGroup], metric: str) -> list[tuple[float, float] | None]:
    """Return the mean time of training and the mean last value of a metric of each group; None if not all are known.

    Args:
        groups: The groups.
        metric: Full name of the metric.

    >>> from composer.history import History, Series
    >>> loss = Series("loss", np.array([1, 2]), np.array([0.9, 0.5]), seconds=np.array([1.0, 2.0]))
    >>> pareto_points([RunGroup("a", (History("a", {"loss": loss}),))], "loss")
    [(2.0, 0.5)]
    """
    found: list[tuple[float, float] | None] = []
    for group in groups:
        times = [run.seconds for run in group.runs]
        values = [run.series[metric].last for run in group.runs]
        known = [time for time in times if time]
        whole = len(known) == len(times) and all(map(math.isfinite, values))
        found.append((float(np.mean(known)), float(np.mean(values))) if whole else None)
    return found


def pareto_front(
    groups: Sequence[RunGroup], metric: str, larger: bool | None
) -> tuple[list[str] | None, dict[str, str]]:
    """Return the names of the groups that none dominates, fastest first, and for each other one that dominates it.

    A group dominates another if it trained at most as long and its metric is at least as good, and one of both is
    better. The means of the groups count, without their spread.

    Args:
        groups: The groups.
        metric: Full name of the metric.
        larger: Whether larger values are better; None if unknown, and then there is no front.

    >>> pareto_front([], "loss", False)
    (None, {})
    """
    points = pareto_points(groups, metric)
    if larger is None or sum(point is not None for point in points) < 2:
        return None, {}
    sign = 1 if larger else -1
    known = [(group.name, point[0], sign * point[1]) for group, point in zip(groups, points, strict=True) if point]
    dominated: dict[str, str] = {}
    for name, time, quality in known:
        above = [other for other in known if other[1] <= time and other[2] >= quality and other[1:] != (time, quality)]
        if above:
            # The best of them is on the front itself.
            dominated[name] = max(above, key=lambda other: (other[2], -other[1]))[0]
    front = sorted((one for one in known if one[0] not in dominated), key=lambda one: one[1])
    return [name for name, _, _ in front], dominated
