"""A value that a metric is to reach, as people write it: ``MulticlassAccuracy>=0.96``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

from composer.statistics.crossing import reaches

__all__ = ["MetricTarget"]

_FORM = re.compile(r"\s*(?P<metric>[^<>\s][^<>]*?)\s*(?P<relation>>=|<=)\s*(?P<value>[^<>=\s]+)\s*")


@dataclass(frozen=True)
class MetricTarget:
    """A value that a metric is to reach.

    Args:
        metric: Name of the metric, with or without the label of its data.
        value: The value.
        mode: "max" if larger values are better, "min" if smaller ones are.

    >>> MetricTarget.parse("MulticlassAccuracy>=0.96")
    MetricTarget(metric='MulticlassAccuracy', value=0.96, mode='max')
    """

    metric: str
    value: float
    mode: Literal["max", "min"]

    @classmethod
    def parse(cls, text: str) -> MetricTarget:
        """Return the target that a text describes: ``METRIC>=VALUE`` or ``METRIC<=VALUE``.

        Args:
            text: The text.

        Raises:
            ValueError: It has another form, or the value is not finite.

        >>> MetricTarget.parse("eval/CrossEntropy <= 0.5").mode
        'min'
        """
        match = _FORM.fullmatch(text)
        try:
            value = math.nan if match is None else float(match["value"])
        except ValueError:
            value = math.nan
        if match is None or not math.isfinite(value):
            raise ValueError(
                f"target must be METRIC>=VALUE or METRIC<=VALUE, such as MulticlassAccuracy>=0.96; got {text!r}."
            )
        return cls(match["metric"], value, "max" if match["relation"] == ">=" else "min")

    def is_reached(self, value: float) -> bool:
        """Return whether a value of the metric reaches the target, see :func:`.reaches`.

        Args:
            value: The value.

        >>> MetricTarget.parse("loss<=1").is_reached(0.9)
        True
        """
        return reaches(value, self.value, self.mode)

    def check_direction(self, larger_is_better: bool | None) -> None:
        """Check that the target asks for better values of the metric, not for worse ones.

        Args:
            larger_is_better: Whether larger values of the metric are better; None if unknown, where any target is fine.

        Raises:
            ValueError: The target is in the other direction.

        >>> MetricTarget.parse("Accuracy<=0.9").check_direction(True)
        Traceback (most recent call last):
        ...
        ValueError: target='Accuracy<=0.9': larger values of Accuracy are better. Write Accuracy>=0.9.
        """
        if larger_is_better in (None, self.mode == "max"):
            return
        given, relation, better = (">=", "<=", "smaller") if self.mode == "max" else ("<=", ">=", "larger")
        raise ValueError(
            f"target={f'{self.metric}{given}{self.value:g}'!r}: {better} values of {self.metric} are better. Write "
            f"{self.metric}{relation}{self.value:g}."
        )

    @property
    def condition(self) -> str:
        """The target without the metric: ">= 0.96"."""
        return f"{'>=' if self.mode == 'max' else '<='} {self.value:g}"
