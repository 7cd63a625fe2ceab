"""Trajectories: what a run has reached after which time of training."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Evaluation", "Trajectory"]


@dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run.

    Args:
        seconds: Time of training until then; evaluations, checkpoints and the start are left out.
        batch: Optimizer steps until then.
        samples: Samples until then.
        value: The metric.

    >>> Evaluation(1.5, 100, 3200, 0.91).value
    0.91
    """

    seconds: float
    batch: int
    samples: int
    value: float


@dataclass(frozen=True)
class Trajectory:
    """A run, or its beginning.

    Args:
        evaluations: The evaluations, in order.
        seconds: Time of training of all its steps.
        batches: Number of its optimizer steps.
        startup: Seconds of the first step beyond those of a usual one, such as those of compilation.
        cost: Wall seconds that the run took in all, with start and evaluations.
        is_complete: Whether it has ended by itself: it trained for its whole duration.
        memory: Peak memory in bytes; 0 if it is not known.

    >>> Trajectory((Evaluation(1.5, 100, 3200, 0.91),), 1.5, 100).last
    0.91
    """

    evaluations: tuple[Evaluation, ...]
    seconds: float
    batches: int
    startup: float = 0.0
    cost: float = 0.0
    is_complete: bool = False
    memory: int = 0

    @property
    def last(self) -> float | None:
        """The metric at the last evaluation; None before the first."""
        return self.evaluations[-1].value if self.evaluations else None
