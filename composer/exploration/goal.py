"""Goals: what a run is to reach, and how runs are compared by it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from composer._text import printable
from composer.core.metric_direction import require_direction
from composer.core.metric_target import MetricTarget
from composer.exploration.durations import as_seconds
from composer.statistics.crossing import reaches

__all__ = ["Goal", "as_share"]


@dataclass(frozen=True)
class Goal:
    """A value that a metric is to reach as soon as possible, or a time after which it is to be as good as possible.

    Args:
        metric: Name of the metric as the trainer logs it, with or without the label of the evaluator.
        maximize: Whether larger values are better.
        target: The value to reach; None if the quality after a time counts.
        seconds: The time of training after which the quality counts; None if the time to a target does.

    Raises:
        ValueError: Not exactly one of target and seconds is given.

    >>> Goal.parse("MulticlassAccuracy>=0.96")
    Goal(metric='MulticlassAccuracy', maximize=True, target=0.96, seconds=None)
    """

    metric: str
    maximize: bool
    target: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.target is None) == (self.seconds is None):
            raise ValueError(
                f"A goal has either a target or a number of seconds; got target={self.target} and "
                f"seconds={self.seconds}."
            )

    @classmethod
    def parse(cls, text: str) -> Goal:
        """Return the goal that a text describes: ``METRIC>=VALUE`` or ``METRIC<=VALUE``.

        Args:
            text: The text.

        Raises:
            ValueError: It has another form.

        >>> Goal.parse("LanguagePerplexity<=12").maximize
        False
        """
        target = MetricTarget.parse(text)
        return cls(target.metric, target.mode == "max", target=target.value)

    @classmethod
    def quality_at(cls, time: str | float, metric: str, maximize: bool | None = None) -> Goal:
        """Return the goal of the best value after a time of training.

        Args:
            time: The time, such as "10m".
            metric: The metric.
            maximize: Whether larger values are better; None finds out by the name, see :func:`.larger_is_better`.

        Raises:
            ValueError: The time has another form, or the name does not say which values are better.

        >>> Goal.quality_at("10m", "MulticlassAccuracy")
        Goal(metric='MulticlassAccuracy', maximize=True, target=None, seconds=600.0)
        """
        return cls(metric, _direction(metric, maximize), seconds=as_seconds("quality_at", time))

    @classmethod
    def within(cls, share: str, metric: str, final: float, maximize: bool | None = None) -> Goal:
        """Return the goal to come near to the final value of the unchanged run as soon as possible.

        Args:
            share: The largest difference, in percent of the final value: "0.5%".
            metric: The metric.
            final: The final value of the unchanged run.
            maximize: Whether larger values are better; None finds out by the name.

        Raises:
            ValueError: The share is not a percentage below 100 %, the final value is not finite, or the name does not
                say which values are better.

        >>> Goal.within("0.5%", "MulticlassAccuracy", final=0.98).target
        0.9751
        """
        percent = as_share(share)
        if not math.isfinite(final):
            raise ValueError(f"The final {metric} of the unchanged run is {final}, so that nothing is near it.")
        maximize = _direction(metric, maximize)
        return cls(metric, maximize, target=final + abs(final) * percent / 100 * (-1 if maximize else 1))

    def is_reached(self, value: float) -> bool:
        """Return whether a value of the metric reaches the target, see :func:`.reaches`; False without one.

        Args:
            value: The value.

        >>> Goal("loss", False, target=1.0).is_reached(0.9)
        True
        """
        return self.target is not None and reaches(value, self.target, "max" if self.maximize else "min")

    def __str__(self) -> str:
        """The goal as people write it."""
        metric = printable(self.metric)
        if self.target is None:
            return f"{metric} after {self.seconds:g} s"
        return f"{metric}{'>=' if self.maximize else '<='}{self.target:g}"


def as_share(share: str) -> float:
    """Return the number of a percentage.

    Args:
        share: The percentage, such as "0.5%".

    Raises:
        ValueError: It is none, or 100 % or more.

    >>> as_share("0.5%")
    0.5
    """
    try:
        percent = float(share.strip().removesuffix("%")) if share.strip().endswith("%") else math.nan
    except ValueError:
        percent = math.nan
    if not 0 <= percent < 100:
        raise ValueError(f"within must be a percentage such as 0.5%, below 100%; got {share!r}.")
    return percent


def _direction(metric: str, maximize: bool | None) -> bool:
    """Return whether larger values of a metric are better."""
    return (
        require_direction(metric, None, "maximize=True or maximize=False", "metric") if maximize is None else maximize
    )
