"""The part of State that says how much of the run is completed."""

from __future__ import annotations

from composer.core._state_data import StateData
from composer.core.time import COUNTED_UNITS, Time, TimeUnit, ensure_time

__all__ = ["StateProgress", "as_duration"]


def as_duration(argument: str, duration: int | str | Time) -> Time:
    """Check and return when training ends.

    Args:
        argument: Name of the argument, for errors.
        duration: Epochs, a time string or a time.

    Raises:
        TypeError: It is no time.
        ValueError: It is negative, no valid time, or a fraction.

    >>> as_duration("max_duration", "10ba")
    Time(10, TimeUnit.BATCH)
    """
    time = ensure_time(duration, TimeUnit.EPOCH, argument, COUNTED_UNITS)
    if time.value < 0:
        raise ValueError(f"{argument} must not be negative; got {str(time)!r}.")
    return time


class StateProgress(StateData):
    """The progress of a :class:`.State` towards its ``max_duration``.

    >>> import torch
    >>> from composer import State
    >>> state = State(model=torch.nn.Linear(1, 1), max_duration="10ba")
    >>> state.timestamp = state.timestamp.to_next_batch()
    >>> state.progress("dur")
    0.1
    """

    _max_duration: Time | None = None

    def progress(self, unit: TimeUnit | str) -> float:
        """Return how much of the run is completed, in a unit.

        Other than :attr:`timestamp` and :meth:`get_elapsed_duration`, which count completed epochs, it includes the
        fraction of the current epoch where the number of batches in an epoch is known. Methods that act over a run,
        such as :class:`.ProgressiveResizing`, follow it, so that they work in runs of a few epochs too.

        Args:
            unit: ``"dur"`` for the fraction of ``max_duration``, from 0 to 1, or a unit of a timestamp.

        Raises:
            ValueError: The unit is ``"dur"``, and ``max_duration`` is not set.

        >>> import torch
        >>> from composer import State
        >>> state = State(model=torch.nn.Linear(1, 1), max_duration="3ep", train_dataloader=[1, 2, 3, 4])
        >>> state.timestamp = state.timestamp.to_next_epoch().to_next_batch()
        >>> state.progress("ep"), round(state.progress("dur"), 4), round(float(state.get_elapsed_duration()), 4)
        (1.25, 0.4167, 0.3333)
        """
        unit = TimeUnit(unit)
        if unit is TimeUnit.EPOCH:
            return self.train_phase.epochs_trained
        if unit is not TimeUnit.DURATION:
            return self.timestamp.count(unit)
        end = self._max_duration
        if end is None:
            raise ValueError("The completed fraction of a run is unknown without its end: max_duration must be set.")
        if not end.value:
            return 1.0
        in_epochs = end.unit is TimeUnit.EPOCH
        done = self.train_phase.fraction_of(end.value) if in_epochs else self.timestamp.count(end.unit) / end.value
        return min(done, 1.0)

    def get_elapsed_duration(self) -> Time | None:
        """Return the completed fraction of ``max_duration``, as a time in "dur"; None without a ``max_duration``.

        If ``max_duration`` is in epochs, completed epochs count; see :meth:`progress` for fractions of an epoch.
        """
        if self._max_duration is None:
            return None
        done = self.timestamp.count(self._max_duration.unit)
        return Time.from_duration(done / self._max_duration.value if self._max_duration.value else 1.0)
