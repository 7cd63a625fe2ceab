"""The cost of an exploration: what was spent, what a run will cost, and whether it fits into the budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from composer.exploration.goal import Goal
from composer.exploration.runner import Failure, Request, Runner, Split
from composer.exploration.trajectory import Trajectory
from composer.exploration.variant import Variant

__all__ = ["BudgetedRunner"]


class BudgetedRunner:
    """Trains by a runner, and accounts for the cost.

    The cost is the sum of that of the records, not that of the clock: a search that is repeated from records takes the
    same decisions, which is how one goes on after an interruption.

    Args:
        runner: What trains.
        goal: The goal; a run that has reached its target is not asked to go on.
        budget: Wall seconds of all runs together; infinite by default.
        asked: Called before each run with its stage, the run, and the wall seconds spent so far.

    Attributes:
        spent: Wall seconds of all runs so far.
        limit: Wall seconds that may be spent for now; at most the budget.
        stages: Wall seconds by stage.
        startups: Wall seconds that a run takes more to start with a variant, such as for compilation, where they are
            known.

    >>> from composer.exploration.variant import BASELINE
    >>> class Instant:
    ...     spent = 0.0
    ...
    ...     def train(self, requests):
    ...         return [Trajectory((), 5.0, 10, cost=6.0) for _ in requests]
    >>> runner = BudgetedRunner(Instant(), Goal("accuracy", True, target=0.9), budget=10.0)
    >>> runner.train("noise", [Request(BASELINE, seed=0, seconds=5.0)])[0].seconds
    5.0
    >>> runner.spent, runner.fits([Request(BASELINE, seed=1, seconds=5.0)])
    (6.0, False)
    """

    def __init__(
        self,
        runner: Runner,
        goal: Goal,
        budget: float = math.inf,
        asked: Callable[[str, Request, float], None] | None = None,
    ) -> None:
        self.goal = goal
        self.budget = budget
        self.limit = budget
        self.spent = 0.0
        self.stages: dict[str, float] = {}
        self.startups: dict[Variant, float] = {}
        self._runner, self._asked = runner, asked
        self._outcomes: dict[tuple[Variant, int, Split], Trajectory | Failure] = {}
        self._segments: list[tuple[float, float]] = []

    @property
    def left(self) -> float:
        """Wall seconds that may still be spent for now."""
        return self.limit - self.spent

    def cost_of(self, seconds: float) -> float:
        """Return the wall seconds that training takes in all, with start and evaluations, as of the runs so far.

        Args:
            seconds: Seconds of training, of a variant that starts like the baseline; see :meth:`cost`.
        """
        trained, paid = sum(one for one, _ in self._segments), sum(two for _, two in self._segments)
        if trained <= 0:
            return seconds
        number = len(self._segments)
        rate = paid / trained
        spread = sum((one - trained / number) ** 2 for one, _ in self._segments)
        if spread > 1e-4 * trained**2 / number:
            # Least squares: a start, and a rate.
            slope = sum((one - trained / number) * two for one, two in self._segments) / spread
            rate = min(max(slope, 0.5 * rate), rate)
        return paid / number + rate * (seconds - trained / number)

    def cost(self, requests: Sequence[Request], most: float = math.inf) -> float:
        """Return the wall seconds that runs take in all, without what is known of them.

        Args:
            requests: The runs.
            most: Seconds of training that a run is expected to take at most.
        """
        missing = [(request, min(self.missing(request), most)) for request in requests]
        return sum(
            self.cost_of(seconds) + self._startup(request.variant) + self._recompilation(request.variant)
            for request, seconds in missing
            if seconds
        )

    def fits(self, requests: Sequence[Request], most: float = math.inf) -> bool:
        """Return whether runs fit into what is left; those of which all is known always do.

        Args:
            requests: The runs.
            most: Seconds of training that a run is expected to take at most.
        """
        cost = self.cost(requests, most)
        return not cost or cost <= self.left

    def missing(self, request: Request) -> float:
        """Return the seconds of training that a run still takes; infinite if it has no end.

        Args:
            request: The run.
        """
        known = self._outcomes.get((request.variant, request.seed, request.split))
        if known is not None and self._suffices(known, request):
            return 0.0
        done = known.seconds if isinstance(known, Trajectory) else 0.0
        return math.inf if request.seconds is None else max(request.seconds - done, 0.0)

    def train(self, stage: str, requests: Sequence[Request]) -> list[Trajectory | Failure]:
        """Run requests and return their outcomes; what is known is not run again.

        Args:
            stage: What the cost counts for.
            requests: The runs.
        """
        for request in dict.fromkeys(requests):
            if not self.missing(request):
                continue
            if self._asked is not None:
                self._asked(stage, request, self.spent)
            (outcome,) = self._runner.train([request])
            key = request.variant, request.seed, request.split
            known = self._outcomes.get(key)
            cost = max(outcome.cost - (known.cost if known is not None else 0.0), 0.0)
            if isinstance(outcome, Trajectory):
                done = known.seconds if isinstance(known, Trajectory) else 0.0
                self._segments.append(
                    (max(outcome.seconds - done, 0.0), max(cost - self._startup(request.variant), 0.0))
                )
            self.charge(stage, cost)
            self._outcomes[key] = outcome
        return [self._outcomes[request.variant, request.seed, request.split] for request in requests]

    def charge(self, stage: str, seconds: float) -> None:
        """Account for a cost.

        Args:
            stage: What it counts for.
            seconds: Wall seconds.
        """
        self.spent += seconds
        self.stages[stage] = self.stages.get(stage, 0.0) + seconds

    def known(self, variant: Variant, seed: int, split: Split = "selection") -> Trajectory | Failure | None:
        """Return what is known of a run; None if it was never asked for.

        Args:
            variant: The variant.
            seed: The seed.
            split: Part of the evaluation data.
        """
        return self._outcomes.get((variant, seed, split))

    def up_to(self, limit: float) -> None:
        """Set how much may be spent for now, the budget at most.

        Args:
            limit: Wall seconds since the beginning.
        """
        self.limit = min(limit, self.budget)

    def _startup(self, variant: Variant) -> float:
        """Wall seconds that a run takes more to start than one of the baseline."""
        return sum(self.startups.get(one, 0.0) for one in variant.single)

    def _recompilation(self, variant: Variant) -> float:
        """Wall seconds to allow for a second compilation, for what another part changes, such as the sizes of batches.

        A run stops after a step only, and that step may compile.
        """
        if len(variant.single) < 2:
            return 0.0
        return sum(self.startups.get(one, 0.0) for one in variant.single if one.kind == "compile")

    def _suffices(self, known: Trajectory | Failure, request: Request) -> bool:
        """Whether there is nothing to add to a run."""
        if isinstance(known, Failure) or known.is_complete:
            return True
        if request.stop_at_target and any(self.goal.is_reached(one.value) for one in known.evaluations):
            return True
        return request.seconds is not None and known.seconds >= request.seconds * (1 - 1e-9)
