"""What a checkpoint of the last batch may lack: a later evaluation, and that early stopping ended the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from composer.core.interval import IntervalSchedule
from composer.core.time import TimeUnit

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.core.stop import Stop

__all__ = ["Moment", "is_never"]


@dataclass(frozen=True)
class Moment:
    """A moment of a run, at which a checkpoint is saved.

    Attributes:
        batch: Number of batches trained.
        stop: Who ended the run before its duration, or None.
        evaluations: Number of evaluations completed.

    >>> before, after = Moment(4, None, 1), Moment(4, None, 2)
    >>> after.is_saved_by(before), after.is_saved_by(before, at_end=True)
    (True, False)
    """

    batch: int
    stop: Stop | None
    evaluations: int

    @classmethod
    def of(cls, state: State) -> Moment:
        """Return the moment at which a run is.

        Args:
            state: The state of the run.
        """
        return cls(int(state.timestamp.count(TimeUnit.BATCH)), state.stop, state.evaluations)

    def is_saved_by(self, last: Moment | None, *, at_end: bool = False) -> bool:
        """Return whether the last checkpoint makes another one superfluous.

        Args:
            last: When it was saved, or None if there is none.
            at_end: Whether this is the end of the training. Only what a checkpoint of the last batch lacks is saved
                then, and that a run was ended early, lest the same command trains it further.
        """
        if last is None or last.batch != self.batch:
            return at_end and self.stop is None  # the interval did not want it
        return last == self if at_end else (last.batch, last.stop) == (self.batch, self.stop)


def is_never(interval: Any) -> bool:
    """Return whether an interval says that nothing is ever due.

    Args:
        interval: A schedule, or a function of the user's.

    >>> from composer.core.interval import create_interval_scheduler
    >>> is_never(create_interval_scheduler(0))
    True
    """
    return isinstance(interval, IntervalSchedule) and interval.interval.value <= 0
