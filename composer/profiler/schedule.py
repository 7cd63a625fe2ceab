"""Which batches are profiled."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from composer._text import member_of, non_negative, positive

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["RECORDING", "ProfilerAction", "cyclic_schedule"]


class ProfilerAction(StrEnum):
    """What a profiler does in a batch.

    >>> ProfilerAction("active_and_save") is ProfilerAction.ACTIVE_AND_SAVE
    True
    """

    SKIP = "skip"  # nothing
    WARMUP = "warmup"  # run the profiler, whose start distorts the times, and drop what it finds
    ACTIVE = "active"  # record
    ACTIVE_AND_SAVE = "active_and_save"  # record, and write the traces when the batch ends

    @classmethod
    def _missing_(cls, value: object) -> ProfilerAction:
        return member_of(cls, "action", value)


RECORDING: Final = (ProfilerAction.ACTIVE, ProfilerAction.ACTIVE_AND_SAVE)
"""The actions under which traces are recorded."""


def cyclic_schedule(
    skip_first: int = 0, wait: int = 0, warmup: int = 1, active: int = 4, repeat: int = 1
) -> Callable[[State], ProfilerAction]:
    """Return a schedule that profiles a few batches of each epoch, once or again and again.

    An epoch begins with ``skip_first`` batches that are left alone, also where a checkpoint is loaded in its midst.
    Then come ``repeat`` cycles of ``wait`` batches left alone, ``warmup`` batches in which the profiler runs
    without recording, and ``active`` batches that are recorded. The traces are written after the last batch of a
    cycle, and after that of the epoch if the cycle is recording then.

    Args:
        skip_first: Number of batches at the start of each epoch.
        wait: Number of batches at the start of each cycle.
        warmup: Number of batches after these.
        active: Number of batches after these, at least one.
        repeat: Number of cycles in an epoch; 0 is as many as there is room for.

    Raises:
        TypeError: A number is none.
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
    for name, number in (("skip_first", skip_first), ("wait", wait), ("warmup", warmup), ("repeat", repeat)):
        non_negative(name, number)
    positive("active", active)
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
