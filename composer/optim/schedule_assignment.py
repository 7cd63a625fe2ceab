"""Which schedule is for which hyperparameter of which parameters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from composer._text import did_you_mean
from composer.optim.schedule import ComposerScheduler

__all__ = ["AssignedSchedule", "Job", "Schedule", "assign", "name_of"]

Schedule: TypeAlias = ComposerScheduler | Callable[..., float]
"""A schedule of ours, or a function ``(state, ssr) -> multiplier``."""

_Slot: TypeAlias = tuple[int, str, int]
"""An optimizer by its id, a hyperparameter, the number of a group."""


@final
class AssignedSchedule:
    """A schedule with what it is for: another hyperparameter than the learning rate, one optimizer, some groups.

    Of several schedules given to the trainer, one that is not assigned is for all learning rates that no assigned one
    takes. ``schedule.assign(...)`` is the same as ``AssignedSchedule(schedule, ...)``, which takes plain functions too.

    Args:
        schedule: The schedule; its value multiplies what the optimizer was made with.
        hyperparameter: "lr", "momentum", "weight_decay", "beta1", "beta2" or any other number that the optimizer has.
        optimizer: The optimizer, or its number among those of the trainer; None is every one.
        groups: Numbers of parameter groups, or the names that they have under the key "name"; None is all.

    Raises:
        TypeError: ``schedule`` is no schedule.

    >>> from composer.optim import CosineAnnealingScheduler, LinearScheduler
    >>> schedulers = [
    ...     CosineAnnealingScheduler(),
    ...     LinearScheduler(1.0, 0.1).assign("weight_decay"),
    ...     LinearScheduler().assign(groups=[1]),
    ... ]
    >>> schedulers[2]
    AssignedSchedule(LinearScheduler(alpha_i=1.0, alpha_f=0.0, t_max='1dur'), 'lr', groups=(1,))
    """

    def __init__(
        self,
        schedule: Schedule,
        hyperparameter: str = "lr",
        *,
        optimizer: Optimizer | int | None = None,
        groups: int | str | Sequence[int | str] | None = None,
    ) -> None:
        if not callable(schedule) or isinstance(schedule, type):
            raise TypeError(f"schedule must be a ComposerScheduler or a function (state, ssr), but got {schedule!r}.")
        self.schedule = schedule
        self.hyperparameter = hyperparameter
        self.optimizer = optimizer
        self.groups = (groups,) if isinstance(groups, (int, str)) else None if groups is None else tuple(groups)

    def __repr__(self) -> str:
        where = "" if self.optimizer is None else f", optimizer={_optimizer_name(self.optimizer)}"
        which = "" if self.groups is None else f", groups={self.groups!r}"
        return f"AssignedSchedule({self.schedule!r}, {self.hyperparameter!r}{where}{which})"


@dataclass(frozen=True)
class Job:
    """A schedule at work on groups of one optimizer.

    Attributes:
        schedule: The schedule.
        optimizer: The optimizer.
        hyperparameter: What is scheduled.
        groups: Numbers of the groups.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> Job(lambda state: 0.5, optimizer).hyperparameter
    'lr'
    """

    schedule: Schedule
    optimizer: Optimizer
    hyperparameter: str = "lr"
    groups: tuple[int, ...] = (0,)


def name_of(schedule: Any) -> str:
    """Return how a schedule is called in messages.

    Args:
        schedule: The schedule.

    >>> name_of(len), name_of(1.0)
    ('len', 'float')
    """
    if isinstance(schedule, AssignedSchedule):
        return name_of(schedule.schedule)
    return getattr(schedule, "__name__", type(schedule).__name__)


def assign(
    entries: Sequence[Schedule | AssignedSchedule | LRScheduler], optimizers: Sequence[Optimizer]
) -> list[Job | LRScheduler]:
    """Return who schedules what, in the order given; schedules of torch stay as they are.

    Args:
        entries: The schedules. Of those that are not assigned one is for all optimizers, or there is one for each
            optimizer that has no schedule of torch.
        optimizers: The optimizers.

    Raises:
        ValueError: An optimizer or group does not exist, two schedules are for the same thing, one is for nothing, or
            there are neither one nor as many as optimizers.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> [job.hyperparameter for job in assign([lambda state: 0.5], [optimizer])]
    ['lr']
    """
    taken: dict[_Slot, str] = {}
    theirs = [entry for entry in entries if isinstance(entry, LRScheduler)]
    for scheduler in theirs:  # several of torch's may multiply their effects on one optimizer
        for number in range(len(scheduler.optimizer.param_groups)):
            taken[id(scheduler.optimizer), "lr", number] = name_of(scheduler)
    owned = {id(scheduler.optimizer) for scheduler in theirs}
    assigned = {id(e): _jobs(e, optimizers, taken) for e in entries if isinstance(e, AssignedSchedule)}
    bare = [entry for entry in entries if not isinstance(entry, (LRScheduler, AssignedSchedule))]
    free = [optimizer for optimizer in optimizers if id(optimizer) not in owned]
    if len(bare) > 1 and len(bare) != len(free):
        raise ValueError(
            f"schedulers: {len(bare)} schedules of the learning rate ({', '.join(map(name_of, bare))}) for {len(free)} "
            f"optimizer{'s' * (len(free) != 1)}. Pass one for all, or one for each in order; one after the other is "
            f"a + b; for parts of the parameters or other hyperparameters give schedule.assign(...)."
        )
    found: list[Job | LRScheduler] = []
    in_order = iter(free)
    for entry in entries:
        if isinstance(entry, LRScheduler):
            found.append(entry)
        elif isinstance(entry, AssignedSchedule):
            found += assigned[id(entry)]
        else:
            found += _rest(entry, free if len(bare) == 1 else [next(in_order)], taken)
    return found


def _rest(schedule: Schedule, optimizers: Sequence[Optimizer], taken: dict[_Slot, str]) -> list[Job]:
    """Return the jobs of a schedule for all learning rates that are not taken."""
    jobs: list[Job] = []
    for optimizer in optimizers:
        groups = [n for n in range(len(optimizer.param_groups)) if (id(optimizer), "lr", n) not in taken]
        if groups:
            jobs.append(Job(schedule, optimizer, "lr", tuple(groups)))
    if not jobs:
        takers = ", ".join(sorted(set(taken.values())))
        raise ValueError(
            f"schedulers: nothing is left for {name_of(schedule)}, as {takers} set every learning rate. Leave it out."
        )
    return jobs


def _jobs(entry: AssignedSchedule, optimizers: Sequence[Optimizer], taken: dict[_Slot, str]) -> list[Job]:
    """Return the jobs of an assigned schedule, and note what it takes."""
    jobs: list[Job] = []
    for optimizer in _optimizers(entry, optimizers):
        groups = _groups(entry, optimizer)
        for group in groups:
            slot = (id(optimizer), entry.hyperparameter, group)
            if slot in taken:
                raise ValueError(
                    f"schedulers: {taken[slot]} and {name_of(entry)} both set {entry.hyperparameter!r} of group "
                    f"{group} of {type(optimizer).__name__}. Assign them to different groups, or put one after the "
                    f"other: a + b."
                )
            taken[slot] = name_of(entry)
        jobs.append(Job(entry.schedule, optimizer, entry.hyperparameter, groups))
    return jobs


def _optimizers(entry: AssignedSchedule, optimizers: Sequence[Optimizer]) -> Sequence[Optimizer]:
    """Return the optimizers that a schedule is assigned to."""
    chosen = entry.optimizer
    if chosen is None:
        return optimizers
    if isinstance(chosen, int) and 0 <= chosen < len(optimizers):
        return [optimizers[chosen]]
    found = [optimizer for optimizer in optimizers if optimizer is chosen]
    if not found:
        names = ", ".join(f"{number} ({type(optimizer).__name__})" for number, optimizer in enumerate(optimizers))
        raise ValueError(f"{entry!r} is for an optimizer that was not given as optimizers=. There are {names}.")
    return found


def _groups(entry: AssignedSchedule, optimizer: Optimizer) -> tuple[int, ...]:
    """Return the numbers of the groups that a schedule is assigned to."""
    count = len(optimizer.param_groups)
    if entry.groups is None:
        return tuple(range(count))
    names = {group["name"]: number for number, group in enumerate(optimizer.param_groups) if "name" in group}
    found: list[int] = []
    for group in entry.groups:
        number = names.get(group) if isinstance(group, str) else group
        if number is None or not 0 <= number < count:
            hint = did_you_mean(group, names) if isinstance(group, str) else ""
            named = f"named {', '.join(map(repr, names))}" if names else "without names"
            raise ValueError(
                f"{entry!r}: {type(optimizer).__name__} has no group {group!r}.{hint} It has groups 0 to {count - 1}, "
                f"{named}."
            )
        found.append(number)
    return tuple(dict.fromkeys(found))


def _optimizer_name(optimizer: Optimizer | int) -> str:
    return str(optimizer) if isinstance(optimizer, int) else type(optimizer).__name__
