"""The goal of an exploration as a user writes it, checked in two steps: by its form, and by the program's metrics."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from composer.core.metric_direction import require_direction
from composer.core.metric_names import MetricName, find_metric
from composer.core.metric_target import MetricTarget
from composer.exploration.durations import as_seconds
from composer.exploration.goal import Goal, as_share

__all__ = ["GoalOptions", "evaluated_metric"]

_LOSSES = ("loss", "crossentropy")


@dataclass(frozen=True)
class GoalOptions:
    """A goal in one of its three forms.

    Args:
        target: A metric and a value that is to be reached as soon as possible: "MulticlassAccuracy>=0.96".
        quality_at: A time of training, such as "10m", after which the metric is to be as good as possible.
        within: A percentage, such as "0.5%": how near the metric must come, as soon as possible, to what the unchanged
            program reaches in the end.
        metric: The metric of ``quality_at`` and ``within``; None for the only one that is evaluated.

    Raises:
        TypeError: An argument has another type.
        ValueError: Not exactly one form is given, or it cannot be read.

    >>> GoalOptions(target="MulticlassAccuracy>=0.96").goal([("eval/MulticlassAccuracy", True)]).target
    0.96
    """

    target: str | None = None
    quality_at: str | float | None = None
    within: str | None = None
    metric: str | None = None

    def __post_init__(self) -> None:
        given = {"target": self.target, "quality_at": self.quality_at, "within": self.within}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 1:
            raise ValueError(
                "Give one goal: target (such as MulticlassAccuracy>=0.96), quality_at (such as 10m) or within (such as "
                f"0.5%); got {' and '.join(names) or 'none'}."
            )
        for name in ("target", "within", "metric"):
            value = getattr(self, name)
            if not isinstance(value, str | None):
                raise TypeError(f"{name} must be a string, but got {value!r}.")
        if self.target is not None:
            Goal.parse(self.target)
            if self.metric is not None:
                raise ValueError(f"target names its metric itself, so that metric={self.metric!r} is one too many.")
        if self.quality_at is not None:
            as_seconds("quality_at", self.quality_at)
        if self.within is not None:
            as_share(self.within)

    @property
    def is_relative(self) -> bool:
        """Whether the target follows from runs of the unchanged program, see :meth:`near`."""
        return self.within is not None

    def goal(self, metrics: Sequence[tuple[str, bool | None]]) -> Goal:
        """Return the goal for a program; that of ``within`` has no target yet.

        Args:
            metrics: Names of the metrics of the evaluators as "label/name", and whether larger values are better.

        Raises:
            ValueError: The program has no such metric, or smaller values are better where the target says larger.

        >>> GoalOptions(quality_at="10m").goal([("eval/MulticlassAccuracy", True)])
        Goal(metric='eval/MulticlassAccuracy', maximize=True, target=None, seconds=600.0)
        """
        if self.target is not None:
            target = MetricTarget.parse(self.target)
            target.check_direction(_chosen(metrics, target.metric)[1])
            return Goal.parse(self.target)
        name = self.metric
        if name is None:
            if len(metrics) > 1:
                listed = ", ".join(repr(one) for one, _ in metrics)
                raise ValueError(f"Give the metric: the program evaluates {listed}.")
            name = metrics[0][0] if metrics else "metric"
        found, maximize = _chosen(metrics, name)
        if maximize is None:
            remedy = "a metric whose class has higher_is_better, or a target such as METRIC>=VALUE"
            maximize = require_direction(name, None, remedy, "metric")
        if self.quality_at is not None:
            return Goal.quality_at(self.quality_at, name, maximize)
        return Goal(str(found), maximize, seconds=math.inf)

    def near(self, goal: Goal, final: float) -> Goal:
        """Return the goal of ``within``.

        Args:
            goal: What :meth:`goal` returned.
            final: What the unchanged program reaches in the end.

        Raises:
            ValueError: The final value is not finite.

        >>> options = GoalOptions(within="0.5%")
        >>> options.near(options.goal([("eval/MulticlassAccuracy", True)]), 0.98).target
        0.9751
        """
        return Goal.within(self.within or "", goal.metric, final, goal.maximize)


def evaluated_metric(known: Mapping[str, Iterable[str]], name: str) -> MetricName:
    """Return the metric of a goal among those of the evaluators.

    Args:
        known: The names of the metrics, by the label of the evaluator.
        name: Name of the metric in any of its spellings; "loss" for the only one that is a loss.

    Raises:
        ValueError: No evaluator computes it, or several do.

    >>> evaluated_metric({"eval": ["Accuracy", "CrossEntropy"]}, "loss")
    MetricName(label='eval', name='CrossEntropy')
    """
    try:
        return find_metric({label: dict.fromkeys(metrics) for label, metrics in known.items()}, name, argument="metric")
    except ValueError as error:
        pairs = [MetricName(label, one) for label, metrics in known.items() for one in metrics]
        losses = [pair for pair in pairs if any(word in pair.name.lower() for word in _LOSSES)]
        if name == "loss" and len(losses) == 1:
            return losses[0]
        told = " The loss of training does not compare methods that change it." if name == "loss" else ""
        raise ValueError(f"{error}{told}") from None


def _chosen(metrics: Sequence[tuple[str, bool | None]], name: str) -> tuple[MetricName, bool | None]:
    """The metric of a name, and whether larger values of it are better."""
    known: dict[str, list[str]] = {}
    for full, _ in metrics:
        label, _, own = full.partition("/")
        known.setdefault(label, []).append(own)
    found = evaluated_metric(known, name)
    return found, dict(metrics)[str(found)]
