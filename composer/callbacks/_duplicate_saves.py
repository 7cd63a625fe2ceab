"""Decide whether another checkpoint of the same batch is needed, after an evaluation or after early stopping."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from composer.core.interval import IntervalSchedule
from composer.core.time import TimeUnit

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.core.stop_reason import Stop

__all__ = ["SavePoint", "is_never"]


@dataclass(frozen=True)
class SavePoint:
    """A point in a run at which a checkpoint may be saved.

    Attributes:
        batch: Number of batches trained.
        stop: What ended the run before its duration, or None.
        evaluations: Number of evaluations completed.
        makes_up_evaluation: Whether they are those that the loaded checkpoint lacks, after training had ended.
        in_round: Whether replicas that train apart (:class:`.Replicas`) differ; the end of training synchronizes them.

    >>> before, after = SavePoint(4, None, 1), SavePoint(4, None, 2)
    >>> after.is_saved_by(before), after.is_saved_by(before, at_end=True)
    (True, False)
    """

    batch: int
    stop: Stop | None
    evaluations: int
    makes_up_evaluation: bool = False
    in_round: bool = False

    @classmethod
    def of(cls, state: State) -> SavePoint:
        """Return the current moment of a run.

        Args:
            state: The state of the run.
        """
        batch, phase = int(state.timestamp.count(TimeUnit.BATCH)), state.train_phase
        in_round = state.replicas is not None and state.replicas.synchronized is not None
        return cls(batch, state.stop, state.evaluations, phase.makes_up_evaluation, in_round)

    def is_saved_by(self, last: SavePoint | None, *, at_end: bool = False) -> bool:
        """Return whether the last checkpoint makes a checkpoint of this moment redundant.

        Args:
            last: The moment of the last checkpoint, or None if there is none.
            at_end: Whether this is the end of training. Then a checkpoint is saved only if that of the last batch is
                out of date, or to record that the run was stopped early, so that the same command does not continue it.
        """
        if last is None or last.batch != self.batch:
            # Otherwise not due by the interval, and not ended early.
            return at_end and self.stop is None and not self.makes_up_evaluation
        return last == self if at_end else (last.batch, last.stop) == (self.batch, self.stop)


def is_never(interval: Any) -> bool:
    """Return whether an interval is never due.

    Args:
        interval: A schedule, or a custom function.

    >>> from composer.core.interval import create_interval_scheduler
    >>> is_never(create_interval_scheduler(0))
    True
    """
    return isinstance(interval, IntervalSchedule) and interval.interval.value <= 0
