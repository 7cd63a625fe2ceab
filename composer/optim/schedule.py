"""Base class of learning-rate schedulers: functions of training time whose value multiplies a hyperparameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from composer._numbers import whole_number
from composer.core.time import Time, TimeUnit
from composer.core.timestamp import Timestamp
from composer.optim.schedule_times import Horizon, Span
from composer.optim.schedule_units import check_units

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from composer.core.state import State
    from composer.optim.schedule_assignment import AssignedSchedule
    from composer.optim.sequential_schedule import SequentialScheduler
    from composer.optim.warmup_schedules import WithWarmup

__all__ = ["ComposerScheduler", "Plan", "as_time", "number_of_edits", "over", "planned_duration", "rising"]

Plan: TypeAlias = Callable[[Timestamp], float]
"""A schedule bound to a run: maps the timestamp to the multiplier."""

number_of_edits = [0]
"""How many times an attribute of any schedule was set. Plans are cached until this changes: comparing one number per
step is cheap, while a schedule may consist of many others."""


class ComposerScheduler:
    """A schedule of the learning rate, or of another hyperparameter, over time in any unit.

    Its value multiplies the initial value in the optimizer: the learning rate of step k is ``lr * schedule(k)``. Times
    may be given as ``"10ep"``, ``"2048ba"``, ``"1e6sp"``, ``"1e9tok"``, ``"1h30m"``, or ``"0.3dur"``, a fraction of the
    run.

    A custom schedule is a plain function ``(state, ssr) -> multiplier``, where ``ssr`` is ``scale_schedule_ratio``; or
    a subclass that overrides ``__call__(state, ssr)``; or a subclass that overrides :meth:`__plan__`, which can also be
    chained with other schedules.

    Attributes:
        t_max: When the schedule ends, or None if it has no end.

    >>> class Halving(ComposerScheduler):
    ...     def __plan__(self, horizon):
    ...         return lambda now: 0.5 ** now.count(TimeUnit.EPOCH)
    >>> Halving().preview("3ep")
    [1.0, 0.5, 0.25, 0.125]
    """

    t_max: Time | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, also during a run; a string assigned to a time attribute is converted to a time."""
        before = self.__dict__.get(name)
        if isinstance(value, str) and isinstance(before, Time):
            value = as_time(name, value)
        elif isinstance(value, list) and isinstance(before, tuple):  # several times
            entries = cast("list[Any]", value)
            value = tuple(as_time(name, entry) if isinstance(entry, str) else entry for entry in entries)
        super().__setattr__(name, value)
        number_of_edits[0] += 1

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Return the current multiplier.

        Args:
            state: Provides the timestamp, ``max_duration`` and the number of batches in an epoch.
            ssr: Ratio by which times are multiplied, except those given as a fraction of the run.

        >>> from composer import State
        >>> from composer.optim import LinearScheduler
        >>> state = State(model=torch.nn.Linear(1, 1), max_duration="4ba")
        >>> state.timestamp = state.timestamp.to_next_batch()
        >>> LinearScheduler()(state)
        0.75
        """
        horizon = Horizon.of(state, ssr)
        return self.__plan__(horizon)(horizon.time_of(state))

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp. Called when a run begins or its duration changes.

        Args:
            horizon: The run that the times refer to.

        Raises:
            ValueError: The schedule is impossible in this run.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must override __plan__(horizon) to be used here. Overriding only "
            f"__call__(state, ssr) is enough if the schedule is passed directly to the Trainer."
        )

    def __end__(self, horizon: Horizon) -> Span:
        """Return the span from the start of ``horizon`` to the end of the schedule.

        Args:
            horizon: The run that the times refer to.

        Raises:
            ValueError: The schedule has no end.
        """
        if self.t_max is None:
            raise ValueError(
                f"{type(self).__name__} has no end at which the next schedule could begin. Set it with "
                f"SequentialScheduler([...], milestones=['0.5dur'])."
            )
        return horizon.span(self.t_max)

    def preview(
        self, max_duration: Time | str, epoch_length: int | None = None, ssr: float = 1.0, num_points: int | None = None
    ) -> list[float]:
        """Return the multipliers over a run without running it, to inspect or plot.

        Args:
            max_duration: Duration of the run.
            epoch_length: Number of batches in an epoch; if given, epochs are counted in batches. Required if the times
                of the schedule are in batches and ``max_duration`` is in epochs, or vice versa.
            ssr: Ratio by which times are multiplied, except those given as a fraction of the run.
            num_points: Number of evenly spaced values from start to end. Default: one per unit.

        Raises:
            TypeError: ``max_duration`` is not a time, or is a number without a unit.
            ValueError: A time of the schedule cannot be converted to the unit of ``max_duration``, which is negative,
                or ``epoch_length`` is less than 1.

        >>> from composer.optim import StepScheduler
        >>> StepScheduler("1ep", gamma=0.5).preview("2ep", epoch_length=2)
        [1.0, 1.0, 0.5, 0.5, 0.25]
        """
        max_duration = planned_duration(max_duration, epoch_length)
        horizon = Horizon.of_run(max_duration, epoch_length, ssr)
        assert horizon.total is not None  # as max_duration is given
        plan, (unit, length) = self.__plan__(horizon), (horizon.total.unit, int(horizon.total.length))
        check_units(self, max_duration.unit, epoch_length)
        gaps = length if num_points is None else max(1, num_points - 1)
        counts = [length * k // gaps for k in range(gaps + 1)] if gaps else [0]
        if unit is not TimeUnit.BATCH or not epoch_length:
            return [plan(Span(unit, 0, count).beginning()) for count in counts]
        return [plan(Timestamp(batch=count, epoch=count // epoch_length)) for count in counts]

    def plot(
        self,
        max_duration: Time | str,
        epoch_length: int | None = None,
        ssr: float = 1.0,
        *,
        ax: Any = None,
        label: str | None = None,
    ) -> Any:
        """Plot the multipliers over a run with matplotlib, without running it.

        Args:
            max_duration: Duration of the run.
            epoch_length: Number of batches in an epoch; required if the times of the schedule are in batches and
                ``max_duration`` is in epochs, or vice versa.
            ssr: Ratio by which times are multiplied, except those given as a fraction of the run.
            ax: The axes to draw on, for several schedules in one figure. Default: those of a new figure.
            label: Name in the legend, shown if there are several curves. Default: the name of the class.

        Returns:
            The :class:`matplotlib.figure.Figure`; the last expression of a notebook cell shows it.

        Raises:
            MissingConditionalImportError: matplotlib is not installed.
            TypeError: ``max_duration`` is not a time, or is a number without a unit.
            ValueError: A time of the schedule cannot be converted to the unit of ``max_duration``, which is not
                greater than 0, ``epoch_length`` is less than 1, or the schedule depends on a metric.

        >>> from composer.optim import CosineAnnealingScheduler, LinearScheduler
        >>> figure = CosineAnnealingScheduler().with_warmup("2ep").plot("10ep")
        >>> figure = LinearScheduler().plot("10ep", ax=figure.axes[0])
        >>> len(figure.axes[0].lines)
        2
        >>> figure.savefig("schedules.png")  # doctest: +SKIP
        """
        from composer.optim._schedule_plot import draw_schedule

        return draw_schedule(self, max_duration, epoch_length, ssr, ax, type(self).__name__ if label is None else label)

    def with_warmup(self, t_warmup: Time | str, scale_warmup: bool = False, alpha_i: float = 0.0) -> WithWarmup:
        """Return this schedule preceded by a linear warm-up; see :class:`.WithWarmup`.

        Args:
            t_warmup: Length of the warm-up.
            scale_warmup: Whether ``scale_schedule_ratio`` applies to the warm-up.
            alpha_i: Where the warm-up starts, as a fraction of the schedule's first value.

        >>> from composer.optim import ConstantScheduler
        >>> ConstantScheduler().with_warmup("2ba").preview("4ba")
        [0.0, 0.5, 1.0, 1.0, 1.0]
        """
        from composer.optim.warmup_schedules import WithWarmup

        return WithWarmup(self, t_warmup, scale_warmup, alpha_i)

    def assign(
        self,
        hyperparameter: str = "lr",
        *,
        optimizer: Optimizer | int | None = None,
        groups: int | str | Sequence[int | str] | None = None,
    ) -> AssignedSchedule:
        """Assign the schedule to a hyperparameter, optimizer or parameter groups; see :class:`.AssignedSchedule`.

        Args:
            hyperparameter: Hyperparameter to multiply: "lr", "momentum", "weight_decay", "beta1", "beta2", ...
            optimizer: The optimizer, or its index. Default: all.
            groups: Indices or names of parameter groups. Default: all.

        >>> from composer.optim import LinearScheduler
        >>> LinearScheduler().assign("weight_decay").hyperparameter
        'weight_decay'
        """
        from composer.optim.schedule_assignment import AssignedSchedule

        return AssignedSchedule(self, hyperparameter, optimizer=optimizer, groups=groups)

    def __add__(self, other: ComposerScheduler) -> SequentialScheduler:
        """Return a schedule that continues with ``other`` when this one ends."""
        if not isinstance(other, ComposerScheduler):
            return NotImplemented
        from composer.optim.sequential_schedule import SequentialScheduler

        return SequentialScheduler([*_terms(self), *_terms(other)])

    @property
    def __parts__(self) -> Sequence[ComposerScheduler]:
        """The child schedules; checks, evaluation results and saved state are forwarded to them."""
        return ()

    def __check__(self, state: State) -> None:
        """Check, before training starts, that the metrics the schedule monitors exist.

        Args:
            state: Provides the metrics of the evaluators.

        Raises:
            ValueError: A monitored metric does not exist.
        """
        for child in self.__parts__:
            child.__check__(state)

    def __observe__(self, state: State, labels: Sequence[str]) -> bool:
        """Update the schedule after an evaluation; return whether it changed.

        Args:
            state: Provides the metrics of the evaluators.
            labels: Labels of the evaluators that ran.
        """
        changed = [child.__observe__(state, labels) for child in self.__parts__]  # a list: no short circuit
        return any(changed)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the schedule; empty for pure functions of time."""
        states = [child.state_dict() for child in self.__parts__]
        return {"parts": states} if any(states) else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned.

        Args:
            state_dict: The saved values.

        Raises:
            ValueError: The state is of a schedule with a different number of child schedules.
        """
        states = state_dict.get("parts", [])
        if states and len(states) != len(self.__parts__):
            raise ValueError(
                f"The saved schedule has {len(states)} child schedules, but {self!r} has {len(self.__parts__)}."
            )
        for child, state in zip(self.__parts__, states, strict=False):
            child.load_state_dict(state)

    def __repr__(self) -> str:
        names = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        return (
            f"{type(self).__name__}({', '.join(f'{name}={_format_argument(getattr(self, name))}' for name in names)})"
        )


def _format_argument(value: Any) -> str:
    """Return an argument as source text."""
    if isinstance(value, Time):
        return repr(str(value).replace(".0dur", "dur"))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_format_argument(entry) for entry in cast('list[Any]', value))}]"
    return repr(value)


def _terms(schedule: ComposerScheduler) -> Sequence[ComposerScheduler]:
    """Return the terms of a sum, so that ``(a + b) + c`` is ``a + (b + c)``."""
    from composer.optim.sequential_schedule import SequentialScheduler

    is_sum = isinstance(schedule, SequentialScheduler) and schedule.milestones is None
    return schedule.schedules if is_sum and isinstance(schedule, SequentialScheduler) else (schedule,)


def as_time(argument: str, value: Time | str, *, allow_zero: bool = True) -> Time:
    """Convert an argument of a schedule to a time.

    Args:
        argument: Name of the argument, for errors.
        value: A time, or a time string.
        allow_zero: Whether zero is allowed.

    Raises:
        TypeError: The value is not a time, or is a number without a unit.
        ValueError: The string is not a valid time, or the time is negative, or is zero and ``allow_zero`` is False.

    >>> as_time("t_max", "10ep")
    Time(10, TimeUnit.EPOCH)
    """
    if not isinstance(value, (Time, str)):
        raise TypeError(f"{argument} must be a time such as '10ep', '1000ba' or '0.3dur', but got {value!r}.")
    try:
        time = Time.from_input(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{argument}={value!r} is not valid. {error}") from None
    if time.value < 0 or (time.value == 0 and not allow_zero):
        raise ValueError(f"{argument} must be {'0 or greater' if allow_zero else 'greater than 0'}, but got '{time}'.")
    return time


def planned_duration(max_duration: Time | str, epoch_length: int | None, *, allow_zero: bool = True) -> Time:
    """Return the duration of a run that is only planned.

    Args:
        max_duration: The duration.
        epoch_length: Number of batches in an epoch, or None.
        allow_zero: Whether the duration may be zero.

    Raises:
        TypeError: ``max_duration`` is not a time, or is a number without a unit; or ``epoch_length`` is no integer.
        ValueError: ``max_duration`` is not a valid time, or is too small; or ``epoch_length`` is less than 1.

    >>> planned_duration("10ep", 100)
    Time(10, TimeUnit.EPOCH)
    """
    if epoch_length is not None:
        whole_number("epoch_length", epoch_length, 1)
    return as_time("max_duration", max_duration, allow_zero=allow_zero)


def over(span: Span, curve: Callable[[float], float]) -> Plan:
    """Return the plan that follows a curve over a span, and keeps its final value afterwards.

    Args:
        span: The span.
        curve: Maps the fraction of the span, from 0 to 1, to the multiplier.

    >>> over(Span(TimeUnit.BATCH, 4), lambda fraction: 1 - fraction)(Timestamp(batch=1))
    0.75
    """
    unit, start, length = span.unit, span.start, span.length
    if length <= 0:
        last = curve(1.0)
        return lambda now: last

    def value(now: Timestamp) -> float:
        fraction = (now.count(unit) - start) / length
        return curve(fraction if fraction < 1.0 else 1.0)

    return value


def rising(span: Span, to: float, then: Plan, start: float = 0.0) -> Plan:
    """Return the plan that warms up linearly and then follows another plan.

    Args:
        span: The span of the warm-up.
        to: The value at its end.
        then: The plan after the warm-up.
        start: The initial value, as a fraction of ``to``.

    >>> plan = rising(Span(TimeUnit.BATCH, 4), 2.0, lambda now: 7.0)
    >>> plan(Timestamp(batch=1)), plan(Timestamp(batch=4))
    (0.5, 7.0)
    """
    unit, begin, length = span.unit, span.start, span.length
    if length <= 0:
        return then

    def value(now: Timestamp) -> float:
        elapsed = now.count(unit) - begin
        return to * (start + (1 - start) * (elapsed / length)) if elapsed < length else then(now)

    return value
