"""Learning rate schedules in a run: validate, scale, bind to optimizers, start with a fit, update after evaluations."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, cast

from torch.optim.lr_scheduler import LRScheduler

from composer import trees
from composer._numbers import positive
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
    "observe_evaluation",
    "refresh_schedules",
    "scaled",
    "set_schedules",
]

Scheduler = ComposerScheduler | AssignedSchedule | LRScheduler | Callable[..., float]
"""Types that the ``schedulers`` argument accepts."""


def as_schedulers(schedulers: Any) -> list[Any]:
    """Return the schedules as a list.

    Args:
        schedulers: One schedule, a sequence of schedules or None.

    Raises:
        TypeError: An entry is not a schedule.

    >>> as_schedulers(None)
    []
    """
    found = list(trees.ensure_tuple(schedulers))
    for entry in found:
        if isinstance(entry, type):
            raise TypeError(f"schedulers: got the class {entry.__name__}; give an object of it: {entry.__name__}(...).")
        if not (isinstance(entry, (LRScheduler, AssignedSchedule)) or callable(entry)):
            raise TypeError(
                f"schedulers: {entry!r} is not a schedule. Use one from composer.optim such as "
                f"CosineAnnealingScheduler(), a function (state, ssr) -> multiplier, or one from "
                f"torch.optim.lr_scheduler."
            )
    return found


def check_ratio(ratio: float, schedulers: Any) -> None:
    """Check ``scale_schedule_ratio``.

    Args:
        ratio: The ratio.
        schedulers: The schedules given with it.

    Raises:
        TypeError: The ratio is not a number.
        ValueError: The ratio is not positive and finite, or is given without schedules.

    >>> check_ratio(1.0, None)
    """
    positive("scale_schedule_ratio", ratio)
    if not math.isfinite(ratio):
        raise ValueError(f"scale_schedule_ratio must be finite, but got {ratio!r}.")
    if ratio != 1.0 and not as_schedulers(schedulers):
        raise ValueError(
            f"scale_schedule_ratio={ratio} requires schedulers to scale. Pass schedulers as well, or use a shorter "
            f"duration."
        )


def scaled(duration: int | str | Time | None, ratio: float) -> Time | None:
    """Return a duration multiplied by a ratio, in integer units.

    Args:
        duration: A number of epochs, a time string, a time, or None.
        ratio: ``scale_schedule_ratio``.

    Raises:
        ValueError: The result would be zero, or the duration is None and the ratio is not 1.

    >>> scaled("10ep", 0.25)
    Time(2, TimeUnit.EPOCH)
    """
    if duration is None:
        if ratio != 1.0:
            raise ValueError(f"scale_schedule_ratio={ratio} requires max_duration, which it scales; pass it as well.")
        return None
    time = ensure_time(duration, TimeUnit.EPOCH, "duration")
    if ratio == 1.0:
        return time
    scaled_time = Time(truncate_to_int(time.value * ratio), time.unit)
    if scaled_time.value == 0 < time.value:
        raise ValueError(f"scale_schedule_ratio={ratio} scales '{time}' to zero; use a larger ratio.")
    return scaled_time


def set_schedules(run: Run, schedulers: Any, ratio: float, every_batch: bool | None, *, later: bool = False) -> None:
    """Set the schedules of a run, and bind them to the optimizers if it has any yet.

    Args:
        run: The run; ``max_duration`` is already scaled.
        schedulers: One schedule, a sequence of schedules or None.
        ratio: Multiplies the times of the schedules.
        every_batch: Whether to step them every batch; None means yes, unless one is a torch schedule.
        later: Whether to leave the optimizers as they are until training begins.

    Raises:
        TypeError: An entry is not a schedule, or requires a metric.
        ValueError: They do not match the optimizers, or the run.
    """
    entries = as_schedulers(schedulers)
    if every_batch is None:
        every_batch = bool(entries) and not any(is_torch_schedule(entry) for entry in entries)
    run.options = dataclasses.replace(run.options, step_schedulers_every_batch=every_batch)
    run.unbound_schedules = (entries, ratio)
    if later:
        return
    run.state.schedulers = []
    if run.state.optimizers:
        bind(run)
        if run.state.max_duration is not None and run.state.train_phase.loader is not None:
            refresh_schedules(run)


def begin_schedules(run: Run) -> None:
    """Set the learning rates for the first step of a fit, and check the schedules against the run.

    Args:
        run: The run; its state has optimizers, data and ``max_duration``.

    Raises:
        ValueError: A schedule is not possible in this run.
    """
    bind(run)
    state, steps = run.state, _steps_to_come(run.state)
    if run.state.loaded is not None and not state.schedulers:
        load_each("schedulers", [], run.state.loaded.schedulers)  # warns that nothing uses the saved states
    for scheduler in state.schedulers:
        if not isinstance(scheduler, CompiledSchedule):
            if steps is not None:
                check_num_steps(scheduler, run.options.step_schedulers_every_batch, *steps)
        elif isinstance(scheduler.schedule, ComposerScheduler):
            scheduler.schedule.__check__(state)
    refresh_schedules(run)


def refresh_schedules(run: Run) -> None:
    """Set the scheduled values for the current time, for example after the duration changed.

    Within an epoch, schedules that step every epoch keep their values.

    Args:
        run: The run.
    """
    by_epoch = not run.options.step_schedulers_every_batch and run.state.timestamp.batch_in_epoch.value > 0
    for scheduler in run.state.schedulers:
        if isinstance(scheduler, CompiledSchedule) and (scheduler.multiplier is None or not by_epoch):
            scheduler.refresh()


def observe_evaluation(run: Run, labels: Sequence[str]) -> None:
    """Update schedules that depend on evaluation metrics.

    Args:
        run: The run.
        labels: Labels of the evaluators that ran.
    """
    compiled = [scheduler for scheduler in run.state.schedulers if isinstance(scheduler, CompiledSchedule)]
    # Update a schedule that is shared by optimizers only once.
    schedules = {id(c.schedule): c.schedule for c in compiled if isinstance(c.schedule, ComposerScheduler)}
    changed = {key for key, schedule in schedules.items() if schedule.__observe__(run.state, labels)}
    for scheduler in compiled:
        if id(scheduler.schedule) in changed:
            scheduler.refresh()


def bind(run: Run) -> None:
    """Bind the schedules that were set before the run had optimizers.

    Args:
        run: The run; its state has optimizers.

    Raises:
        ValueError: They do not match the optimizers.
    """
    if run.unbound_schedules is None:
        return
    (entries, ratio), state = run.unbound_schedules, run.state
    theirs = [cast(LRScheduler, entry) for entry in entries if is_torch_schedule(entry)]
    for scheduler in theirs:
        check_torch_schedule(scheduler, state.optimizers)
    if foreign := [entry for entry in entries if isinstance(entry, CompiledSchedule) and entry.state is not state]:
        raise ValueError(
            f"schedulers: {foreign[0]!r} follows the time of another state. Compile it with the trainer's state, or "
            f"pass the schedule itself, which the Trainer compiles."
        )
    found = assign(entries, state.optimizers)
    state.schedulers = [job if isinstance(job, LRScheduler) else CompiledSchedule(job, state, ratio) for job in found]
    if ratio != 1.0:
        for scheduler in theirs:
            scale_torch_schedule(scheduler, ratio)
    run.unbound_schedules = None
    if run.state.loaded is not None:  # a checkpoint was loaded before the schedules were bound
        load_each("schedulers", state.schedulers, run.state.loaded.schedulers)


def _steps_to_come(state: State) -> tuple[int, int] | None:
    """Return the numbers of epoch ends and batches left to train, or None if unknown."""
    end, length, now = state.max_duration, state.train_phase.steps_per_epoch, state.timestamp
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
