"""When something that happens every so often is due: every epoch, every 100 batches, every tenth of the training."""

from __future__ import annotations

import math
from collections.abc import Collection
from fractions import Fraction
from typing import Final, Protocol

from composer.core.event import Event
from composer.core.time import Time, TimeUnit, ensure_time
from composer.core.timestamp import Timestamp

__all__ = ["IntervalSchedule", "create_interval_scheduler"]

# Reading a member off an enum class is slow for something that is asked every batch.
_BATCH: Final = TimeUnit.BATCH
_DURATION: Final = TimeUnit.DURATION


class _Progress(Protocol):
    """What a schedule reads of the state."""

    @property
    def timestamp(self) -> Timestamp: ...
    @property
    def previous_timestamp(self) -> Timestamp | None: ...
    @property
    def max_duration(self) -> Time | None: ...
    @property
    def dataloader_len(self) -> Time | None: ...
    def get_elapsed_duration(self) -> Time | None: ...


class IntervalSchedule:
    """Tells at each event whether an action that repeats every ``interval`` is due.

    With counts m before and n after the last step, and an interval of k, it is due when floor(m / k) != floor(n / k),
    so that steps larger than one miss nothing and an action is due once for a step that passes several multiples.
    Epochs and iterations are looked at where they end, all other units where batches end.

    At the end of the training the action is due as well, unless it was due at an earlier event of the same batch. That
    batch and event are all that a schedule remembers. They are not saved: they only matter between the events of one
    batch. Asking twice at one event gives one answer.

    Args:
        interval: A time, a time string, or a number of epochs. Zero or less is never, also not at the end. A share of
            the training (``"0.1dur"``) is turned into whole units of ``max_duration``, rounded up; for a
            ``max_duration`` in epochs into batches.
        include_end_of_training: Whether the action is due at the end of the training.
        checkpoint_events: Whether to look at ``BATCH_CHECKPOINT``, ``EPOCH_CHECKPOINT`` and ``ITERATION_CHECKPOINT``,
            or else at ``BATCH_END``, ``EPOCH_END`` and ``ITERATION_END``.
        final_events: Events at which the end of the training is noticed; None is ``BATCH_CHECKPOINT`` and
            ``EPOCH_CHECKPOINT``.

    Raises:
        TypeError: ``interval`` is no time.
        ValueError: ``interval`` is a string that is no time, or a final event does not exist.

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
        part = {TimeUnit.EPOCH: "epoch", TimeUnit.ITERATION: "iteration"}.get(self.interval.unit, "batch")
        self._event = Event(f"{part}_checkpoint" if checkpoint_events else f"{part}_end")
        # What the user wrote, 0.07, and not the binary number next to it, of which 100 batches are more than 7.
        self._share = Fraction(str(self.interval.value))
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
        before = 0 if state.previous_timestamp is None else state.previous_timestamp.count(unit)
        return before // period != state.timestamp.count(unit) // period

    def _at_the_end(self, state: _Progress, event: Event) -> bool:
        """Return whether the training ends here and the action was not due at an earlier event of this batch."""
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
        """Return the interval as a whole number of a unit that timestamps count."""
        if self.interval.unit is not _DURATION:
            return int(self.interval), self.interval.unit
        total = state.max_duration
        if total is None:
            raise RuntimeError(f"The interval '{self.interval}' needs max_duration, which is not set.")
        if total.unit is TimeUnit.ITERATION:
            raise RuntimeError(
                f"The interval '{self.interval}' is a share of a max_duration in iterations ('{total}'), whose length "
                "is not known. Give the interval in another unit, such as '1iter'."
            )
        if total.unit is not TimeUnit.EPOCH:
            return max(1, math.ceil(self._share * int(total))), total.unit
        if state.dataloader_len is None:
            raise RuntimeError(
                f"The interval '{self.interval}' is a share of epochs ('{total}'), whose length is not known because "
                "the dataloader has no length. Give the interval in another unit, such as '100ba', or set "
                "train_subset_num_batches."
            )
        return max(1, math.ceil(self._share * int(total) * int(state.dataloader_len))), TimeUnit.BATCH


def create_interval_scheduler(
    interval: Time | str | int,
    include_end_of_training: bool = True,
    checkpoint_events: bool = True,
    final_events: Collection[Event] | None = None,
) -> IntervalSchedule:
    """Return a function of a state and an event that tells whether an action repeated every ``interval`` is due.

    Args:
        interval: A time, a time string, or a number of epochs; see :class:`IntervalSchedule` for all arguments.
        include_end_of_training: Whether the action is due at the end of the training.
        checkpoint_events: Whether to look at the checkpoint events, or else at the end events.
        final_events: Events at which the end of the training is noticed.

    >>> create_interval_scheduler("100ba").interval
    Time(100, TimeUnit.BATCH)
    """
    return IntervalSchedule(interval, include_end_of_training, checkpoint_events, final_events)
