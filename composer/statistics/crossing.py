"""Time to a target: when a curve of a metric first reaches it, interpolated between evaluations."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

from composer._numbers import real_number
from composer._text import one_of
from composer.statistics._arguments import at_least

__all__ = ["Crossing", "first_crossing", "in_float32", "reaches"]


@dataclass(frozen=True)
class Crossing:
    """When a metric reached a target.

    Args:
        time: Seconds to the target, interpolated; None if it was not reached.
        low: Seconds at which the target was certainly not yet reached: the evaluation before, or the start.
        high: Seconds at which it was certainly reached: the evaluation after; infinite if it was not.
        at_first: Whether already the first evaluation reached it, so that nothing can be interpolated: ``time`` is
            that of the evaluation and the target was reached at an unknown time before (interval censoring).
        limit: Seconds up to which the metric was evaluated; for :func:`~composer.statistics.compare`.

    >>> first_crossing([10.0, 20.0], [0.5, 0.9], target=0.7).time
    15.0
    """

    time: float | None
    low: float
    high: float
    at_first: bool
    limit: float

    @property
    def is_reached(self) -> bool:
        """Whether the target was reached."""
        return self.time is not None


def first_crossing(
    times: Sequence[float],
    values: Sequence[float],
    target: float,
    mode: str = "max",
    window: int = 1,
    start: float = 0.0,
) -> Crossing:
    """Return when a metric first reaches a target, by linear interpolation between evaluations.

    Evaluations are rare, so that the first one at the target comes late by up to their distance. Interpolation removes
    most of that:

        t = t0 + (t1 - t0) (target - v0) / (v1 - v0)          v0 before the target, v1 at it or beyond

    What counts as the target is said by :func:`reaches`. A metric that is NaN has not reached it, and nothing is
    interpolated from NaN or infinity: the time is then that of the evaluation.

    Args:
        times: Seconds of the evaluations, ascending.
        values: The metric at each.
        target: The value to reach.
        mode: ``"max"`` if larger values are better, ``"min"`` if smaller ones are.
        window: Number of evaluations whose mean must reach the target, so that a single lucky one does not count. The
            mean belongs to the time of the last of them.
        start: Seconds at which training began, on the same clock.

    Raises:
        TypeError: An argument is not a number.
        ValueError: There are no evaluations, as many times as values are not given, times do not ascend from ``start``,
            ``target`` or a time is not finite, or ``mode`` is not known.

    >>> first_crossing([10.0, 20.0, 30.0], [2.0, 1.0, 0.5], target=0.75, mode="min").time
    25.0
    >>> first_crossing([10.0, 20.0], [0.8, 0.9], target=0.7)
    Crossing(time=10.0, low=0.0, high=10.0, at_first=True, limit=20.0)
    >>> first_crossing([10.0, 20.0], [0.5, 0.6], target=0.7).is_reached
    False
    """
    clock, curve = _checked(times, values, start)
    goal = real_number("target", target)
    if not math.isfinite(goal):
        raise ValueError(f"target must be finite, but got {target!r}.")
    sign = 1.0 if one_of("mode", mode, ("max", "min")) == "max" else -1.0
    width = at_least("window", window, 1)
    clock, curve = (
        clock[width - 1 :],
        [sign * sum(curve[last - width : last]) / width for last in range(width, len(curve) + 1)],
    )
    limit = float(times[-1])
    number = next((number for number, value in enumerate(curve) if reaches(sign * value, goal, mode)), None)
    if number is None:
        return Crossing(None, limit, math.inf, at_first=False, limit=limit)
    if number == 0:
        return Crossing(clock[0], float(start), clock[0], at_first=True, limit=limit)
    low, high = clock[number - 1], clock[number]
    share = (sign * goal - curve[number - 1]) / (curve[number] - curve[number - 1])
    # The share is NaN or 0 beside a value that is not finite.
    time = min(low + (high - low) * share, high) if share > 0 else high
    return Crossing(time, low, high, at_first=False, limit=limit)


def reaches(value: float, target: float, mode: str = "max") -> bool:
    """Return whether a value reaches a target: it is the target or better, or the target in float32.

    Metrics are computed in float32: 95 of 100 right answers are 0.949999988, which is to reach 0.95.

    Args:
        value: The value.
        target: The target.
        mode: ``"max"`` if larger values are better, ``"min"`` if smaller ones are.

    >>> reaches(float(torch.tensor(95) / 100), 0.95), reaches(0.9499999, 0.95)
    (True, False)
    """
    return (value >= target if mode == "max" else value <= target) or value == in_float32(target)


def in_float32(value: float) -> float:
    """Return a number rounded to float32, or as it is beyond the range of float32.

    Args:
        value: The number.

    >>> in_float32(0.95)
    0.949999988079071
    """
    rounded = ctypes.c_float(value).value
    return rounded if math.isfinite(rounded) else value


def _checked(times: Sequence[float], values: Sequence[float], start: float) -> tuple[list[float], list[float]]:
    """The times and values as floats."""
    if len(times) != len(values) or not len(times):
        raise ValueError(
            f"times and values must have the same number of evaluations, at least 1; got {len(times)} and "
            f"{len(values)}."
        )
    clock = [real_number(f"times[{number}]", time) for number, time in enumerate(times)]
    last = real_number("start", start)
    for number, time in enumerate(clock):
        # Training may begin with an evaluation.
        if not (last < time < math.inf or (number == 0 and time == last)):
            raise ValueError(f"times[{number}] must be finite and after {last!r}, but got {time!r}.")
        last = time
    return clock, [real_number(f"values[{number}]", value) for number, value in enumerate(values)]
