"""Bind a schedule to a run and an optimizer (``CompiledSchedule``, a ``torch.optim.lr_scheduler.LambdaLR``)."""

from __future__ import annotations

import types
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast, final

from torch import Tensor
from torch.optim.lr_scheduler import EPOCH_DEPRECATION_WARNING, LambdaLR, LRScheduler

from composer.optim.hyperparameter import initial_value, set_value
from composer.optim.schedule import ComposerScheduler, Plan, number_of_edits
from composer.optim.schedule_assignment import AssignedSchedule, Job, Schedule, assign, name_of
from composer.optim.schedule_functions import as_function, has_state
from composer.optim.schedule_times import Horizon

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.core.time import Time

__all__ = ["CompiledSchedule", "compile_composer_scheduler", "schedule_added_groups"]


@final
class CompiledSchedule(LambdaLR):
    """Sets a hyperparameter of an optimizer to its initial value times the schedule's value at the current time.

    It is a :class:`torch.optim.lr_scheduler.LambdaLR` whose functions read the timestamp of the run. ``step()`` is
    called after the optimizer step and after the timestamp has advanced, so the learning rate of step k is the schedule
    at k. The value depends on the timestamp, not on the number of calls. User edits work as in ``LambdaLR``:
    ``base_lrs`` and ``lr_lambdas`` take effect at the next step, ``param_groups[0]["lr"]`` holds until the next step.

    Args:
        job: The schedule and what it is assigned to.
        state: Provides the timestamp.
        ssr: ``scale_schedule_ratio``.

    Attributes:
        schedule: The schedule.
        state: The state whose timestamp the schedule follows.
        hyperparameter: The scheduled hyperparameter.
        multiplier: The last value of the schedule, or None.
        base_lrs: The initial value of the hyperparameter in each parameter group.
        lr_lambdas: For each group, a function of ``last_epoch`` that returns the multiplier.
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
        # Skips LambdaLR.__init__, which wraps optimizer.step and so would slow down every update.
        self.optimizer = job.optimizer
        self._schedule = job.schedule
        self.hyperparameter = job.hyperparameter
        self.groups = job.groups
        self._with_added = job.with_added
        self.multiplier: float | None = None
        self.last_epoch = 0
        self._step_count = 1
        self._ssr = ssr
        self.state = state
        self._function = as_function(job.schedule, ssr)
        self._plan: Plan | None = None
        self._end: Time | None = None
        self._horizon: Horizon | None = None
        self._epoch_length: int | None = None
        self._edits = 0
        # Stored once: `_set` compares by identity to find groups with a user-defined function.
        self._default_lambda = self._multiplier_at
        self.lr_lambdas = [self._default_lambda] * len(self.optimizer.param_groups)
        self._read_initial()
        self._last_lr = self._current_lr()
        if self.groups and not any(self.base_lrs[number] for number in self.groups):
            raise ValueError(
                f"schedulers: {name_of(job.schedule)} multiplies {self.hyperparameter!r}, which is 0 in "
                f"{type(self.optimizer).__name__} and would stay 0. Create the optimizer with a nonzero initial value."
            )

    @property
    def schedule(self) -> Schedule:
        """The schedule; assigning another one takes effect at the next step."""
        return self._schedule

    @schedule.setter
    def schedule(self, schedule: Schedule) -> None:
        self._function = as_function(schedule, self._ssr)
        self._schedule = schedule
        self._plan = None

    def step(self, epoch: int | None = None) -> None:
        """Set the hyperparameter for the next step.

        Args:
            epoch: Sets ``last_epoch``, with torch's deprecation warning. The schedule still follows the timestamp of
                the run.
        """
        self._step_count += 1
        if epoch is None:
            self.last_epoch += 1
        else:
            warnings.warn(EPOCH_DEPRECATION_WARNING, UserWarning, stacklevel=2)
            self.last_epoch = epoch
        self._set(self._value())

    def refresh(self) -> None:
        """Set the hyperparameter to its current value if the multiplier has changed.

        Called when a run starts or resumes, whose duration may have changed, and at the end of an epoch. Other edits of
        the hyperparameter are kept as long as the multiplier is unchanged.
        """
        if not self.state.finished:
            self._plan = None
        value = self._value()
        if value != self.multiplier:
            self._set(value)

    def schedule_added_groups(self) -> None:
        """Schedule the groups that were added to the optimizer, from the values they have.

        Their values are set at once, also between two calls of :meth:`step`. A schedule that was assigned to certain
        groups leaves the others alone.
        """
        known, groups, name = len(self.base_lrs), self.optimizer.param_groups, self.hyperparameter
        added = range(known, len(groups))
        if self._with_added:
            self.groups = (*self.groups, *added)
            self._share_initial(known)
        self.base_lrs = [*self.base_lrs, *self._initial_values(known)]
        self.lr_lambdas = [*self.lr_lambdas, *[self._default_lambda] * len(added)]
        if self._with_added and self.multiplier is not None:
            for number in added:
                set_value(groups[number], name, float(self.base_lrs[number]) * self.multiplier)
        self._last_lr = self._current_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of ``LambdaLR``, the last multiplier, and the state of the schedule."""
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
        if has_state(self.schedule):
            saved["schedule"] = cast(Any, self.schedule).state_dict()
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` of this class or of a ``LambdaLR`` returned.

        Args:
            state_dict: The saved values.

        Raises:
            ValueError: The state is of an optimizer with a different number of parameter groups.
        """
        # A state of another hyperparameter, scheduled by the earlier run, does not hold this one's initial value.
        same = state_dict.get("hyperparameter", "lr") == self.hyperparameter
        base_lrs, groups = state_dict.get("base_lrs") if same else None, self.optimizer.param_groups
        if base_lrs is not None and len(base_lrs) != len(groups):
            raise ValueError(
                f"base_lrs has {len(base_lrs)} values, but {type(self.optimizer).__name__} has {len(groups)} groups. "
                f"To restart the schedule, load with load_ignore_keys=['state/schedulers*']."
            )
        self.multiplier = state_dict.get("multiplier")
        self.last_epoch = state_dict.get("last_epoch", 0)
        self._step_count = state_dict.get("_step_count", self.last_epoch + 1)
        if base_lrs is None:  # read them from the optimizer, which is loaded first
            self._read_initial()
        else:
            self.base_lrs = list(base_lrs)
        self._last_lr = list(state_dict.get("_last_lr") or self._current_lr())
        for function, saved in zip(self.lr_lambdas, state_dict.get("lr_lambdas", ()), strict=False):
            if saved and function is not self._default_lambda:
                vars(function).update(saved)
        if state_dict.get("schedule") and has_state(self.schedule):
            cast(Any, self.schedule).load_state_dict(state_dict["schedule"])
        self._plan = None

    def __is_own_state__(self, state: dict[str, Any]) -> bool:
        """Return whether a saved state has the same hyperparameter and groups, if a run has several schedules.

        Args:
            state: The saved state of one of the schedules.
        """
        groups = state.get("groups")
        same = state.get("hyperparameter", "lr") == self.hyperparameter
        return same and (groups is None or tuple(groups) == tuple(self.groups))

    def __repr__(self) -> str:
        return f"CompiledSchedule({self.schedule!r}, {self.hyperparameter!r} of {type(self.optimizer).__name__})"

    def __getstate__(self) -> dict[str, Any]:
        """Omit the plan, which consists of functions and is rebuilt when needed."""
        return {**self.__dict__, "_plan": None, "_horizon": None, "_function": None}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)
        self._function = as_function(self.schedule, self._ssr)

    def _multiplier_at(self, epoch: int) -> float:
        """Return the current multiplier; ``LambdaLR`` passes the argument to its functions."""
        return self._value()

    def _state_of(self, function: Any) -> dict[str, Any] | None:
        """Return the saved state of an entry of ``lr_lambdas``: the attributes of callable objects, as in torch."""
        if function is self._default_lambda or isinstance(function, types.FunctionType):
            return None
        return dict(getattr(function, "__dict__", {}))

    def _value(self) -> float:
        """Return the current multiplier."""
        state = self.state
        if self._plan is None or self._is_stale():
            self._make_plan()
        plan = cast(Plan, self._plan)
        return plan(state.train_phase.timestamp if self._horizon is None else self._horizon.time_of(state))

    def _is_stale(self) -> bool:
        """Return whether the duration of the run or an attribute of the schedule has changed since planning."""
        state = self.state
        if (
            self._end is state.max_duration
            and self._epoch_length == state.train_phase.length
            and self._edits == number_of_edits[0]
        ):
            return False
        # A run that is stopped early ends in the middle of its schedule; fractions still refer to the planned duration.
        return not state.finished

    def _make_plan(self) -> None:
        state, function = self.state, self._function
        self._horizon = None
        self._end, self._epoch_length = state.max_duration, state.train_phase.length
        if function is not None:
            self._plan = lambda now: function(state)
        else:
            schedule = cast(ComposerScheduler, self.schedule)
            try:
                self._horizon = Horizon.of(state, self._ssr)
                self._plan = schedule.__plan__(self._horizon)
            except ValueError as error:
                raise ValueError(f"schedulers: {schedule!r} is impossible in this run: {error}") from None
        self._edits = number_of_edits[0]

    def _read_initial(self) -> None:
        """Read the initial values from the optimizer."""
        self.base_lrs = self._initial_values()

    def _initial_values(self, first: int = 0) -> list[Any]:
        """Return the initial values of the groups from one on; those that are not scheduled need none."""
        name, groups = self.hyperparameter, list(enumerate(self.optimizer.param_groups))
        return [
            initial_value(group, name) if number in self.groups else group.get(f"initial_{name}", group.get(name))
            for number, group in groups[first:]
        ]

    def _share_initial(self, known: int) -> None:
        """Give added groups the initial value of a group with the same tensor, whose value the schedule has changed."""
        key, groups = self.hyperparameter, self.optimizer.param_groups
        for group in groups[known:]:
            for other in groups[:known]:  # torch sets the default itself in each, not a copy
                if isinstance(group.get(key), Tensor) and group[key] is other.get(key) and f"initial_{key}" in other:
                    group.setdefault(f"initial_{key}", other[f"initial_{key}"])

    def _current_lr(self) -> list[Any]:
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return [rate.clone() if isinstance(rate, Tensor) else rate for rate in rates]

    def _set(self, multiplier: float) -> None:
        self.multiplier = multiplier
        groups, name = self.optimizer.param_groups, self.hyperparameter
        if len(groups) > len(self.base_lrs):
            self.schedule_added_groups()
        bases, functions, default = self.base_lrs, self.lr_lambdas, self._default_lambda
        found: list[Any] = []
        for number in self.groups:
            function, group = functions[number], groups[number]
            value: Any = bases[number] * (multiplier if function is default else function(self.last_epoch))
            if type(group.get(name)) is float:
                group[name] = value
                found.append(value)
            else:
                set_value(group, name, value)
        all_groups = name == "lr" and len(found) == len(groups)
        self._last_lr = found if all_groups else self._current_lr()


def schedule_added_groups(schedulers: Iterable[LRScheduler]) -> None:
    """Let schedules cover the groups that were added to their optimizers; a check in each step, so it must be quick.

    Args:
        schedulers: The schedules of a run; those of torch are left as they are.

    >>> from composer import State
    >>> from composer.optim import ConstantScheduler
    >>> model = torch.nn.Linear(1, 1)
    >>> optimizer = torch.optim.SGD([model.weight], lr=0.5)
    >>> state = State(model=model, max_duration="4ba", optimizers=optimizer)
    >>> compiled = compile_composer_scheduler(ConstantScheduler(0.5), state)
    >>> optimizer.add_param_group({"params": [model.bias], "lr": 2.0})
    >>> schedule_added_groups([compiled])
    >>> compiled.get_last_lr()
    [0.25, 1.0]
    """
    for scheduler in schedulers:
        if isinstance(scheduler, CompiledSchedule) and len(scheduler.optimizer.param_groups) > len(scheduler.base_lrs):
            scheduler.schedule_added_groups()


def compile_composer_scheduler(
    scheduler: Schedule | AssignedSchedule, state: State, ssr: float = 1.0
) -> CompiledSchedule:
    """Bind a schedule to the optimizer of a state and set the learning rate for the first step.

    Args:
        scheduler: The schedule, or a function ``(state, ssr) -> multiplier``, or an assigned schedule.
        state: Provides the optimizer, the timestamp, ``max_duration`` and the number of batches in an epoch.
        ssr: Ratio by which times are multiplied, except those given as a fraction of the run.
            ``state.max_duration`` must already be scaled.

    Returns:
        A schedule to use like PyTorch's: call ``step()`` after ``state.timestamp`` has advanced.

    Raises:
        TypeError: ``scheduler`` is not a schedule.
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
            f"scheduler: the state has {len(state.optimizers)} optimizers. Use exactly one, or choose one with "
            f"scheduler.assign(optimizer=...)."
        )
    compiled = CompiledSchedule(cast(Job, jobs[0]), state, ssr)
    compiled.refresh()
    return compiled
