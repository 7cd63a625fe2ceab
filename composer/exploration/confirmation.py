"""The confirmation: fresh seeds and held-out data, pairs in alternating order, a test that may stop early."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.paired_runs import Outcome, PairedRuns, advantages, compare_runs, with_holm
from composer.exploration.planning import Plan
from composer.exploration.runner import Request
from composer.exploration.variant import Variant
from composer.statistics.sequential import LookAction, SequentialTest

__all__ = ["ALPHA", "FIRST_SEED", "Arms", "confirm"]

# The search uses small seeds; none of its seeds is among these.
FIRST_SEED = 1000
_FIRST_LOOK = 6
# Chance at which an exploration says that anything pays if nothing does.
ALPHA = 0.05


@dataclass(frozen=True)
class Arms:
    """Runs of variants with the same fresh seeds, evaluated on held-out data.

    Args:
        runner: What trains.
        plan: The plan.
        first: The first seed.

    >>> from composer.exploration.budgeted_runner import BudgetedRunner
    >>> from composer.exploration.goal import Goal
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> plan = Plan(goal, (10.0, 11.0), (0.9, 0.9), 12.0, 0.1, 8, 180.0, 192.0, 96.0, 1e9, 5, 20)
    >>> Arms(BudgetedRunner(None, goal), plan).request(Variant("EMA"), 2).seed
    1002
    """

    runner: BudgetedRunner
    plan: Plan
    first: int = FIRST_SEED

    def fresh(self, times: int = 1) -> Arms:
        """Return the same with seeds with which nothing was chosen yet.

        What was chosen by its outcomes with some seeds seems better with them than it is.

        Args:
            times: How many times something was chosen before.
        """
        return replace(self, first=self.first + times * FIRST_SEED)

    def request(self, variant: Variant, number: int) -> Request:
        """Return the run of a variant in a pair.

        Args:
            variant: The variant.
            number: Number of the pair, from 0.
        """
        has_target = self.plan.goal.target is not None
        return Request(variant, self.first + number, self.plan.limit, has_target, "confirmation")

    def train(self, stage: str, variants: Sequence[Variant], num_pairs: int) -> int:
        """Train variants with the first seeds, as long as the budget lasts, and return with how many seeds.

        The order alternates from one seed to the next, so that what changes with time hits all alike.

        Args:
            stage: What the cost counts for.
            variants: The variants.
            num_pairs: Number of seeds.
        """
        for number in range(num_pairs):
            if not self.fits(variants, number + 1):
                return number
            requests = [self.request(one, number) for one in dict.fromkeys(variants)]
            self.runner.train(stage, requests if number % 2 == 0 else requests[::-1])
        return num_pairs

    def fits(self, variants: Sequence[Variant], num_pairs: int) -> bool:
        """Return whether the budget lasts for all runs of variants with the first seeds.

        Args:
            variants: The variants.
            num_pairs: Number of seeds.
        """
        requests = [self.request(one, number) for number in range(num_pairs) for one in dict.fromkeys(variants)]
        # Most runs are at the target long before they are censored.
        return self.runner.fits(requests, most=max(self.plan.times))

    def runs(self, variant: Variant, num_pairs: int) -> list[Outcome]:
        """Return the runs of a variant that were trained.

        Args:
            variant: The variant.
            num_pairs: Number of seeds.
        """
        found = [self.runner.known(variant, self.first + number, "confirmation") for number in range(num_pairs)]
        return [one for one in found if one is not None]

    def compare(self, before: Variant, after: Variant, num_pairs: int, accepted: bool | None = None) -> PairedRuns:
        """Compare two variants that were trained.

        Args:
            before: The variant without a change.
            after: The variant with it.
            num_pairs: Number of seeds.
            accepted: Whether a sequential test has accepted the change; None if there was none.
        """
        runs = self.runs(before, num_pairs), self.runs(after, num_pairs)
        return compare_runs(self.plan.goal, (before, after), *runs, self.plan.limit, accepted)

    def advantages(self, before: Variant, after: Variant, num_pairs: int) -> list[float]:
        """Return how much better the second variant is in each pair.

        Args:
            before: The variant without a change.
            after: The variant with it.
            num_pairs: Number of seeds.
        """
        runs = self.runs(before, num_pairs), self.runs(after, num_pairs)
        return advantages(self.plan.goal, *runs, self.plan.limit)


def confirm(arms: Arms, claims: Sequence[tuple[Variant, Variant]], alpha: float = ALPHA) -> list[PairedRuns]:
    """Test whether variants are better than others, by pairs of runs with fresh seeds on held-out data.

    Looks after 6, 8, ... pairs share one alpha (:class:`.SequentialTest`), and so do the claims: each is tested at
    alpha / m, and those that are left at alpha / (m - 1) once one was accepted (Holm; Ye et al. 2013). A claim that
    has little prospect is given up. A change pays if the test accepts it and its interval says so as well.

    Args:
        arms: What trains.
        claims: The variants without and with each change.
        alpha: Chance at which a claim is accepted if no change does anything; what other claims have of 5 % is taken
            off.

    Returns:
        A comparison for each claim for which there was time for two pairs or more.

    >>> from composer.exploration.budgeted_runner import BudgetedRunner
    >>> from composer.exploration.goal import Goal
    >>> from composer.exploration.trajectory import Evaluation, Trajectory
    >>> class Simulation:  # reaches 0.9 after 10 s, or 8 s with EMA
    ...     spent = 0.0
    ...
    ...     def train(self, requests):
    ...         return [
    ...             self.run(one.seed % 7, 8.0 if one.variant.name == "EMA" else 10.0) for one in requests
    ...         ]
    ...
    ...     def run(self, noise, time):
    ...         time += 0.1 * noise
    ...         curve = (Evaluation(time / 2, 1, 1, 0.5), Evaluation(time, 2, 2, 0.9))
    ...         return Trajectory(curve, time, 2, cost=time)
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> runner = BudgetedRunner(Simulation(), goal)
    >>> plan = Plan(goal, (10.0, 10.5), (0.9, 0.9), 10.0, 0.1, 8, 150.0, 160.0, 80.0, 1e9, 1, 2)
    >>> (found,) = confirm(Arms(runner, plan), [(Variant("SAM"), Variant("EMA"))])
    >>> str(found)
    '1.24 times as fast [1.24, 1.25], p = 0.016, 6 pairs'

    Paper: Ye et al. 2013, https://doi.org/10.1002/sim.5700
    """
    looks = tuple(range(_FIRST_LOOK, arms.plan.pairs + 1, 2))
    accepted = [False] * len(claims)
    ended = [0] * len(claims)
    done = 0
    for look in looks if claims else ():
        active = [number for number in range(len(claims)) if not ended[number]]
        if not active:
            break
        trained = arms.train("confirmation", [one for number in active for one in claims[number]], look)
        if trained < look:
            done = max(done, trained)
            break
        done = look
        _look(arms, claims, looks, look, alpha, accepted, ended)
    if done < 2:
        return []
    numbers = [end or done for end in ended]
    found = [arms.compare(*claim, number) for claim, number in zip(claims, numbers, strict=True)]
    share = ALPHA / alpha
    return [replace(one, adjusted=min(share * one.adjusted, 1.0)) for one in with_holm(found, accepted)]


def _look(
    arms: Arms,
    claims: Sequence[tuple[Variant, Variant]],
    looks: tuple[int, ...],
    look: int,
    alpha: float,
    accepted: list[bool],
    ended: list[int],
) -> None:
    """Look at the claims that have not ended; ``accepted`` and ``ended`` are changed."""
    again = True
    while again:
        again = False
        test = SequentialTest(looks, alpha=alpha / max(1, len(claims) - sum(accepted)))
        for number, claim in enumerate(claims):
            # One that was given up at this look is tested again if another was accepted at it.
            if accepted[number] or ended[number] not in (0, look):
                continue
            action = test.look(arms.advantages(*claim, look)).action
            ended[number] = look if action is not LookAction.CONTINUE else 0
            if action is LookAction.ACCEPT:
                accepted[number] = again = True
                break
