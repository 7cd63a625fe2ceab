"""Profiling schedules: which batches are skipped, warmed up, recorded and saved (``cyclic_schedule``)."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from composer._numbers import whole_number
from composer._text import member_of

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["RECORDING", "ProfilerAction", "cyclic_schedule"]


class ProfilerAction(StrEnum):
    """The action of a profiler in a batch.

    >>> ProfilerAction("active_and_save") is ProfilerAction.ACTIVE_AND_SAVE
    True
    """

    SKIP = "skip"  # do nothing
    WARMUP = "warmup"  # run the profiler, whose start distorts timings, and discard the results
    ACTIVE = "active"  # record
    ACTIVE_AND_SAVE = "active_and_save"  # record, and write the traces when the batch ends

    @classmethod
    def _missing_(cls, value: object) -> ProfilerAction:
        return member_of(cls, "action", value)


RECORDING: Final = (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)
"""The actions during which traces are recorded."""


def cyclic_schedule(
    skip_first: int = 0, wait: int = 0, warmup: int = 1, active: int = 4, repeat: int = 1
) -> Callable[[State], ProfilerAction]:
    """Return a schedule that profiles a few batches of each epoch, once or repeatedly.

    Each epoch starts with ``skip_first`` skipped batches; if a checkpoint is loaded in the middle of an epoch, they are
    counted from there. They are followed by ``repeat`` cycles of ``wait`` skipped batches, ``warmup`` batches in which
    the profiler runs without recording, and ``active`` recorded batches. Traces are written after the last batch of a
    cycle, and after the last batch of an epoch if it is recorded.

    Args:
        skip_first: Number of skipped batches at the start of each epoch.
        wait: Number of skipped batches at the start of each cycle.
        warmup: Number of warm-up batches in each cycle.
        active: Number of recorded batches in each cycle, at least one.
        repeat: Number of cycles in an epoch; 0 repeats until the end of the epoch.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: A number is negative, or ``active`` is zero.

    >>> from composer import State, Timestamp
    >>> state, schedule = State(model=torch.nn.Linear(1, 1)), cyclic_schedule(wait=1, warmup=1, active=2)
    >>> actions = []
    >>> for batch in range(5):
    ...     state.timestamp = Timestamp(batch_in_epoch=batch)
    ...     actions.append(schedule(state).value)
    >>> actions
    ['skip', 'warmup', 'active', 'active_and_save', 'skip']
    """
    skip_first, wait = whole_number("skip_first", skip_first), whole_number("wait", wait)
    warmup, repeat = whole_number("warmup", warmup), whole_number("repeat", repeat)
    active = whole_number("active", active, minimum=1)
    length = wait + warmup + active

    def schedule(state: State) -> ProfilerAction:
        batch = state.timestamp.batch_in_epoch.value
        resumed = 0 if state.profiler is None else state.profiler.resumption_batch_idx
        cycle, position = divmod(batch - resumed - skip_first, length)
        if cycle < 0 or (repeat and cycle >= repeat) or position < wait:
            return ProfilerAction.SKIP
        if position < wait + warmup:
            return ProfilerAction.WARMUP
        is_last = position == length - 1 or batch + 1 == state.train_phase.length
        return ProfilerAction.ACTIVE_AND_SAVE if is_last else ProfilerAction.ACTIVE

    return schedule
