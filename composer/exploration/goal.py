"""Goals: what a run is to reach, and how runs are compared by it."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Goal"]

_TARGET = re.compile(r"\s*(?P<metric>[^<>=\s][^<>=]*?)\s*(?P<relation>>=|<=)\s*(?P<value>[^<>=\s]+)\s*")


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
        match = _TARGET.fullmatch(text)
        try:
            if match is None:
                raise ValueError
            value = float(match["value"])
        except ValueError:
            raise ValueError(
                f"A target has the form METRIC>=VALUE or METRIC<=VALUE, such as MulticlassAccuracy>=0.96; got {text!r}."
            ) from None
        return cls(match["metric"], match["relation"] == ">=", target=value)

    def is_reached(self, value: float) -> bool:
        """Return whether a value of the metric reaches the target; False without one.

        Args:
            value: The value.

        >>> Goal("loss", False, target=1.0).is_reached(0.9)
        True
        """
        if self.target is None:
            return False
        return value >= self.target if self.maximize else value <= self.target

    def __str__(self) -> str:
        """The goal as people write it."""
        if self.target is None:
            return f"{self.metric} after {self.seconds:g} s"
        return f"{self.metric}{'>=' if self.maximize else '<='}{self.target:g}"
