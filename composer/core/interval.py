"""Decide when a repeated action is due (checkpoint, evaluation, logging): every epoch, every 100 batches, "0.1dur"."""

from __future__ import annotations

import math
from collections.abc import Collection
from fractions import Fraction
from functools import cached_property
from typing import Final, Protocol

from composer.core.event import Event
from composer.core.phase import Phase
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.timestamp import Timestamp

__all__ = ["IntervalSchedule", "create_interval_scheduler"]

# Reading a member off an enum class is slow for code that runs every batch.
_BATCH: Final = TimeUnit.BATCH
_DURATION: Final = TimeUnit.DURATION


class _Progress(Protocol):
    """The attributes of the state that a schedule reads."""

    @property
    def timestamp(self) -> Timestamp: ...
    @property
    def previous_timestamp(self) -> Timestamp | None: ...
    @property
    def max_duration(self) -> Time | None: ...
    @property
    def dataloader_len(self) -> Time | None: ...
    @cached_property
    def train_phase(self) -> Phase: ...
    def get_elapsed_duration(self) -> Time | None: ...


class IntervalSchedule:
    """Decides at each event whether an action that repeats every ``interval`` is due.

    With counters m before and n after the last step, and an interval of k, it is due if floor(m / k) != floor(n / k),
    so that no multiple is missed by steps larger than one, and a step that passes several multiples is due once.
    Epochs and iterations are checked when they end, all other units when batches end.

    The action is also due at the end of training, unless it was due at an earlier event of the same batch. A schedule
    stores only that batch and event. They are not saved, since they only matter between the events of one batch.
    Repeated calls at the same event return the same result.

    Args:
        interval: A time, a time string, or a number of epochs. Zero or less means never, not even at the end. A
            fraction of the run (``"0.1dur"``) is converted to units of ``max_duration``, rounded up to an integer; to
            batches if ``max_duration`` is in epochs.
        include_end_of_training: Whether the action is due at the end of training.
        checkpoint_events: Whether to check at ``BATCH_CHECKPOINT``, ``EPOCH_CHECKPOINT`` and ``ITERATION_CHECKPOINT``,
            or else at ``BATCH_END``, ``EPOCH_END`` and ``ITERATION_END``.
        final_events: Events at which the end of training is checked; None is ``BATCH_CHECKPOINT`` and
            ``EPOCH_CHECKPOINT``.

    Raises:
        TypeError: ``interval`` is not a time.
        ValueError: ``interval`` is not a valid time string, or a final event does not exist.

    >>> from types import SimpleNamespace
    >>> schedule = IntervalSchedule("2ba", include_end_of_training=False)
    >>> state = SimpleNamespace(previous_timestamp=Timestamp(batch=3), timestamp=Timestamp(batch=4))
    >>> schedule(state, Event.BATCH_CHECKPOINT), schedule(state, Event.BATCH_END)
    (True, False)
    """

    def __init__(
        self,
        interval: Time | str | int,
        include_end_of_training: bool = True,
        checkpoint_events: bool = True,
        final_events: Collection[Event] | None = None,
    ) -> None:
        self.interval = ensure_time(interval, TimeUnit.EPOCH, "interval")
        self.include_end_of_training = include_end_of_training
        self.checkpoint_events = checkpoint_events
        if final_events is None:
            final_events = (Event.BATCH_CHECKPOINT, Event.EPOCH_CHECKPOINT)
        self.final_events = frozenset(Event(event) for event in final_events)
        span = {TimeUnit.EPOCH: "epoch", TimeUnit.ITERATION: "iteration"}.get(self.interval.unit, "batch")
        self._event = Event(f"{span}_checkpoint" if checkpoint_events else f"{span}_end")
        # The decimal that the user wrote, such as 0.07: the nearest float times 100 batches is more than 7.
        self._fraction = Fraction(str(self.interval.value))
        self._due_at: tuple[int, Event] | None = None

    def __repr__(self) -> str:
        return f"IntervalSchedule('{self.interval}')"

    def __call__(self, state: _Progress, event: Event) -> bool:
        """Return whether the action is due at ``event``."""
        if self.interval.value <= 0:
            return False
        batch = state.timestamp.count(_BATCH)
        if self._due_at is not None and batch < self._due_at[0]:
            self._due_at = None  # time was reset
        due = (event == self._event and self._passed(state)) or self._at_the_end(state, event)
        if due:
            self._due_at = (batch, event)
        return due

    def _passed(self, state: _Progress) -> bool:
        """Return whether the last step reached or passed a multiple of the interval."""
        period, unit = self._period(state)
        if self._counts_loader_batches(state):
            phase = state.train_phase
            after = state.timestamp.count(TimeUnit.EPOCH) * (phase.length or 0) + phase.batches_loaded
            return (after - phase.batches_in_step) // period != after // period
        before = 0 if state.previous_timestamp is None else state.previous_timestamp.count(unit)
        return before // period != state.timestamp.count(unit) // period

    def _counts_loader_batches(self, state: _Progress) -> bool:
        """Return whether a fraction of epochs is counted in batches of the loader, several of which a step may join."""
        if self.interval.unit is not _DURATION or state.max_duration is None:
            return False
        return state.max_duration.unit is TimeUnit.EPOCH and state.train_phase.joins_batches

    def _at_the_end(self, state: _Progress, event: Event) -> bool:
        """Return whether training ends at this event and the action was not due at an earlier event of this batch."""
        if not self.include_end_of_training or event not in self.final_events:
            return False
        elapsed = state.get_elapsed_duration()
        if elapsed is None or elapsed.value < 1:
            return False
        if self._due_at is None:
            return True
        batch, earlier = self._due_at
        return batch != state.timestamp.count(_BATCH) or earlier == event

    def _period(self, state: _Progress) -> tuple[int, TimeUnit]:
        """Return the interval as an integer in a unit that timestamps count."""
        if self.interval.unit is not _DURATION:
            return int(self.interval), self.interval.unit
        total = state.max_duration
        if total is None:
            raise RuntimeError(f"The interval '{self.interval}' requires max_duration, which is not set.")
        if total.unit is TimeUnit.ITERATION:
            raise RuntimeError(
                f"The interval '{self.interval}' is a fraction of a max_duration in iterations ('{total}'), whose "
                "length is unknown. Pass the interval in another unit, such as '1iter'."
            )
        if total.unit is not TimeUnit.EPOCH:
            return max(1, math.ceil(self._fraction * int(total))), total.unit
        if state.dataloader_len is None:
            raise RuntimeError(
                f"The interval '{self.interval}' is a fraction of epochs ('{total}'), whose length is unknown because "
                "the dataloader has no length. Pass the interval in another unit, such as '100ba', or set "
                "train_subset_num_batches."
            )
        return max(1, math.ceil(self._fraction * int(total) * int(state.dataloader_len))), TimeUnit.BATCH


def create_interval_scheduler(
    interval: Time | str | int,
    include_end_of_training: bool = True,
    checkpoint_events: bool = True,
    final_events: Collection[Event] | None = None,
) -> IntervalSchedule:
    """Return a function ``(state, event) -> bool`` that is true if an action repeated every ``interval`` is due.

    Args:
        interval: A time, a time string, or a number of epochs; see :class:`IntervalSchedule` for all arguments.
        include_end_of_training: Whether the action is due at the end of training.
        checkpoint_events: Whether to check at the checkpoint events, or else at the end events.
        final_events: Events at which the end of training is checked.

    >>> create_interval_scheduler("100ba").interval
    Time(100, TimeUnit.BATCH)
    """
    return IntervalSchedule(interval, include_end_of_training, checkpoint_events, final_events)
