"""Learning-rate schedulers without warm-up: step, multi-step, constant, linear, exponential, cosine, polynomial."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import final

from composer._numbers import non_negative, positive
from composer.core.time import Time, TimeUnit
from composer.optim import schedule_curves
from composer.optim.schedule import ComposerScheduler, Plan, as_time, over
from composer.optim.schedule_times import Horizon

__all__ = [
    "ConstantScheduler",
    "CosineAnnealingScheduler",
    "CosineAnnealingWarmRestartsScheduler",
    "ExponentialScheduler",
    "LinearScheduler",
    "MultiStepScheduler",
    "PolynomialScheduler",
    "StepScheduler",
    "as_milestones",
    "multi_step",
    "period",
]


def period(argument: str, time: Time, horizon: Horizon) -> tuple[TimeUnit, float, float]:
    """Return the unit, start and length of a repeating period.

    Args:
        argument: Name of the argument that holds the length, for the error message.
        time: The length.
        horizon: The run that the times refer to.

    Raises:
        ValueError: The period is shorter than one unit in this run.

    >>> period("step_size", Time(2, "ep"), Horizon.of_run("10ep", epoch_length=5))
    (<TimeUnit.BATCH: 'ba'>, 0, 10)
    """
    span = horizon.span(time)
    if span.length <= 0:
        unit = span.unit.name.lower()
        raise ValueError(f"{argument}='{time}' is less than one {unit} in this run; give a longer time.")
    return span.unit, span.start, span.length


@final
class StepScheduler(ComposerScheduler):
    """Multiplies the value by ``gamma`` every ``step_size``.

        f(t) = gamma ** floor(t / step_size)

    Args:
        step_size: Time between two changes.
        gamma: Factor of each change.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``step_size`` is zero, or ``gamma`` is not positive.

    >>> StepScheduler("2ba", gamma=0.5).preview("5ba")
    [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """

    def __init__(self, step_size: str | Time, gamma: float = 0.1) -> None:
        self.step_size = as_time("step_size", step_size, allow_zero=False)
        self.gamma = positive("gamma", gamma)

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        (unit, start, length), gamma = period("step_size", self.step_size, horizon), self.gamma
        return lambda now: float(schedule_curves.staircase(now.count(unit) - start, length, gamma))


@final
class MultiStepScheduler(ComposerScheduler):
    """Multiplies the value by ``gamma`` at each milestone.

        f(t) = gamma ** (number of milestones at or before t)

    Args:
        milestones: Times at which the value changes, or a single time. They may have different units.
        gamma: Factor of each change.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: A milestone is negative, or ``gamma`` is not positive.

    >>> MultiStepScheduler(["2ba", "0.8dur"], gamma=0.5).preview("5ba")
    [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """

    def __init__(self, milestones: str | Time | Sequence[str | Time], gamma: float = 0.1) -> None:
        self.milestones = as_milestones(milestones)
        self.gamma = positive("gamma", gamma)

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        return multi_step(horizon, self.milestones, self.gamma)


def as_milestones(milestones: str | Time | Sequence[str | Time]) -> tuple[Time, ...]:
    """Return one or more times as a tuple; a tuple because in-place edits of a list would go unnoticed.

    Args:
        milestones: A time or a sequence of times.

    >>> as_milestones("10ep")
    (Time(10, TimeUnit.EPOCH),)
    """
    entries = [milestones] if isinstance(milestones, (str, Time)) else milestones
    return tuple(as_time("milestones", entry) for entry in entries)


def multi_step(horizon: Horizon, milestones: Sequence[Time], gamma: float) -> Plan:
    """Return the plan of :class:`MultiStepScheduler`.

    Args:
        horizon: The run that the times refer to.
        milestones: Times at which the value changes.
        gamma: Factor of each change.

    >>> from composer.core.timestamp import Timestamp
    >>> multi_step(Horizon.of_run("5ba"), [Time(2, "ba")], 0.5)(Timestamp(batch=2))
    0.5
    """
    spans = [horizon.span(milestone) for milestone in milestones]
    return lambda now: float(gamma ** sum([span.reached(now) for span in spans]))


@final
class ConstantScheduler(ComposerScheduler):
    """Multiplies by ``alpha`` until ``t_max``; after that the hyperparameter has its initial value.

        f(t) = alpha if t < t_max else 1

    Args:
        alpha: The multiplier.
        t_max: When the schedule ends.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``t_max`` or ``alpha`` is negative.

    >>> ConstantScheduler(0.5, t_max="2ba").preview("4ba")
    [0.5, 0.5, 1.0, 1.0, 1.0]
    """

    def __init__(self, alpha: float = 1.0, t_max: str | Time = "1dur") -> None:
        self.alpha = non_negative("alpha", alpha)
        self.t_max = as_time("t_max", t_max)

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        span, alpha = self.__end__(horizon), self.alpha
        return lambda now: 1.0 if span.reached(now) else alpha


@final
class LinearScheduler(ComposerScheduler):
    """Changes linearly from ``alpha_i`` to ``alpha_f``.

        f(t) = alpha_i + (alpha_f - alpha_i) * min(1, t / t_max)

    Args:
        alpha_i: The initial multiplier.
        alpha_f: The multiplier from ``t_max`` on.
        t_max: When the linear change ends.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``t_max``, ``alpha_i`` or ``alpha_f`` is negative.

    >>> LinearScheduler().preview("4ba")
    [1.0, 0.75, 0.5, 0.25, 0.0]
    """

    def __init__(self, alpha_i: float = 1.0, alpha_f: float = 0.0, t_max: str | Time = "1dur") -> None:
        self.alpha_i = non_negative("alpha_i", alpha_i)
        self.alpha_f = non_negative("alpha_f", alpha_f)
        self.t_max = as_time("t_max", t_max)

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        return over(self.__end__(horizon), partial(schedule_curves.linear, start=self.alpha_i, end=self.alpha_f))


@final
class ExponentialScheduler(ComposerScheduler):
    """Decays exponentially, by a factor of ``gamma`` every ``decay_period``.

        f(t) = gamma ** (t / decay_period)

    Args:
        gamma: Factor of each period.
        decay_period: Length of a period.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``decay_period`` is zero, or ``gamma`` is not positive.

    >>> ExponentialScheduler(gamma=0.25, decay_period="2ba").preview("4ba")
    [1.0, 0.5, 0.25, 0.125, 0.0625]
    """

    def __init__(self, gamma: float, decay_period: str | Time = "1ep") -> None:
        self.gamma = positive("gamma", gamma)
        self.decay_period = as_time("decay_period", decay_period, allow_zero=False)

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        (unit, start, length), gamma = period("decay_period", self.decay_period, horizon), self.gamma
        return lambda now: schedule_curves.exponential(now.count(unit) - start, length, gamma)


@final
class CosineAnnealingScheduler(ComposerScheduler):
    """Decays to ``alpha_f`` along half a cosine period.

        f(t) = alpha_f + (1 - alpha_f) * (1 + cos(pi * min(1, t / t_max))) / 2

    Args:
        t_max: When the curve ends.
        alpha_f: The final multiplier.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``t_max`` or ``alpha_f`` is negative.

    >>> [round(value, 3) for value in CosineAnnealingScheduler().preview("4ba")]
    [1.0, 0.854, 0.5, 0.146, 0.0]

    Paper: https://arxiv.org/abs/1608.03983 (Loshchilov and Hutter 2017), without its restarts
    """

    def __init__(self, t_max: str | Time = "1dur", alpha_f: float = 0.0) -> None:
        self.t_max = as_time("t_max", t_max)
        self.alpha_f = non_negative("alpha_f", alpha_f)

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        return over(self.__end__(horizon), partial(schedule_curves.cosine, end=self.alpha_f))


@final
class CosineAnnealingWarmRestartsScheduler(ComposerScheduler):
    """Decays along half a cosine period and restarts; each period is ``t_mult`` times as long as the previous one.

    Args:
        t_0: Length of the first period.
        t_mult: Factor by which period lengths grow; lengths are truncated to integers.
        alpha_f: The multiplier at the end of each period.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``t_0`` is zero, ``t_mult`` not positive, or ``alpha_f`` negative; when the run begins: a period
            would have length 0.

    >>> schedule = CosineAnnealingWarmRestartsScheduler("2ba", t_mult=2)
    >>> [round(value, 3) for value in schedule.preview("6ba")]
    [1.0, 0.5, 1.0, 0.854, 0.5, 0.146, 1.0]

    Paper: https://arxiv.org/abs/1608.03983 (Loshchilov and Hutter 2017)
    """

    def __init__(self, t_0: str | Time, t_mult: float = 1.0, alpha_f: float = 0.0) -> None:
        self.t_0 = as_time("t_0", t_0, allow_zero=False)
        self.t_mult = positive("t_mult", t_mult)
        self.alpha_f = non_negative("alpha_f", alpha_f)

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        (unit, start, length), factor, end = period("t_0", self.t_0, horizon), self.t_mult, self.alpha_f
        total = horizon.total
        if total is not None and total.unit is unit:
            schedule_curves.restarts(total.length, length, factor)  # raise now instead of in the middle of the run
        return lambda now: schedule_curves.restarts(now.count(unit) - start, length, factor, end)


@final
class PolynomialScheduler(ComposerScheduler):
    """Decays to ``alpha_f`` as a power of the remaining fraction of the run.

        f(t) = alpha_f + (1 - alpha_f) * (1 - min(1, t / t_max)) ** power

    Args:
        power: The exponent; 1 is linear.
        t_max: When the curve ends.
        alpha_f: The final multiplier.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: ``power`` is not positive, or ``t_max`` or ``alpha_f`` is negative.

    >>> PolynomialScheduler(power=2).preview("4ba")
    [1.0, 0.5625, 0.25, 0.0625, 0.0]
    """

    def __init__(self, power: float, t_max: str | Time = "1dur", alpha_f: float = 0.0) -> None:
        self.power = positive("power", power)
        self.t_max = as_time("t_max", t_max)
        self.alpha_f = non_negative("alpha_f", alpha_f)

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp."""
        return over(self.__end__(horizon), partial(schedule_curves.polynomial, power=self.power, end=self.alpha_f))
