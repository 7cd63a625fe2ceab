"""Schedules in a run: what users give, bound to optimizers, begun with each fit, told of evaluations; its length."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from torch.optim.lr_scheduler import LRScheduler

from composer import trees
from composer._text import positive
from composer.checkpoint.named_states import load_each
from composer.core.state import State
from composer.core.time import Time, TimeUnit, ensure_time
from composer.optim.compiled_schedule import CompiledSchedule
from composer.optim.schedule import ComposerScheduler
from composer.optim.schedule_assignment import AssignedSchedule, assign
from composer.optim.schedule_times import truncate_to_int
from composer.optim.torch_schedules import (
    check_num_steps,
    check_torch_schedule,
    is_torch_schedule,
    scale_torch_schedule,
)
from composer.trainer.run import Run

__all__ = [
    "Scheduler",
    "as_schedulers",
    "begin_schedules",
    "bind",
    "check_ratio",
    "extend",
    "observe_evaluation",
    "refresh_schedules",
    "scaled",
    "set_schedules",
]

Scheduler = ComposerScheduler | AssignedSchedule | LRScheduler | Callable[..., float]
"""What can be given as a schedule."""


def as_schedulers(schedulers: Any) -> list[Any]:
    """Return the schedules as a list.

    Args:
        schedulers: One, several or None.

    Raises:
        TypeError: One is no schedule.

    >>> as_schedulers(None)
    []
    """
    found = list(trees.ensure_tuple(schedulers))
    for entry in found:
        if isinstance(entry, type):
            raise TypeError(f"schedulers: got the class {entry.__name__}; give an object of it: {entry.__name__}(...).")
        if not (isinstance(entry, (LRScheduler, AssignedSchedule)) or callable(entry)):
            raise TypeError(
                f"schedulers: {entry!r} is no schedule. Give one of composer.optim such as CosineAnnealingScheduler(), "
                f"a function (state, ssr) -> multiplier, or one of torch.optim.lr_scheduler."
            )
    return found


def check_ratio(ratio: float, schedulers: Any) -> None:
    """Refuse a ratio that cannot scale anything.

    Args:
        ratio: ``scale_schedule_ratio``.
        schedulers: The schedules given with it.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not positive and finite, or there are no schedules.

    >>> check_ratio(1.0, None)
    """
    positive("scale_schedule_ratio", ratio)
    if not math.isfinite(ratio):
        raise ValueError(f"scale_schedule_ratio must be finite, but got {ratio!r}.")
    if ratio != 1.0 and not as_schedulers(schedulers):
        raise ValueError(
            f"scale_schedule_ratio={ratio} is given without schedulers, which it is to scale. Give them as well, or a "
            f"shorter duration."
        )


def scaled(duration: int | str | Time | None, ratio: float) -> Time | None:
    """Return a duration times a ratio, in whole units.

    Args:
        duration: Epochs, a time string, a time, or None.
        ratio: ``scale_schedule_ratio``.

    Raises:
        ValueError: Nothing would be left, or there is nothing to scale.

    >>> scaled("10ep", 0.25)
    Time(2, TimeUnit.EPOCH)
    """
    if duration is None:
        if ratio != 1.0:
            raise ValueError(f"scale_schedule_ratio={ratio} needs max_duration, which it scales; give it as well.")
        return None
    whole = ensure_time(duration, TimeUnit.EPOCH, "duration")
    if ratio == 1.0:
        return whole
    part = Time(truncate_to_int(whole.value * ratio), whole.unit)
    if part.value == 0 < whole.value:
        raise ValueError(f"scale_schedule_ratio={ratio} makes '{whole}' zero; give a larger ratio.")
    return part


def extend(state: State, duration: int | str | Time | None) -> None:
    """Have training end when it has gone on for a duration from now.

    Args:
        state: The state.
        duration: How much further; None changes nothing.
    """
    if duration is not None:
        more = ensure_time(duration, TimeUnit.EPOCH, "duration")
        state.max_duration = Time(int(state.timestamp.count(more.unit)) + more.value, more.unit)


def set_schedules(run: Run, schedulers: Any, ratio: float, every_batch: bool | None) -> None:
    """Take over schedules, and bind them to the optimizers if there are any yet.

    Args:
        run: The run; ``max_duration`` is scaled already.
        schedulers: One, several or None.
        ratio: By what their times are multiplied.
        every_batch: Whether they are stepped with every batch; None is yes, unless one of torch is among them.

    Raises:
        TypeError: One is no schedule, or needs a metric.
        ValueError: They do not fit the optimizers, or the run.
    """
    entries = as_schedulers(schedulers)
    if every_batch is None:
        every_batch = bool(entries) and not any(is_torch_schedule(entry) for entry in entries)
    run.options = dataclasses.replace(run.options, step_schedulers_every_batch=every_batch)
    run.state.schedulers = []
    run.unbound_schedules = (entries, ratio)
    if run.state.optimizers:
        bind(run)
        if run.state.max_duration is not None and run.state.train_phase.loader is not None:
            refresh_schedules(run)


def begin_schedules(run: Run) -> None:
    """Set the values for the first step of a training, and refuse schedules that do not fit it.

    Args:
        run: The run; its state has optimizers, data and a maximal duration.

    Raises:
        ValueError: A schedule is impossible in this run.
    """
    bind(run)
    state, steps = run.state, _steps_to_come(run.state)
    if run.loaded is not None and not state.schedulers:
        load_each("schedulers", [], run.loaded.schedulers)  # nobody takes them, which is told
    for scheduler in state.schedulers:
        if not isinstance(scheduler, CompiledSchedule):
            if steps is not None:
                check_num_steps(scheduler, run.options.step_schedulers_every_batch, *steps)
        elif isinstance(scheduler.schedule, ComposerScheduler):
            scheduler.schedule.__check__(state)
    refresh_schedules(run)


def refresh_schedules(run: Run) -> None:
    """Set what is to be now, where that is not what a schedule has set last.

    In the middle of an epoch, schedules that go by epochs keep what they have set.

    Args:
        run: The run.
    """
    by_epoch = not run.options.step_schedulers_every_batch and run.state.timestamp.batch_in_epoch.value > 0
    for scheduler in run.state.schedulers:
        if isinstance(scheduler, CompiledSchedule) and (scheduler.multiplier is None or not by_epoch):
            scheduler.refresh()


def observe_evaluation(run: Run, labels: Sequence[str]) -> None:
    """Tell the schedules that follow metrics of an evaluation.

    Args:
        run: The run.
        labels: Labels of the evaluators that ran.
    """
    compiled = [scheduler for scheduler in run.state.schedulers if isinstance(scheduler, CompiledSchedule)]
    # One schedule for several optimizers is told once.
    schedules = {id(c.schedule): c.schedule for c in compiled if isinstance(c.schedule, ComposerScheduler)}
    changed = {key for key, schedule in schedules.items() if schedule.__observe__(run.state, labels)}
    for scheduler in compiled:
        if id(scheduler.schedule) in changed:
            scheduler.refresh()


def bind(run: Run) -> None:
    """Bind schedules that wait for it to the optimizers.

    Args:
        run: The run; its state has optimizers.

    Raises:
        ValueError: They do not fit the optimizers.
    """
    if run.unbound_schedules is None:
        return
    (entries, ratio), state = run.unbound_schedules, run.state
    theirs = [cast(LRScheduler, entry) for entry in entries if is_torch_schedule(entry)]
    for scheduler in theirs:
        check_torch_schedule(scheduler, state.optimizers)
    if foreign := [entry for entry in entries if isinstance(entry, CompiledSchedule) and entry.state is not state]:
        raise ValueError(
            f"schedulers: {foreign[0]!r} follows the time of another state. Compile it with the trainer's, or give the "
            f"schedule itself, which the Trainer compiles."
        )
    found = assign(entries, state.optimizers)
    state.schedulers = [job if isinstance(job, LRScheduler) else CompiledSchedule(job, state, ratio) for job in found]
    if ratio != 1.0:
        for scheduler in theirs:
            scale_torch_schedule(scheduler, ratio)
    run.unbound_schedules = None
    if run.loaded is not None:  # before they came, so that what was saved waits for them
        load_each("schedulers", state.schedulers, run.loaded.schedulers)


def _steps_to_come(state: State) -> tuple[int, int] | None:
    """Return the numbers of ends of epochs and of batches still to come, or None where they are not known."""
    end, length, now = state.max_duration, state.train_phase.length, state.timestamp
    in_epoch = int(now.batch_in_epoch)
    if end is None or not length:
        return None
    if end.unit is TimeUnit.EPOCH:
        epochs = int(end.value) - now.count(TimeUnit.EPOCH)
        return epochs, epochs * length - in_epoch
    if end.unit is TimeUnit.BATCH:
        batches = int(end.value) - now.count(TimeUnit.BATCH)
        return (in_epoch + batches) // length, batches
    return None
