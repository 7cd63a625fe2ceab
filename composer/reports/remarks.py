"""What limits a comparison of runs: grouping, seeds, lengths, missing logs and NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence

from composer._text import plural
from composer.core.metric_target import MetricTarget
from composer.history.history import History
from composer.reports.run_groups import RunGroup, seed_of, settings_of
from composer.reports.targets import common_metrics

__all__ = ["remarks"]


def remarks(
    groups: Sequence[RunGroup], runs: Sequence[History], metric: str, larger: bool | None, target: MetricTarget | None
) -> list[str]:
    """Return what a reader should know before believing a difference, a clause each.

    Args:
        groups: The groups.
        runs: All their runs.
        metric: Full name of the metric.
        larger: Whether larger values are better; None if unknown.
        target: The target; None if none was given.

    >>> import numpy as np
    >>> from composer.history import Series
    >>> run = History("a", {"loss": Series("loss", np.array([0, 1]), np.array([0.9, np.nan]))})
    >>> remarks([RunGroup("a", (run,), is_given=True)], [run], "loss", False, None)[-1]
    'the last value of a is nan'
    """
    found = [*_about_groups(groups), *_about_logs(runs)]
    for run in runs:
        if not math.isfinite(run.series[metric].last):
            found.append(f"the last value of {run.name} is {run.series[metric].last}")
        found += [f"{run.name}: {remark}" for remark in run.remarks]
    if larger is None:
        found.append(f"it is not known whether larger values of {metric} are better; --target 'NAME>=VALUE' tells")
    if target is not None and not all(run.series[metric].seconds is not None for run in runs):
        found.append("logs without times have no time to the target")
    return found


def _about_groups(groups: Sequence[RunGroup]) -> list[str]:
    found: list[str] = []
    if any(len(group) > 1 and not group.is_given for group in groups):
        found.append("runs whose logs differ only in seed and name are one group; --group makes others")
    for group in groups:
        seeds = [seed for seed in map(seed_of, group.runs) if seed is not None]
        if len(seeds) > len(set(seeds)):
            found.append(f"runs of {group.name} have the same seed, so that they may differ less than those of others")
    if all(len(group) == 1 for group in groups):
        found.append("each group is a single run: no difference has an interval; train more seeds to get one")
    if len(groups) == 1:
        found.append("all runs are one group: nothing to compare; give groups of your own to see them apart")
    return found


def _about_logs(runs: Sequence[History]) -> list[str]:
    found: list[str] = []
    unknown = [run.name for run in runs if not settings_of(run)]
    if unknown:
        found.append(
            f"no hyperparameters were logged by {', '.join(unknown[:5])}{' and others' if len(unknown) > 5 else ''}; "
            f"what differs is not known"
        )
    lengths = sorted({run.last_step for run in runs})
    if len(lengths) > 1:
        found.append(
            f"the runs have different lengths, {lengths[0]:,} to {lengths[-1]:,} steps: last values are not of the "
            f"same step"
        )
    partly = len({name for run in runs for name, one in run.series.items() if len(one)}) - len(common_metrics(runs))
    if partly:
        found.append(f"{plural(partly, 'metric')} of some runs only {'is' if partly == 1 else 'are'} left out")
    return found
