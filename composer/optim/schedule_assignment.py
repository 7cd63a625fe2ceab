"""Assign schedules to hyperparameters, optimizers and parameter groups (``AssignedSchedule``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast, final

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from composer._numbers import as_integer
from composer._text import did_you_mean
from composer.core.time import Time
from composer.optim.schedule import ComposerScheduler
from composer.optim.wrapped_optimizer import is_or_wraps

__all__ = ["AssignedSchedule", "Job", "Schedule", "assign", "name_of"]

Schedule: TypeAlias = ComposerScheduler | Callable[..., float]
"""A :class:`.ComposerScheduler`, or a function ``(state, ssr) -> multiplier``."""

_Slot: TypeAlias = tuple[int, str, int]
"""The id of an optimizer, a hyperparameter, the index of a parameter group."""


@final
class AssignedSchedule:
    """A schedule assigned to a hyperparameter, an optimizer or some of its parameter groups.

    If the trainer gets several schedules, an unassigned one sets all learning rates that no assigned one sets.
    Parameter groups that are added during training are set by schedules that are not assigned to certain ``groups``.
    ``schedule.assign(...)`` is the same as ``AssignedSchedule(schedule, ...)``, which also accepts plain functions.

    Args:
        schedule: The schedule; its value multiplies the initial value in the optimizer.
        hyperparameter: "lr", "momentum", "weight_decay", "beta1", "beta2" or any other number in the parameter groups.
        optimizer: The optimizer, or its index among those of the trainer. None means all.
        groups: Indices of parameter groups, or their names under the key "name". None means all.

    Raises:
        TypeError: ``schedule`` is neither a :class:`.ComposerScheduler` nor a function, ``optimizer`` is neither an
            optimizer nor an index, or ``groups`` are neither indices nor names.

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
        index = as_integer(optimizer)
        if optimizer is not None and index is None and not hasattr(optimizer, "param_groups"):
            raise TypeError(f"optimizer must be one of optimizers= or its index, but got {optimizer!r}.")
        self.optimizer = optimizer if index is None else index
        self.groups = None if groups is None else _indices_or_names(groups)

    def plot(
        self,
        max_duration: Time | str,
        epoch_length: int | None = None,
        ssr: float = 1.0,
        *,
        ax: Any = None,
        label: str | None = None,
    ) -> Any:
        """Plot the multipliers over a run with matplotlib, see :meth:`.ComposerScheduler.plot`.

        Args:
            max_duration: Duration of the run.
            epoch_length: Number of batches in an epoch.
            ssr: Ratio by which times are multiplied.
            ax: The axes to draw on. Default: those of a new figure.
            label: Name in the legend. Default: the name of the schedule and the hyperparameter.

        Raises:
            MissingConditionalImportError: matplotlib is not installed.
            TypeError: The schedule is a plain function, which needs the state of a run.
            ValueError: As for the schedule.

        >>> from composer.optim import LinearScheduler
        >>> LinearScheduler().assign("weight_decay").plot("10ep").axes[0].get_ylabel()
        'multiplier of weight_decay'
        """
        from composer.optim._schedule_plot import draw_schedule

        if not isinstance(self.schedule, ComposerScheduler):
            raise TypeError(
                f"{name_of(self.schedule)} is a function of the state of a run, which cannot be plotted without one. "
                f"Write a ComposerScheduler, or plot the function itself."
            )
        label = f"{name_of(self.schedule)} of {self.hyperparameter}" if label is None else label
        return draw_schedule(self.schedule, max_duration, epoch_length, ssr, ax, label, self.hyperparameter)

    def __repr__(self) -> str:
        where = "" if self.optimizer is None else f", optimizer={_optimizer_name(self.optimizer)}"
        which = "" if self.groups is None else f", groups={self.groups!r}"
        return f"AssignedSchedule({self.schedule!r}, {self.hyperparameter!r}{where}{which})"


@dataclass(frozen=True)
class Job:
    """A schedule of one hyperparameter in some parameter groups of one optimizer.

    Attributes:
        schedule: The schedule.
        optimizer: The optimizer.
        hyperparameter: The scheduled hyperparameter.
        groups: Indices of the parameter groups; none if it only schedules groups that are added later.
        with_added: Whether it also schedules groups that are added to the optimizer later.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> Job(lambda state: 0.5, optimizer).hyperparameter
    'lr'
    """

    schedule: Schedule
    optimizer: Optimizer
    hyperparameter: str = "lr"
    groups: tuple[int, ...] = (0,)
    with_added: bool = False


def name_of(schedule: Any) -> str:
    """Return the name of a schedule for messages.

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
    """Resolve schedules to jobs, in the given order; PyTorch schedulers are returned unchanged.

    Args:
        entries: The schedules. Of the unassigned ones there must be one for all optimizers, or one for each optimizer
            without a PyTorch scheduler.
        optimizers: The optimizers.

    Raises:
        ValueError: An optimizer or group does not exist, two schedules set the same hyperparameter, a schedule sets
            nothing, or the number of unassigned schedules is neither one nor that of the optimizers.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    >>> [job.hyperparameter for job in assign([lambda state: 0.5], [optimizer])]
    ['lr']
    """
    claimed: dict[_Slot, str] = {}
    torch_schedulers = [entry for entry in entries if isinstance(entry, LRScheduler)]
    torch_scheduled: set[int] = set()
    for scheduler in torch_schedulers:  # several of torch's may act on one optimizer; their effects multiply
        for optimizer in optimizers:
            if is_or_wraps(optimizer, scheduler.optimizer):
                torch_scheduled.add(id(optimizer))
                claimed |= {(id(optimizer), "lr", n): name_of(scheduler) for n in range(len(optimizer.param_groups))}
    assigned = {id(e): _jobs(e, optimizers, claimed) for e in entries if isinstance(e, AssignedSchedule)}
    unassigned = [entry for entry in entries if not isinstance(entry, (LRScheduler, AssignedSchedule))]
    remaining = [optimizer for optimizer in optimizers if id(optimizer) not in torch_scheduled]
    if len(unassigned) > 1 and len(unassigned) != len(remaining):
        raise ValueError(
            f"schedulers: got {len(unassigned)} learning-rate schedules ({', '.join(map(name_of, unassigned))}) for "
            f"{len(remaining)} optimizer{'s' * (len(remaining) != 1)}. Give one for all, or one for each in order. "
            f"Chain schedules with a + b. For some parameter groups or other hyperparameters, use schedule.assign(...)."
        )
    covered = {
        id(job.optimizer) for of in assigned.values() for job in of if job.hyperparameter == "lr" and job.with_added
    }
    found: list[Job | LRScheduler] = []
    in_order = iter(remaining)
    for entry in entries:
        if isinstance(entry, LRScheduler):
            found.append(entry)
        elif isinstance(entry, AssignedSchedule):
            found += assigned[id(entry)]
        else:
            found += _rest(entry, remaining if len(unassigned) == 1 else [next(in_order)], claimed, covered)
    return found


def _rest(
    schedule: Schedule, optimizers: Sequence[Optimizer], claimed: dict[_Slot, str], covered: set[int]
) -> list[Job]:
    """Return the jobs of a schedule for all learning rates that no other schedule sets, also those of added groups.

    The jobs may have no group yet. Added groups of the optimizers with ids in ``covered`` are set by other schedules.
    """
    jobs: list[Job] = []
    for optimizer in optimizers:
        if id(optimizer) not in covered:
            groups = [n for n in range(len(optimizer.param_groups)) if (id(optimizer), "lr", n) not in claimed]
            jobs.append(Job(schedule, optimizer, "lr", tuple(groups), with_added=True))
    if not any(job.groups for job in jobs):
        claimers = ", ".join(sorted(set(claimed.values())))
        raise ValueError(
            f"schedulers: {name_of(schedule)} has nothing to set, because {claimers} set every learning rate. Omit it."
        )
    return jobs


def _jobs(entry: AssignedSchedule, optimizers: Sequence[Optimizer], claimed: dict[_Slot, str]) -> list[Job]:
    """Return the jobs of an assigned schedule, and record the hyperparameters that it sets."""
    jobs: list[Job] = []
    for optimizer in _optimizers(entry, optimizers):
        groups = _groups(entry, optimizer)
        for group in groups:
            slot = (id(optimizer), entry.hyperparameter, group)
            if slot in claimed:
                raise ValueError(
                    f"schedulers: {claimed[slot]} and {name_of(entry)} both set {entry.hyperparameter!r} of group "
                    f"{group} of {type(optimizer).__name__}. Assign them to different groups, or chain them with a + b."
                )
            claimed[slot] = name_of(entry)
        jobs.append(Job(entry.schedule, optimizer, entry.hyperparameter, groups, entry.groups is None))
    return jobs


def _optimizers(entry: AssignedSchedule, optimizers: Sequence[Optimizer]) -> Sequence[Optimizer]:
    """Return the optimizers that a schedule is assigned to."""
    chosen = entry.optimizer
    if chosen is None:
        return optimizers
    if isinstance(chosen, int) and 0 <= chosen < len(optimizers):
        return [optimizers[chosen]]
    found = [optimizer for optimizer in optimizers if is_or_wraps(optimizer, chosen)]
    if not found:
        names = ", ".join(f"{number} ({type(optimizer).__name__})" for number, optimizer in enumerate(optimizers))
        raise ValueError(f"{entry!r} is for an optimizer that was not passed as optimizers=. There are {names}.")
    return found


def _indices_or_names(groups: int | str | Sequence[int | str]) -> tuple[int | str, ...]:
    """Return the groups of an assignment as a tuple, with indices of Python."""
    is_one = isinstance(groups, str) or as_integer(groups) is not None or not isinstance(groups, Iterable)
    found: list[int | str] = []
    for group in cast("Sequence[int | str]", (groups,) if is_one else groups):
        index = group if isinstance(group, str) else as_integer(group)
        if index is None:
            raise TypeError(f"groups must be indices or names of parameter groups, but got {group!r}.")
        found.append(index)
    return tuple(found)


def _groups(entry: AssignedSchedule, optimizer: Optimizer) -> tuple[int, ...]:
    """Return the indices of the groups that a schedule is assigned to."""
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
