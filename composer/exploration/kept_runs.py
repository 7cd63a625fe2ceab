"""The runs that an exploration compared, kept with their learning curves to be drawn and written to JSON."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from composer.exploration.curves import time_to_target
from composer.exploration.goal import Goal
from composer.exploration.runner import Failure
from composer.exploration.trajectory import Evaluation, Trajectory
from composer.exploration.variant import Variant
from composer.history.downsample import downsample

__all__ = ["KeptRun"]

# Evaluations of a run that are kept for pictures and JSON.
_MOST_EVALUATIONS = 500


@dataclass(frozen=True)
class KeptRun:
    """A run that the result rests on.

    Args:
        variant: What was trained.
        seed: Its seed; the runs of a pair have the same one.
        stage: What it was for: an A/A run of the baseline ("noise"), or a run of a pair ("confirmation",
            "attribution").
        outcome: What came of it.

    >>> KeptRun(Variant("EMA"), 1000, "confirmation", Failure("out of memory")).evaluations
    ()
    """

    variant: Variant
    seed: int
    stage: Literal["noise", "confirmation", "attribution"]
    outcome: Trajectory | Failure

    @functools.cached_property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """At most 500 evaluations, chosen so that minima and maxima of the metric stay; none of a run that failed."""
        if isinstance(self.outcome, Failure):
            return ()
        found = self.outcome.evaluations
        kept = downsample(np.array([one.value for one in found], dtype=np.float64), _MOST_EVALUATIONS)
        return tuple(found[index] for index in kept.tolist())

    def reached(self, goal: Goal) -> float | None:
        """Return the seconds of training until the target; None if it was not reached, or there is none.

        Args:
            goal: The goal.
        """
        return None if isinstance(self.outcome, Failure) else time_to_target(self.outcome, goal)

    def to_json(self, goal: Goal) -> dict[str, Any]:
        """Return the run in JSON types: seconds and values of its evaluations, null where a value is not finite.

        Args:
            goal: The goal, for the time at which the run reached it; null for a run that was censored.
        """
        outcome = self.outcome
        return {
            "variant": self.variant.name,
            "seed": self.seed,
            "stage": self.stage,
            "seconds": [float(f"{one.seconds:.6g}") for one in self.evaluations],
            "values": [float(f"{one.value:.6g}") if math.isfinite(one.value) else None for one in self.evaluations],
            "trained": None if isinstance(outcome, Failure) else outcome.seconds,
            "reached": self.reached(goal),
            "error": outcome.error if isinstance(outcome, Failure) else "",
        }
