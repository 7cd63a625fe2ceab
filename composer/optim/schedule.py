"""What schedules are: functions of the progress of a run whose value multiplies a hyperparameter."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from composer.core.time import Time, TimeUnit
from composer.core.timestamp import Timestamp
from composer.optim.schedule_times import Horizon, Span

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from composer.core.state import State
    from composer.optim.schedule_assignment import AssignedSchedule
    from composer.optim.sequential_schedule import SequentialScheduler
    from composer.optim.warmup_schedules import WithWarmup

__all__ = ["ComposerScheduler", "Plan", "as_time", "number_of_edits", "over", "rising"]

Plan: TypeAlias = Callable[[Timestamp], float]
"""A schedule in a run: how far the training has come -> the multiplier."""

number_of_edits = [0]
"""How often a setting of any schedule was set. Plans are kept until this changes; one number can be compared in every
step, while a schedule may be made of many others."""


class ComposerScheduler:
    """A schedule of the learning rate, or of another hyperparameter, in terms of time in any unit.

    Its value multiplies what the optimizer was made with: the rate of step k is ``lr * schedule(k)``, and k counts
    whatever the arguments are given in: ``"10ep"``, ``"2048ba"``, ``"1e6sp"``, ``"1e9tok"``, ``"1h30m"``, or
    ``"0.3dur"``, a share of the training.

    A schedule of one's own is a plain function ``(state, ssr) -> multiplier``; ``ssr`` is ``scale_schedule_ratio``. Or
    it is a subclass that overrides ``__call__(state, ssr)``, or :meth:`__plan__`: this one also adds up with others.

    Attributes:
        t_max: When the schedule ends, or None for one without an end.

    >>> class Halving(ComposerScheduler):
    ...     def __plan__(self, horizon):
    ...         return lambda now: 0.5 ** now.count(TimeUnit.EPOCH)
    >>> Halving().preview("3ep")
    [1.0, 0.5, 0.25, 0.125]
    """

    t_max: Time | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a setting, also in the middle of a run; what is a time stays one where a string is given."""
        before = self.__dict__.get(name)
        if isinstance(value, str) and isinstance(before, Time):
            value = as_time(name, value)
        elif isinstance(value, list) and isinstance(before, tuple):  # several times
            entries = cast("list[Any]", value)
            value = tuple(as_time(name, entry) if isinstance(entry, str) else entry for entry in entries)
        super().__setattr__(name, value)
        number_of_edits[0] += 1

    def __call__(self, state: State, ssr: float = 1.0) -> float:
        """Return the multiplier now.

        Args:
            state: Has the time, ``max_duration`` and the length of an epoch.
            ssr: By what times are multiplied that are not shares of the training.

        >>> from composer import State
        >>> from composer.optim import LinearScheduler
        >>> state = State(model=torch.nn.Linear(1, 1), max_duration="4ba")
        >>> state.timestamp = state.timestamp.to_next_batch()
        >>> LinearScheduler()(state)
        0.75
        """
        return self.__plan__(Horizon.of(state, ssr))(state.timestamp)

    def __plan__(self, horizon: Horizon) -> Plan:
        """Return the multiplier as a function of the timestamp. Called when a run begins or its length changes.

        Args:
            horizon: Turns times into places in the run.

        Raises:
            ValueError: The schedule is impossible in this run.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must override __plan__(horizon) to be used here; overriding __call__(state, ssr) "
            f"alone is enough where it is given to the Trainer as it is."
        )

    def __end__(self, horizon: Horizon) -> Span:
        """Return the stretch from the beginning of ``horizon`` to the end of the schedule.

        Args:
            horizon: Turns times into places in the run.

        Raises:
            ValueError: The schedule has no end.
        """
        if self.t_max is None:
            raise ValueError(
                f"{type(self).__name__} has no end at which the next schedule could begin; say when: "
                f"SequentialScheduler([...], milestones=['0.5dur'])."
            )
        return horizon.span(self.t_max)

    def preview(
        self, max_duration: Time | str, epoch_length: int | None = None, ssr: float = 1.0, num_points: int | None = None
    ) -> list[float]:
        """Return the multipliers along a run, without running it: to look at or to draw.

        Args:
            max_duration: The length of the run.
            epoch_length: Number of batches in an epoch; epochs are then divided into batches.
            ssr: By what times are multiplied that are not shares of the training.
            num_points: How many values from the beginning to the end, evenly spaced; by default one for each unit.

        >>> from composer.optim import StepScheduler
        >>> StepScheduler("1ep", gamma=0.5).preview("2ep", epoch_length=2)
        [1.0, 1.0, 0.5, 0.5, 0.25]
        """
        horizon = Horizon.of_run(max_duration, epoch_length, ssr)
        assert horizon.whole is not None  # as max_duration is given
        plan, (unit, length) = self.__plan__(horizon), (horizon.whole.unit, int(horizon.whole.length))
        gaps = length if num_points is None else max(1, num_points - 1)
        counts = [length * k // gaps for k in range(gaps + 1)] if gaps else [0]
        if unit is not TimeUnit.BATCH or not epoch_length:
            return [plan(Span(unit, 0, count).beginning()) for count in counts]
        return [plan(Timestamp(batch=count, epoch=count // epoch_length)) for count in counts]

    def with_warmup(self, t_warmup: Time | str, scale_warmup: bool = False, alpha_i: float = 0.0) -> WithWarmup:
        """Return this schedule after a linear rise; see :class:`.WithWarmup`.

        Args:
            t_warmup: How long the rise takes.
            scale_warmup: Whether ``scale_schedule_ratio`` applies to it.
            alpha_i: Share of the schedule's first value to begin with.

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
        """Say what the schedule is for; see :class:`.AssignedSchedule`.

        Args:
            hyperparameter: What it multiplies: "lr", "momentum", "weight_decay", "beta1", "beta2", ...
            optimizer: Whose, or its number; all by default.
            groups: Numbers or names of parameter groups; all by default.

        >>> from composer.optim import LinearScheduler
        >>> LinearScheduler().assign("weight_decay").hyperparameter
        'weight_decay'
        """
        from composer.optim.schedule_assignment import AssignedSchedule

        return AssignedSchedule(self, hyperparameter, optimizer=optimizer, groups=groups)

    def __add__(self, other: ComposerScheduler) -> SequentialScheduler:
        """Return a schedule that goes on with ``other`` where this one ends."""
        if not isinstance(other, ComposerScheduler):
            return NotImplemented
        from composer.optim.sequential_schedule import SequentialScheduler

        return SequentialScheduler([*_terms(self), *_terms(other)])

    @property
    def __parts__(self) -> Sequence[ComposerScheduler]:
        """The schedules that this one is made of; what they follow and remember is passed on to them."""
        return ()

    def __check__(self, state: State) -> None:
        """Refuse, before training begins, what the schedule could not follow.

        Args:
            state: Has the metrics of the evaluators.

        Raises:
            ValueError: There is no such metric.
        """
        for part in self.__parts__:
            part.__check__(state)

    def __observe__(self, state: State, labels: Sequence[str]) -> bool:
        """Take notice of an evaluation; return whether the schedule changed.

        Args:
            state: Has the metrics of the evaluators.
            labels: Labels of the evaluators that ran.
        """
        changed = [part.__observe__(state, labels) for part in self.__parts__]  # all of them, whatever the first says
        return any(changed)

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedule remembers; nothing, for functions of time."""
        states = [part.state_dict() for part in self.__parts__]
        return {"parts": states} if any(states) else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned.

        Args:
            state_dict: The saved values.

        Raises:
            ValueError: It is of a schedule with other parts.
        """
        states = state_dict.get("parts", [])
        if states and len(states) != len(self.__parts__):
            raise ValueError(f"The saved schedule has {len(states)} parts, but {self!r} has {len(self.__parts__)}.")
        for part, state in zip(self.__parts__, states, strict=False):
            part.load_state_dict(state)

    def __repr__(self) -> str:
        names = [name for name in inspect.signature(type(self)).parameters if hasattr(self, name)]
        return f"{type(self).__name__}({', '.join(f'{name}={_shown(getattr(self, name))}' for name in names)})"


def _shown(value: Any) -> str:
    """Return how an argument is written."""
    if isinstance(value, Time):
        return repr(str(value).replace(".0dur", "dur"))
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_shown(entry) for entry in cast('list[Any]', value))}]"
    return repr(value)


def _terms(schedule: ComposerScheduler) -> Sequence[ComposerScheduler]:
    """Return the terms of a sum, so that ``(a + b) + c`` is ``a + (b + c)``."""
    from composer.optim.sequential_schedule import SequentialScheduler

    is_sum = isinstance(schedule, SequentialScheduler) and schedule.milestones is None
    return schedule.schedules if is_sum and isinstance(schedule, SequentialScheduler) else (schedule,)


def as_time(argument: str, value: Time | str, *, allow_zero: bool = True) -> Time:
    """Return a time that an argument of a schedule was given.

    Args:
        argument: Name of the argument, for errors.
        value: A time, or a time string.
        allow_zero: Whether no time at all makes sense.

    Raises:
        TypeError: It is no time, or a number without a unit.
        ValueError: It is a string that is no time, or negative, or zero where that makes no sense.

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


def over(span: Span, curve: Callable[[float], float]) -> Plan:
    """Return the plan that follows a curve of the share of a stretch, and stays at its end.

    Args:
        span: The stretch.
        curve: Maps 0 where the stretch begins to 1 where it ends.

    >>> over(Span(TimeUnit.BATCH, 4), lambda share: 1 - share)(Timestamp(batch=1))
    0.75
    """
    unit, start, length = span.unit, span.start, span.length
    if length <= 0:
        last = curve(1.0)
        return lambda now: last

    def value(now: Timestamp) -> float:
        share = (now.count(unit) - start) / length
        return curve(share if share < 1.0 else 1.0)

    return value


def rising(span: Span, to: float, then: Plan, start: float = 0.0) -> Plan:
    """Return the plan that rises on a straight line and then follows another plan.

    Args:
        span: The stretch of the rise.
        to: The value at its end.
        then: The plan from there on.
        start: The value at its beginning, as a share of ``to``.

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
