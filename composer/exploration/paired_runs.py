"""Pairs of runs with the same seed, judged by the goal: how much faster or better, with an interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from composer._text import plural
from composer.exploration.curves import time_to_target, value_at
from composer.exploration.goal import Goal
from composer.exploration.runner import Failure
from composer.exploration.trajectory import Trajectory
from composer.exploration.variant import Variant
from composer.statistics.bootstrap import Estimate, mean_interval
from composer.statistics.comparison import Comparison, compare, log_ratios
from composer.statistics.holm import SMALLEST_EFFECT, Decision, holm_adjusted
from composer.statistics.sign_flip import sign_flip_test

__all__ = ["Outcome", "PairedRuns", "advantages", "compare_runs", "interval_json", "with_holm"]

Outcome = Trajectory | Failure


@dataclass(frozen=True)
class PairedRuns:
    """What pairs of runs tell about a change.

    Args:
        before: The variant without the change.
        after: The variant with it.
        num_pairs: Number of pairs.
        p_value: One-sided p-value of the sign-flip test that runs with the change are better.
        adjusted: The same, adjusted for the number of changes that were tested together (Holm).
        decision: Whether the change pays.
        times: The comparison of times to the target; None for a goal without one.
        difference: How much better the metric is; None for a goal with a target, and if no pair has it.
        quality: Difference of the metric after equal time of training, positive if it is better with the change.
        quality_by_samples: The same after an equal number of samples.
        throughput: How many times as many samples a second are trained with the change.
        failures: Number of runs with the change that failed.

    >>> PairedRuns(Variant("SAM"), Variant("EMA"), 0, 1.0, 1.0, Decision.UNDECIDED).pays
    False
    """

    before: Variant
    after: Variant
    num_pairs: int
    p_value: float
    adjusted: float
    decision: Decision
    times: Comparison | None = None
    difference: Estimate | None = None
    quality: Estimate | None = None
    quality_by_samples: Estimate | None = None
    throughput: float = math.nan
    failures: int = 0

    @property
    def pays(self) -> bool:
        """Whether the change pays."""
        return self.decision is Decision.PAYS

    @property
    def effect(self) -> Estimate | None:
        """How many times as fast, or how much better, with its interval; None if nothing is known."""
        if self.times is None or self.times.ratio is None:
            return self.difference
        ratio = self.times.ratio
        return Estimate(ratio.value, ratio.low, ratio.high)

    def to_json(self) -> dict[str, Any]:
        """Return what is known in JSON types."""
        return {
            "before": self.before.name,
            "after": self.after.name,
            "pairs": self.num_pairs,
            "effect": interval_json(self.effect),
            "p_value": self.p_value,
            "adjusted_p_value": self.adjusted,
            "decision": str(self.decision),
            "reached_before": None if self.times is None else self.times.reached_before,
            "reached_after": None if self.times is None else self.times.reached_after,
            "sooner": None if self.times is None else interval_json(self.times.sooner),
            "saved": None if self.times is None else interval_json(self.times.saved),
            "quality_at_equal_time": interval_json(self.quality),
            "quality_at_equal_samples": interval_json(self.quality_by_samples),
            "throughput": self.throughput if math.isfinite(self.throughput) else None,
            "failures": self.failures,
        }

    def __str__(self) -> str:
        """The effect with its interval, p-value and number of pairs."""
        if self.times is not None:
            text = str(self.times)
        elif self.difference is not None:
            value, low, high = self.difference.value, self.difference.low, self.difference.high
            interval = f"[{low:+.3g}, {high:+.3g}]" if self.difference.has_interval else "(no interval)"
            text = f"{value:+.3g} {interval}, p = {self.p_value:.2g}, {plural(self.num_pairs, 'pair')}"
        else:
            text = f"no pair, {plural(self.num_pairs, 'run')}"
        return text + (f", {plural(self.failures, 'run')} failed" if self.failures else "")


def interval_json(estimate: Estimate | None) -> dict[str, float | None] | None:
    """Return an estimate in JSON types, which have no infinity.

    Args:
        estimate: The estimate.

    >>> interval_json(Estimate(1.5, 1.2, math.inf))
    {'value': 1.5, 'low': 1.2, 'high': None}
    """
    if estimate is None:
        return None
    ends = {"value": estimate.value, "low": estimate.low, "high": estimate.high}
    return {name: end if math.isfinite(end) else None for name, end in ends.items()}


def advantages(goal: Goal, before: Sequence[Outcome], after: Sequence[Outcome], limit: float) -> list[float]:
    """Return how much better the second run of each pair is, for :class:`.SequentialTest`.

    Args:
        goal: The goal.
        before: Runs without the change.
        after: Runs with it, with the same seeds in the same order.
        limit: Seconds of training that runs were given.

    Returns:
        Logarithms of the ratios of times; or differences of the metric, 0 for a pair of which none has it, and the
        largest difference of all pairs, or its negative, where only one has it.

    >>> from composer.exploration.trajectory import Evaluation
    >>> run = Trajectory((Evaluation(5.0, 1, 1, 0.8), Evaluation(10.0, 1, 1, 0.9)), 10.0, 1)
    >>> advantages(Goal("accuracy", True, seconds=10.0), [run], [run], 10.0)
    [0.0]
    """
    if goal.target is not None:
        return log_ratios(_times(goal, before), _times(goal, after), limit)
    pairs = list(zip(_values(goal, before, limit), _values(goal, after, limit), strict=True))
    known = [two - one for one, two in pairs if one is not None and two is not None]
    largest = max(map(abs, known), default=0.0) or 1.0
    found: list[float] = []
    for one, two in pairs:
        if one is not None and two is not None:
            found.append(two - one)
        else:
            found.append(0.0 if one is two else largest if one is None else -largest)
    return found


def compare_runs(
    goal: Goal,
    variants: tuple[Variant, Variant],
    before: Sequence[Outcome],
    after: Sequence[Outcome],
    limit: float,
    accepted: bool | None = None,
) -> PairedRuns:
    """Compare pairs of runs with the same seed.

    Args:
        goal: The goal.
        variants: The variant without and with the change.
        before: Runs without the change, at least one.
        after: Runs with it, in the same order.
        limit: Seconds of training that runs were given.
        accepted: Whether a sequential test has accepted the change; None if the p-value of these pairs decides.

    >>> from composer.exploration.trajectory import Evaluation
    >>> run = Trajectory((Evaluation(5.0, 1, 1, 0.8), Evaluation(10.0, 1, 1, 0.9)), 10.0, 1)
    >>> goal, variants = Goal("accuracy", True, target=0.9), (Variant("SAM"), Variant("EMA"))
    >>> str(compare_runs(goal, variants, [run] * 2, [run] * 2, 20.0))
    '1 times as fast [1, 1], p = 1, 2 pairs'
    """
    failures = sum(isinstance(one, Failure) for one in after)
    times = difference = None
    if goal.target is not None:
        times = compare(_times(goal, before), _times(goal, after), limit)
        p_value = times.p_value
    else:
        pairs = zip(_values(goal, before, limit), _values(goal, after, limit), strict=True)
        known = [two - one for one, two in pairs if one is not None and two is not None]
        difference = mean_interval(known) if known else None
        p_value = sign_flip_test(advantages(goal, before, after, limit)).greater
    found = PairedRuns(
        before=variants[0],
        after=variants[1],
        num_pairs=len(before),
        p_value=p_value,
        adjusted=p_value,
        decision=Decision.UNDECIDED,
        times=times,
        difference=difference,
        quality=_quality(goal, before, after, by_samples=False),
        quality_by_samples=_quality(goal, before, after, by_samples=True),
        throughput=_throughput(before, after),
        failures=failures,
    )
    return replace(found, decision=_decision(found, p_value, accepted))


def with_holm(found: Sequence[PairedRuns], accepted: Sequence[bool] | None = None) -> list[PairedRuns]:
    """Return comparisons with p-values that are adjusted for their number, and the decisions that follow.

    Args:
        found: Changes that are tested together.
        accepted: Whether a sequential test has accepted each; None if the adjusted p-values decide.

    >>> one = PairedRuns(Variant("SAM"), Variant("EMA"), 8, 0.03, 0.03, Decision.UNDECIDED)
    >>> [each.adjusted for each in with_holm([one, one])]
    [0.06, 0.06]
    """
    adjusted = holm_adjusted([one.p_value for one in found])
    given = [None] * len(found) if accepted is None else accepted
    return [
        replace(one, adjusted=p_value, decision=_decision(one, p_value, is_accepted))
        for one, p_value, is_accepted in zip(found, adjusted, given, strict=True)
    ]


def _decision(found: PairedRuns, p_value: float, accepted: bool | None) -> Decision:
    """Whether a change pays, by its interval and a p-value or a sequential test."""
    if accepted is not None:
        p_value = 0.0 if accepted else 1.0
    if found.failures:
        return Decision.DOES_NOT if found.failures == found.num_pairs else Decision.UNDECIDED
    if found.times is not None:
        return found.times.decide(p_value, SMALLEST_EFFECT)
    if found.difference is None:
        return Decision.UNDECIDED
    if found.difference.high <= 0:
        return Decision.DOES_NOT
    return Decision.PAYS if p_value <= 0.05 and found.difference.low > 0 else Decision.UNDECIDED


def _times(goal: Goal, runs: Sequence[Outcome]) -> list[float | None]:
    """Seconds to the target; a run that failed has not reached it."""
    return [None if isinstance(run, Failure) else time_to_target(run, goal) for run in runs]


def _values(goal: Goal, runs: Sequence[Outcome], seconds: float) -> list[float | None]:
    """The metric at a time such that more is better; None for a run that failed, diverged or ended much before."""
    sign = 1.0 if goal.maximize else -1.0
    found: list[float | None] = []
    for run in runs:
        value = None
        if isinstance(run, Trajectory):
            # The last step may end a little before the time, and a run by itself long before.
            value = value_at(run, min(seconds, run.seconds))
        found.append(sign * value if value is not None and math.isfinite(value) else None)
    return found


def _quality(goal: Goal, before: Sequence[Outcome], after: Sequence[Outcome], *, by_samples: bool) -> Estimate | None:
    """The difference of the metric where both runs of a pair have come, after equal time or equal samples."""
    sign = 1.0 if goal.maximize else -1.0
    found: list[float] = []
    for one, two in zip(before, after, strict=True):
        if isinstance(one, Failure) or isinstance(two, Failure) or not one.evaluations or not two.evaluations:
            continue
        curves = [
            [(each.samples if by_samples else each.seconds, each.value) for each in run.evaluations]
            for run in (one, two)
        ]
        end = min(curve[-1][0] for curve in curves)
        if end < max(curve[0][0] for curve in curves):
            continue
        first, second = (
            float(np.interp(end, [place for place, _ in curve], [value for _, value in curve])) for curve in curves
        )
        if math.isfinite(second - first):
            found.append(sign * (second - first))
    return mean_interval(found) if found else None


def _throughput(before: Sequence[Outcome], after: Sequence[Outcome]) -> float:
    """The ratio of samples a second, the geometric mean of pairs."""
    logs: list[float] = []
    for one, two in zip(before, after, strict=True):
        rates = [
            run.evaluations[-1].samples / run.evaluations[-1].seconds
            for run in (one, two)
            if isinstance(run, Trajectory) and run.evaluations and run.evaluations[-1].seconds > 0
        ]
        if len(rates) == 2 and min(rates) > 0:
            logs.append(math.log(rates[1] / rates[0]))
    return math.exp(sum(logs) / len(logs)) if logs else math.nan
