"""Intervals in batches or epochs that are checked at the start of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from composer.core.time import Time, TimeUnit, ensure_time

if TYPE_CHECKING:
    from composer.core.timestamp import Timestamp

__all__ = ["Cadence"]


class Cadence:
    """Determines at the start of a step whether an action at an interval of batches or epochs is due in it.

    It is due in the first step, and then in every step that begins a multiple of the interval.

    Args:
        argument: Name of the argument, for error messages.
        interval: A number of batches, or a time in batches or epochs.

    Raises:
        TypeError: The interval is not a time.
        ValueError: The interval is not positive, or has another unit.

    >>> from composer import Timestamp
    >>> [batch for batch in range(7) if Cadence("interval", "3ba").due(Timestamp(batch=batch))]
    [0, 3, 6]
    """

    def __init__(self, argument: str, interval: int | str | Time) -> None:
        self.interval = ensure_time(interval, TimeUnit.BATCH, argument, (TimeUnit.BATCH, TimeUnit.EPOCH))
        if self.interval.value < 1:
            raise ValueError(
                f"{argument} must be a positive number of batches or epochs, such as '100ba'; got {interval!r}."
            )
        self._unit, self._period = self.interval.unit, int(self.interval.value)

    def due(self, timestamp: Timestamp) -> bool:
        """Return whether the action is due in the step that begins.

        Args:
            timestamp: The timestamp before the step.
        """
        if timestamp.count(self._unit) % self._period:
            return False
        return self._unit is TimeUnit.BATCH or timestamp.batch_in_epoch.value == 0
