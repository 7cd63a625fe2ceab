"""A schedule bound to a run and to an optimizer."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast, final

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from composer.optim.assignment import AssignedSchedule, Job, Schedule, assign, name_of
from composer.optim.horizon import Horizon
from composer.optim.hyperparameter import initial_value, set_value
from composer.optim.schedule import ComposerScheduler, Plan

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.core.time import Time

__all__ = ["CompiledSchedule", "as_function", "compile_composer_scheduler", "remembers"]


@final
class CompiledSchedule(LRScheduler):
    """Sets a hyperparameter of an optimizer to its initial value times a schedule, at the time of a run.

    It is used as any schedule of torch: ``step()`` after the optimizer's step and after the time was counted, so that
    the rate of step k is the schedule at k. The value depends on the time of the run and not on the number of calls.

    Args:
        job: The schedule and what it is for.
        state: Has the time.
        ssr: ``scale_schedule_ratio``.

    Attributes:
        schedule: The schedule.
        state: Whose time it follows.
        hyperparameter: What is scheduled.
        multiplier: What the schedule gave last, or None.
        base_lrs: The learning rates that the groups of the optimizer were made with.
        last_epoch: Number of calls of :meth:`step`.

    Raises:
        ValueError: The optimizer has no such hyperparameter, or its initial value is zero in all groups.

    >>> from composer import State
    >>> from composer.optim import LinearScheduler
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.5)
    >>> state = State(model=torch.nn.Linear(1, 1), max_duration="4ba", optimizers=optimizer)
    >>> compiled = CompiledSchedule(Job(LinearScheduler(), optimizer), state)
    >>> state.timestamp = state.timestamp.to_next_batch()
    >>> compiled.step()
    >>> compiled.get_last_lr()
    [0.375]
    """

    def __init__(self, job: Job, state: State, ssr: float = 1.0) -> None:
        # Not that of the base class, which wraps optimizer.step into a function that every update would pay for.
        self.optimizer = job.optimizer
        self.schedule = job.schedule
        self.hyperparameter = job.hyperparameter
        self.groups = job.groups
        self.multiplier: float | None = None
        self.last_epoch = 0
        self._ssr = ssr
        self.state = state
        self._function = as_function(job.schedule, ssr)
        self._plan: Plan | None = None
        self._end: Time | None = None
        self._epoch_length: int | None = None
        self._initial: list[tuple[int, float]] = []
        self._plain = False
        self._note_initial()
        if not any(initial for _, initial in self._initial):
            raise ValueError(
                f"schedulers: {name_of(job.schedule)} multiplies {self.hyperparameter!r}, which is 0 in "
                f"{type(self.optimizer).__name__} and would stay 0. Make the optimizer with the value that the "
                f"schedule is a multiple of."
            )

    def step(self, epoch: int | None = None) -> None:
        """Set the hyperparameter for the next step.

        Args:
            epoch: Must be None; it is there for callers that know torch's schedules.
        """
        if epoch is not None:
            raise ValueError(f"epoch={epoch!r}: leave it out; the schedule follows the time of the run.")
        self.last_epoch += 1
        self._set(self._value())

    def refresh(self) -> None:
        """Set the hyperparameter to what it is to be now, unless that is what it was set to last.

        Called where a training begins or goes on, whose length may be another one, and where epochs end. What others
        have done to the hyperparameter stays if the schedule has nothing new to say.
        """
        if not self.state.finished:
            self._plan = None
        self._note_initial()
        value = self._value()
        if value != self.multiplier:
            self._set(value)

    def get_last_lr(self) -> list[float | Tensor]:
        """Return the learning rates of all groups of the optimizer."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]

    def get_lr(self) -> list[float | Tensor]:
        """Return the same as :meth:`get_last_lr`; a schedule of a run does not look ahead."""
        return self.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return what the schedule gave last, and what it remembers."""
        saved: dict[str, Any] = {"multiplier": self.multiplier, "last_epoch": self.last_epoch}
        if remembers(self.schedule):
            saved["schedule"] = cast(Any, self.schedule).state_dict()
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned; that of a schedule of torch leaves all to the time of the run.

        Args:
            state_dict: The saved values.
        """
        self.multiplier = state_dict.get("multiplier")
        self.last_epoch = state_dict.get("last_epoch", 0)
        if state_dict.get("schedule") and remembers(self.schedule):
            cast(Any, self.schedule).load_state_dict(state_dict["schedule"])
        self._plan = None

    def __repr__(self) -> str:
        return f"CompiledSchedule({self.schedule!r}, {self.hyperparameter!r} of {type(self.optimizer).__name__})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the plan, which is made of functions, and is made again when needed."""
        return {**self.__dict__, "_plan": None, "_function": None}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)
        self._function = as_function(self.schedule, self._ssr)

    def _value(self) -> float:
        """Return the multiplier now."""
        state = self.state
        if self._plan is None or self._is_stale():
            self._make_plan()
        plan = cast(Plan, self._plan)
        return plan(state.train_phase.timestamp)

    def _is_stale(self) -> bool:
        """Tell whether the length of the run is another one than planned for."""
        state = self.state
        if self._end is state.max_duration and self._epoch_length == state.train_phase.length:
            return False
        # A run that is stopped early ends within its schedule; its shares stay shares of what was planned.
        return not state.finished

    def _make_plan(self) -> None:
        state, function = self.state, self._function
        self._end, self._epoch_length = state.max_duration, state.train_phase.length
        if function is not None:
            self._plan = lambda now: function(state)
        else:
            schedule = cast(ComposerScheduler, self.schedule)
            try:
                self._plan = schedule.__plan__(Horizon.of(state, self._ssr))
            except ValueError as error:
                raise ValueError(f"schedulers: {schedule!r} is impossible in this run: {error}") from None

    def _note_initial(self) -> None:
        """Note the initial values, also those of an optimizer that was loaded meanwhile."""
        groups, name = self.optimizer.param_groups, self.hyperparameter
        self._initial = [(number, initial_value(groups[number], name)) for number in self.groups]
        self.base_lrs = [group.get("initial_lr", group["lr"]) for group in groups]
        self._plain = all(isinstance(groups[number].get(name), (int, float)) for number in self.groups)

    def _set(self, multiplier: float) -> None:
        self.multiplier = multiplier
        groups, name = self.optimizer.param_groups, self.hyperparameter
        if self._plain:
            for number, initial in self._initial:
                groups[number][name] = initial * multiplier
        else:
            for number, initial in self._initial:
                set_value(groups[number], name, initial * multiplier)


def remembers(schedule: Schedule) -> bool:
    """Return whether a schedule, be it a function or an object, has state for checkpoints.

    Args:
        schedule: The schedule.

    >>> remembers(lambda state, ssr: 1.0)
    False
    """
    return all(callable(getattr(schedule, name, None)) for name in ("state_dict", "load_state_dict"))


def as_function(schedule: Schedule, ssr: float = 1.0) -> Callable[[State], float] | None:
    """Return a schedule that is a function of the state as one that checks what it returns; None for one with a plan.

    Args:
        schedule: The schedule. A function with an argument called ``ssr``, or with a second one without default, is
            given the ratio.
        ssr: ``scale_schedule_ratio``.

    Raises:
        TypeError: The function takes no state, or, when called, does not return a number.
        ValueError: The function has no argument for a ratio other than 1; or, when called, returns NaN or infinity.

    >>> as_function(lambda state, ssr: 0.5 * ssr, 0.5)(None)
    0.25
    """
    if isinstance(schedule, ComposerScheduler) and type(schedule).__call__ is ComposerScheduler.__call__:
        return None
    name, takes_ratio = name_of(schedule), _takes_ratio(schedule)
    if not takes_ratio and ssr != 1.0:
        raise ValueError(
            f"scale_schedule_ratio={ssr}, but {name} takes the state only and could not follow it. Give it a second "
            f"argument: {name}(state, ssr)."
        )

    def value(state: State) -> float:
        found = schedule(state, ssr) if takes_ratio else schedule(state)
        try:
            number = float(found)
        except (TypeError, ValueError):
            raise TypeError(f"schedulers: {name} must return a number, the multiplier, but got {found!r}.") from None
        if not math.isfinite(number):
            raise ValueError(f"schedulers: {name} must return a finite number, but got {number}.")
        return number

    return value


def _takes_ratio(schedule: Callable[..., float]) -> bool:
    """Tell whether a function is to be called with the ratio as its second argument."""
    try:
        signature = inspect.signature(schedule)
    except (TypeError, ValueError):  # some functions written in C have none
        return True
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = list(signature.parameters.values())
    ordinary = [parameter for parameter in parameters if parameter.kind in positional]
    gathers = any(parameter.kind is inspect.Parameter.VAR_POSITIONAL for parameter in parameters)
    if not ordinary and not gathers:
        name = name_of(schedule)
        raise TypeError(f"schedulers: {name}{signature} takes no state; write f(state, ssr) -> multiplier.")
    if len(ordinary) < 2:
        return gathers
    return ordinary[1].name == "ssr" or ordinary[1].default is inspect.Parameter.empty


def compile_composer_scheduler(
    scheduler: Schedule | AssignedSchedule, state: State, ssr: float = 1.0
) -> CompiledSchedule:
    """Bind a schedule to the optimizer of a state and set its rate for the first step.

    Args:
        scheduler: The schedule, or a function ``(state, ssr) -> multiplier``, also an assigned one.
        state: Has the optimizer, the time, the length of the run and of an epoch.
        ssr: By what times are multiplied that are not shares of the training. ``state.max_duration`` is taken to be
            scaled already.

    Returns:
        A schedule to be used as those of torch: ``step()`` after ``state.timestamp`` has moved.

    Raises:
        TypeError: It is no schedule.
        ValueError: The state has no optimizer, or several and the schedule is not assigned to one; or the schedule is
            impossible in this run.

    >>> from composer import State
    >>> from composer.optim import ConstantScheduler
    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    >>> state = State(model=model, max_duration="4ba", optimizers=optimizer)
    >>> compile_composer_scheduler(ConstantScheduler(0.5), state).get_last_lr()
    [0.25]
    """
    if isinstance(scheduler, type) or not (callable(scheduler) or isinstance(scheduler, AssignedSchedule)):
        raise TypeError(f"scheduler must be a ComposerScheduler or a function (state, ssr), but got {scheduler!r}.")
    jobs: Sequence[Job | LRScheduler] = assign([scheduler], state.optimizers) if state.optimizers else []
    if len(jobs) != 1:
        raise ValueError(
            f"scheduler: the state has {len(state.optimizers)} optimizers. Give it one, or say which: "
            f"scheduler.assign(optimizer=...)."
        )
    compiled = CompiledSchedule(cast(Job, jobs[0]), state, ssr)
    compiled.refresh()
    return compiled
