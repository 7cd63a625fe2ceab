"""A schedule bound to a run and to an optimizer."""

from __future__ import annotations

import inspect
import math
import types
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast, final

from torch import Tensor
from torch.optim.lr_scheduler import EPOCH_DEPRECATION_WARNING, LambdaLR, LRScheduler

from composer.optim.hyperparameter import initial_value, set_value
from composer.optim.schedule import ComposerScheduler, Plan, number_of_edits
from composer.optim.schedule_assignment import AssignedSchedule, Job, Schedule, assign, name_of
from composer.optim.schedule_times import Horizon

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.core.time import Time

__all__ = ["CompiledSchedule", "as_function", "compile_composer_scheduler", "remembers"]


@final
class CompiledSchedule(LambdaLR):
    """Sets a hyperparameter of an optimizer to its initial value times a schedule, at the time of a run.

    It is a :class:`torch.optim.lr_scheduler.LambdaLR` whose functions read the time of the run: ``step()`` is called
    after the optimizer's step and after the time was counted, so that the rate of step k is the schedule at k. The
    value depends on the time of the run and not on the number of calls. What a script edits holds as it does there:
    ``base_lrs`` and ``lr_lambdas`` from the next step on, ``param_groups[0]["lr"]`` until the next step.

    Args:
        job: The schedule and what it is for.
        state: Has the time.
        ssr: ``scale_schedule_ratio``.

    Attributes:
        schedule: The schedule.
        state: Whose time it follows.
        hyperparameter: What is scheduled.
        multiplier: What the schedule gave last, or None.
        base_lrs: The initial value of the hyperparameter in each group of the optimizer.
        lr_lambdas: A function of ``last_epoch`` for each group, which returns the multiplier.
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
    >>> compiled.base_lrs[0] = 0.1
    >>> state.timestamp = state.timestamp.to_next_batch()
    >>> compiled.step()
    >>> compiled.get_last_lr()
    [0.05]
    """

    def __init__(self, job: Job, state: State, ssr: float = 1.0) -> None:
        # Not that of the base class, which wraps optimizer.step into a function that every update would pay for.
        self.optimizer = job.optimizer
        self._schedule = job.schedule
        self.hyperparameter = job.hyperparameter
        self.groups = job.groups
        self.multiplier: float | None = None
        self.last_epoch = 0
        self._step_count = 1
        self._ssr = ssr
        self.state = state
        self._function = as_function(job.schedule, ssr)
        self._plan: Plan | None = None
        self._end: Time | None = None
        self._epoch_length: int | None = None
        self._edits = 0
        # One object: `step` tells by it which groups have a function of the user's own.
        self._own = self._multiplier_at
        self.lr_lambdas = [self._own] * len(self.optimizer.param_groups)
        self._read_initial()
        self._last_lr = self._current_lr()
        if not any(self.base_lrs[number] for number in self.groups):
            raise ValueError(
                f"schedulers: {name_of(job.schedule)} multiplies {self.hyperparameter!r}, which is 0 in "
                f"{type(self.optimizer).__name__} and would stay 0. Make the optimizer with the value that the "
                f"schedule is a multiple of."
            )

    @property
    def schedule(self) -> Schedule:
        """The schedule; another one holds from the next step on."""
        return self._schedule

    @schedule.setter
    def schedule(self, schedule: Schedule) -> None:
        self._function = as_function(schedule, self._ssr)
        self._schedule = schedule
        self._plan = None

    def step(self, epoch: int | None = None) -> None:
        """Set the hyperparameter for the next step.

        Args:
            epoch: Sets ``last_epoch``, with torch's warning that this is deprecated; the schedule follows the time of
                the run all the same.
        """
        self._step_count += 1
        if epoch is None:
            self.last_epoch += 1
        else:
            warnings.warn(EPOCH_DEPRECATION_WARNING, UserWarning, stacklevel=2)
            self.last_epoch = epoch
        self._set(self._value())

    def refresh(self) -> None:
        """Set the hyperparameter to what it is to be now, unless that is what it was set to last.

        Called where a training begins or goes on, whose length may be another one, and where epochs end. What others
        have done to the hyperparameter stays if the schedule has nothing new to say.
        """
        if not self.state.finished:
            self._plan = None
        value = self._value()
        if value != self.multiplier:
            self._set(value)

    def state_dict(self) -> dict[str, Any]:
        """Return what ``LambdaLR`` does, what the schedule gave last, and what it remembers."""
        saved: dict[str, Any] = {
            "base_lrs": list(self.base_lrs),
            "last_epoch": self.last_epoch,
            "_step_count": self._step_count,
            "_is_initial": False,
            "_get_lr_called_within_step": False,
            "_last_lr": list(self._last_lr),
            "lr_lambdas": [self._state_of(function) for function in self.lr_lambdas],
            "multiplier": self.multiplier,
            "hyperparameter": self.hyperparameter,
            "groups": list(self.groups),
        }
        if remembers(self.schedule):
            saved["schedule"] = cast(Any, self.schedule).state_dict()
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` returned, here or of a ``LambdaLR``.

        Args:
            state_dict: The saved values.

        Raises:
            ValueError: It is of an optimizer with another number of groups.
        """
        # One of another hyperparameter, which the run before scheduled, does not tell what this one was.
        same = state_dict.get("hyperparameter", "lr") == self.hyperparameter
        base_lrs, groups = state_dict.get("base_lrs") if same else None, self.optimizer.param_groups
        if base_lrs is not None and len(base_lrs) != len(groups):
            raise ValueError(
                f"base_lrs has {len(base_lrs)} values, but {type(self.optimizer).__name__} has {len(groups)} groups. "
                f"To begin the schedule anew, load with load_ignore_keys=['state/schedulers*']."
            )
        self.multiplier = state_dict.get("multiplier")
        self.last_epoch = state_dict.get("last_epoch", 0)
        self._step_count = state_dict.get("_step_count", self.last_epoch + 1)
        if base_lrs is None:  # the optimizer has them, which is loaded before
            self._read_initial()
        else:
            self.base_lrs = list(base_lrs)
        self._last_lr = list(state_dict.get("_last_lr") or self._current_lr())
        for function, saved in zip(self.lr_lambdas, state_dict.get("lr_lambdas", ()), strict=False):
            if saved and function is not self._own:
                vars(function).update(saved)
        if state_dict.get("schedule") and remembers(self.schedule):
            cast(Any, self.schedule).load_state_dict(state_dict["schedule"])
        self._plan = None

    def __is_own_state__(self, state: dict[str, Any]) -> bool:
        """Tell whether a state is of the same hyperparameter and groups, where a run has several schedules.

        Args:
            state: What :meth:`state_dict` of one of them returned.
        """
        groups = state.get("groups")
        same = state.get("hyperparameter", "lr") == self.hyperparameter
        return same and (groups is None or tuple(groups) == tuple(self.groups))

    def __repr__(self) -> str:
        return f"CompiledSchedule({self.schedule!r}, {self.hyperparameter!r} of {type(self.optimizer).__name__})"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the plan, which is made of functions, and is made again when needed."""
        return {**self.__dict__, "_plan": None, "_function": None}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)
        self._function = as_function(self.schedule, self._ssr)

    def _multiplier_at(self, epoch: int) -> float:
        """Return the multiplier now; the argument is what ``LambdaLR`` gives its functions."""
        return self._value()

    def _state_of(self, function: Any) -> dict[str, Any] | None:
        """Return what is saved of an entry of ``lr_lambdas``: the fields of callable objects, as in torch."""
        if function is self._own or isinstance(function, types.FunctionType):
            return None
        return dict(getattr(function, "__dict__", {}))

    def _value(self) -> float:
        """Return the multiplier now."""
        state = self.state
        if self._plan is None or self._is_stale():
            self._make_plan()
        plan = cast(Plan, self._plan)
        return plan(state.train_phase.timestamp)

    def _is_stale(self) -> bool:
        """Tell whether the length of the run, or a setting of the schedule, is another one than planned for."""
        state = self.state
        if (
            self._end is state.max_duration
            and self._epoch_length == state.train_phase.length
            and self._edits == number_of_edits[0]
        ):
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
        self._edits = number_of_edits[0]

    def _read_initial(self) -> None:
        """Take the initial values from the optimizer; the groups that are not scheduled need none."""
        groups, name = self.optimizer.param_groups, self.hyperparameter
        found: list[Any] = [
            initial_value(group, name) if number in self.groups else group.get(f"initial_{name}", group.get(name))
            for number, group in enumerate(groups)
        ]
        self.base_lrs = found

    def _current_lr(self) -> list[Any]:
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]

    def _set(self, multiplier: float) -> None:
        self.multiplier = multiplier
        groups, name = self.optimizer.param_groups, self.hyperparameter
        bases, functions, own = self.base_lrs, self.lr_lambdas, self._own
        found: list[Any] = []
        for number in self.groups:
            function, group = functions[number], groups[number]
            value: Any = bases[number] * (multiplier if function is own else function(self.last_epoch))
            if type(group.get(name)) is float:
                group[name] = value
                found.append(value)
            else:
                set_value(group, name, value)
        whole = name == "lr" and len(found) == len(groups)
        self._last_lr = found if whole else self._current_lr()


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
            f"scheduler: the state has {len(state.optimizers)} optimizers. Pass one, or say which: "
            f"scheduler.assign(optimizer=...)."
        )
    compiled = CompiledSchedule(cast(Job, jobs[0]), state, ssr)
    compiled.refresh()
    return compiled
