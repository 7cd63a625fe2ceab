"""Learning-rate schedulers with linear warm-up, and ``WithWarmup``, which adds a warm-up to any schedule."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias, final

from composer._numbers import in_unit_interval, non_negative, positive
from composer.core.time import Time
from composer.optim import schedule_curves
from composer.optim.basic_schedules import as_milestones, multi_step
from composer.optim.schedule import ComposerScheduler, Plan, as_time, over, rising
from composer.optim.schedule_times import Horizon, Span
from composer.warnings import ComposerWarning

__all__ = [
    "ConstantWithWarmupScheduler",
    "CosineAnnealingWithWarmupScheduler",
    "LinearWithWarmupScheduler",
    "MultiStepWithWarmupScheduler",
    "PolynomialWithWarmupScheduler",
    "WithWarmup",
    "warmup_span",
]


def warmup_span(horizon: Horizon, t_warmup: Time, scale_warmup: bool) -> Span:
    """Return the span of a warm-up.

    Args:
        horizon: The run that the times refer to.
        t_warmup: Length of the warm-up.
        scale_warmup: Whether the ratio of the horizon applies.

    Warns:
        ComposerWarning: The warm-up is longer than the run, which then ends before the warm-up does; or it is shorter
            than one unit.

    >>> warmup_span(Horizon.of_run("100ba"), Time(0.1, "dur"), False).length
    10
    """
    span = horizon.span(t_warmup, scaled=scale_warmup)
    if horizon.exceeded_by(span):
        # Not an error: people try the configuration of a long run with max_duration="1ba".
        message = (
            f"t_warmup='{t_warmup}' is {span}, longer than the run of {horizon.total}: the run ends before the "
            f"warm-up does. To scale the warm-up with the duration of the run, use a fraction such as '0.1dur'."
        )
        warnings.warn(message, ComposerWarning, stacklevel=2)
    if span.length <= 0 < t_warmup.value:
        message = f"t_warmup='{t_warmup}' is less than one {span.unit.name.lower()} in this run: there is no warm-up."
        warnings.warn(message, ComposerWarning, stacklevel=2)
    return span


def _after_warmup(schedule: _ToTheEnd, horizon: Horizon, first: float, curve: Callable[[float], float]) -> Plan:
    """Return the plan that warms up to ``first`` and then follows a curve until ``t_max``."""
    t_warmup, t_max = schedule.t_warmup, schedule.t_max
    warmup, span = warmup_span(horizon, t_warmup, schedule.scale_warmup), schedule.__end__(horizon)
    if warmup.unit is not span.unit:
        raise ValueError(
            f"t_warmup='{t_warmup}' is counted in '{warmup.unit}' and t_max='{t_max}' in '{span.unit}' in this run. "
            f"Pass both in one unit."
        )
    if warmup.stop > span.stop and not horizon.exceeded_by(warmup):
        message = (
            f"t_warmup='{t_warmup}' ({warmup}) is longer than t_max='{t_max}' ({span}): nothing follows the warm-up."
        )
        warnings.warn(message, ComposerWarning, stacklevel=2)
    total = horizon.total
    if not horizon.followed and total is not None and total.unit is span.unit and span.stop < total.stop:
        raise ValueError(
            f"t_max='{t_max}' is {span}, less than the run of {total}, which the schedule must cover. Use "
            f"t_max='1dur', or add a schedule for the rest: schedule + ConstantScheduler(0.1)."
        )
    if warmup.stop >= span.stop:
        return rising(warmup, first, lambda now: first)
    return rising(warmup, first, over(Span(span.unit, span.stop - warmup.stop, warmup.stop), curve))


@final
class MultiStepWithWarmupScheduler(ComposerScheduler):
    """Warms up linearly, then multiplies the value by ``gamma`` at each milestone.

        f(t) = t / t_warmup                                         before t_warmup
        f(t) = gamma ** (number of milestones at or before t)       from then on

    Args:
        t_warmup: Length of the warm-up.
        milestones: Times at which the value changes, from the start of the run. They may have different units.
        gamma: Factor of each change.
        scale_warmup: Whether ``scale_schedule_ratio`` applies to ``t_warmup``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A time is negative, or ``gamma`` is not positive.

    >>> MultiStepWithWarmupScheduler("2ba", ["3ba"], gamma=0.5).preview("4ba")
    [0.0, 0.5, 1.0, 0.5, 0.5]
    """

    def __init__(
        self,
        t_warmup: str | Time,
        milestones: str | Time | Sequence[str | Time],
        gamma: float = 0.1,
        scale_warmup: bool = False,
    ) -> None:
        self.t_warmup = as_time("t_warmup", t_warmup)
        self.milestones = as_milestones(milestones)
        self.gamma = positive("gamma", gamma)
        self.scale_warmup = scale_warmup

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        warmup = warmup_span(horizon, self.t_warmup, self.scale_warmup)
        return rising(warmup, 1.0, multi_step(horizon, self.milestones, self.gamma))


@final
class ConstantWithWarmupScheduler(ComposerScheduler):
    """Warms up linearly to ``alpha`` and stays there.

        f(t) = alpha * min(1, t / t_warmup)

    Args:
        t_warmup: Length of the warm-up.
        alpha: The multiplier after the warm-up.
        t_max: When the schedule ends, if another follows it.
        scale_warmup: Whether ``scale_schedule_ratio`` applies to ``t_warmup``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A time or multiplier is negative; when the run begins: ``t_warmup`` is in a different unit than
            ``t_max``, or ``t_max`` is less than the run.

    >>> ConstantWithWarmupScheduler("2ba").preview("4ba")
    [0.0, 0.5, 1.0, 1.0, 1.0]
    """

    def __init__(
        self, t_warmup: str | Time, alpha: float = 1.0, t_max: str | Time = "1dur", scale_warmup: bool = False
    ) -> None:
        self.t_warmup = as_time("t_warmup", t_warmup)
        self.alpha = non_negative("alpha", alpha)
        self.t_max = as_time("t_max", t_max)
        self.scale_warmup = scale_warmup

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        alpha = self.alpha
        return _after_warmup(self, horizon, alpha, lambda fraction: alpha)


@final
class LinearWithWarmupScheduler(ComposerScheduler):
    """Warms up linearly to ``alpha_i``, then changes linearly to ``alpha_f``.

        f(t) = alpha_i * t / t_warmup                                                   before t_warmup
        f(t) = alpha_i + (alpha_f - alpha_i) * (t - t_warmup) / (t_max - t_warmup)      from then on

    Args:
        t_warmup: Length of the warm-up.
        alpha_i: The multiplier at the end of the warm-up.
        alpha_f: The multiplier at ``t_max``.
        t_max: When the schedule ends.
        scale_warmup: Whether ``scale_schedule_ratio`` applies to ``t_warmup``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A time or multiplier is negative; when the run begins: ``t_warmup`` is in a different unit than
            ``t_max``, or ``t_max`` is less than the run.

    >>> LinearWithWarmupScheduler("2ba").preview("6ba")
    [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    def __init__(
        self,
        t_warmup: str | Time,
        alpha_i: float = 1.0,
        alpha_f: float = 0.0,
        t_max: str | Time = "1dur",
        scale_warmup: bool = False,
    ) -> None:
        self.t_warmup = as_time("t_warmup", t_warmup)
        self.alpha_i = non_negative("alpha_i", alpha_i)
        self.alpha_f = non_negative("alpha_f", alpha_f)
        self.t_max = as_time("t_max", t_max)
        self.scale_warmup = scale_warmup

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        curve = partial(schedule_curves.linear, start=self.alpha_i, end=self.alpha_f)
        return _after_warmup(self, horizon, self.alpha_i, curve)


@final
class CosineAnnealingWithWarmupScheduler(ComposerScheduler):
    """Warms up linearly, then decays to ``alpha_f`` along half a cosine period.

        f(t) = t / t_warmup                                                             before t_warmup
        f(t) = alpha_f + (1 - alpha_f) * (1 + cos(pi * s)) / 2                          from then on
        s = (t - t_warmup) / (t_max - t_warmup)

    Args:
        t_warmup: Length of the warm-up.
        t_max: When the schedule ends.
        alpha_f: The multiplier at ``t_max``.
        scale_warmup: Whether ``scale_schedule_ratio`` applies to ``t_warmup``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A time or multiplier is negative; when the run begins: ``t_warmup`` is in a different unit than
            ``t_max``, or ``t_max`` is less than the run.

    >>> [round(value, 3) for value in CosineAnnealingWithWarmupScheduler("2ba").preview("6ba")]
    [0.0, 0.5, 1.0, 0.854, 0.5, 0.146, 0.0]

    Paper: https://arxiv.org/abs/1706.02677 (Goyal et al. 2017: warm-up), https://arxiv.org/abs/1608.03983 (Loshchilov
    and Hutter 2017: cosine)
    """

    def __init__(
        self, t_warmup: str | Time, t_max: str | Time = "1dur", alpha_f: float = 0.0, scale_warmup: bool = False
    ) -> None:
        self.t_warmup = as_time("t_warmup", t_warmup)
        self.t_max = as_time("t_max", t_max)
        self.alpha_f = non_negative("alpha_f", alpha_f)
        self.scale_warmup = scale_warmup

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        curve = partial(schedule_curves.cosine, end=self.alpha_f)
        return _after_warmup(self, horizon, 1.0, curve)


@final
class PolynomialWithWarmupScheduler(ComposerScheduler):
    """Warms up linearly, then decays to ``alpha_f`` as a power of the remaining fraction of the run.

        f(t) = t / t_warmup                                                             before t_warmup
        f(t) = alpha_f + (1 - alpha_f) * (1 - s) ** power                               from then on
        s = (t - t_warmup) / (t_max - t_warmup)

    Args:
        t_warmup: Length of the warm-up.
        power: The exponent; 1 is linear.
        t_max: When the schedule ends.
        alpha_f: The multiplier at ``t_max``.
        scale_warmup: Whether ``scale_schedule_ratio`` applies to ``t_warmup``.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A time or multiplier is negative, or ``power`` is not positive; when the run begins: ``t_warmup`` is
            in another unit than ``t_max``, or ``t_max`` is less than the run.

    >>> PolynomialWithWarmupScheduler("2ba").preview("6ba")
    [0.0, 0.5, 1.0, 0.5625, 0.25, 0.0625, 0.0]
    """

    def __init__(
        self,
        t_warmup: str | Time,
        power: float = 2.0,
        t_max: str | Time = "1dur",
        alpha_f: float = 0.0,
        scale_warmup: bool = False,
    ) -> None:
        self.t_warmup = as_time("t_warmup", t_warmup)
        self.power = positive("power", power)
        self.t_max = as_time("t_max", t_max)
        self.alpha_f = non_negative("alpha_f", alpha_f)
        self.scale_warmup = scale_warmup

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        curve = partial(schedule_curves.polynomial, power=self.power, end=self.alpha_f)
        return _after_warmup(self, horizon, 1.0, curve)


@final
class WithWarmup(ComposerScheduler):
    """Warms up linearly to the first value of a schedule, which then covers the rest of the run.

    Inside the schedule, times count from the end of the warm-up, and fractions are of the rest of the run. So
    ``WithWarmup(CosineAnnealingScheduler(), "10ba")`` is ``CosineAnnealingWithWarmupScheduler("10ba")``.

    Args:
        schedule: Any schedule with a :meth:`~.ComposerScheduler.__plan__`.
        t_warmup: Length of the warm-up.
        scale_warmup: Whether ``scale_schedule_ratio`` applies to ``t_warmup``.
        alpha_i: Where the warm-up starts, as a fraction of the schedule's first value.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``t_warmup`` is negative, or ``alpha_i`` not in [0, 1].

    >>> from composer.optim import StepScheduler
    >>> WithWarmup(StepScheduler("2ba", gamma=0.5), "2ba", alpha_i=0.5).preview("6ba")
    [0.5, 0.75, 1.0, 1.0, 0.5, 0.5, 0.25]

    Paper: https://arxiv.org/abs/1706.02677 (Goyal et al. 2017)
    """

    def __init__(
        self, schedule: ComposerScheduler, t_warmup: str | Time, scale_warmup: bool = False, alpha_i: float = 0.0
    ) -> None:
        if not isinstance(schedule, ComposerScheduler):
            raise TypeError(f"schedule must be a ComposerScheduler with a plan, but got {schedule!r}.")
        self.schedule = schedule
        self.t_warmup = as_time("t_warmup", t_warmup)
        self.scale_warmup = scale_warmup
        self.alpha_i = in_unit_interval("alpha_i", alpha_i)

    @property
    def __parts__(self) -> Sequence[ComposerScheduler]:
        """The schedule after the warm-up."""
        return (self.schedule,)

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        warmup = warmup_span(horizon, self.t_warmup, self.scale_warmup)
        if horizon.exceeded_by(warmup):  # plan as for a longer run, to know the warm-up target
            horizon = replace(horizon, total=replace(warmup, length=2 * warmup.length))
        rest = horizon.after(warmup)
        plan = self.schedule.__plan__(rest)
        first = plan(Span(warmup.unit, 0, warmup.stop).beginning())
        return rising(warmup, first, plan, self.alpha_i)

    def __end__(self, horizon: Horizon) -> Span:
        """Return the span to the end of the schedule."""
        warmup = warmup_span(horizon, self.t_warmup, self.scale_warmup)
        stop = self.schedule.__end__(horizon.after(warmup)).stop
        return Span(warmup.unit, stop - warmup.start, warmup.start)


_ToTheEnd: TypeAlias = (
    ConstantWithWarmupScheduler
    | LinearWithWarmupScheduler
    | CosineAnnealingWithWarmupScheduler
    | PolynomialWithWarmupScheduler
)
