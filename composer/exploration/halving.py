"""Successive halving: train many variants for a short time, and the better ones for longer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.curves import Reference
from composer.exploration.runner import Failure, Request
from composer.exploration.variant import Variant

__all__ = ["Heat", "HeatResult", "Rung", "RungResult", "Standing", "rungs_within", "with_kept"]

# Shares of the longest time with which the first rung may begin, and shares of the variants that go on.
_SHARES = (0.7, 0.6, 0.5, 0.4, 0.35, 0.3, 0.25, 0.2, 0.15)
_KEPT = (0.3, 0.35, 0.4, 0.5, 0.65)
# Of the longest ladder that fits, those that are at least as long as this share are as good.
_MOST = 0.85
# A variant that is so much behind, in standard deviations, does not go on even if there is time for it.
_BEHIND = 3.0


@dataclass(frozen=True)
class Rung:
    """How long variants are trained before the worse ones are dropped.

    Args:
        seconds: Seconds of training.
        number: How many variants are trained for so long.

    >>> Rung(10.0, 20).number
    20
    """

    seconds: float
    number: int


@dataclass(frozen=True)
class Standing:
    """How far a variant has come in the race.

    Args:
        variant: The variant.
        gain: How far it is ahead of the reference, see :meth:`.Reference.gain`; the mean over seeds. ``-inf`` if it has
            failed or diverged, or was not evaluated.
        seconds: Seconds of training up to which it was compared.
        num_runs: Number of seeds.
        error: Why it has failed.
        deviation: Standard deviation of the gain if it is estimated from runs of combinations; else NaN.

    >>> Standing(Variant("EMA"), 0.1, 20.0, 1).error
    ''
    """

    variant: Variant
    gain: float
    seconds: float
    num_runs: int
    error: str = ""
    deviation: float = math.nan


@dataclass(frozen=True)
class RungResult:
    """How variants stood at a rung, and which were kept.

    Args:
        seconds: Seconds of training.
        standings: The standings there, the best first.
        kept: The variants that went on to the next rung; of the last rung, those that are left.

    >>> RungResult(10.0, (Standing(Variant("EMA"), 0.1, 10.0, 1),), ()).dropped
    ['EMA']
    """

    seconds: float
    standings: tuple[Standing, ...]
    kept: tuple[Variant, ...]

    @property
    def dropped(self) -> list[str]:
        """Names of the variants that were not kept."""
        return [one.variant.name for one in self.standings if one.variant not in self.kept]

    def to_json(self) -> dict[str, Any]:
        """Return the rung in JSON types; the gain of a variant that failed is null."""
        gains = {one.variant.name: one.gain if math.isfinite(one.gain) else None for one in self.standings}
        return {"seconds": self.seconds, "gains": gains, "dropped": self.dropped}


@dataclass(frozen=True)
class HeatResult:
    """Runs that are compared with each other: short ones of a stage, longer ones, or a successive halving.

    Args:
        stage: What its cost counted for, such as "tuning" or "methods".
        rungs: What came of each rung.

    >>> HeatResult("methods", ()).to_json()
    {'stage': 'methods', 'rungs': []}
    """

    stage: str
    rungs: tuple[RungResult, ...]

    def to_json(self) -> dict[str, Any]:
        """Return it in JSON types."""
        return {"stage": self.stage, "rungs": [one.to_json() for one in self.rungs]}


def with_kept(
    results: Sequence[HeatResult], standings: Mapping[Variant, Standing], proposed: Sequence[Variant | None]
) -> tuple[HeatResult, ...]:
    """Return results in which the variants of a rung by itself were kept that were trained for longer afterwards.

    Args:
        results: The results.
        standings: The last standing of each variant.
        proposed: Variants that were kept in any case.

    >>> short = Standing(Variant("EMA"), 0.1, 10.0, 1)
    >>> result = HeatResult("methods", (RungResult(10.0, (short,), ()),))
    >>> (found,) = with_kept([result], {short.variant: replace(short, seconds=30.0)}, [])
    >>> found.rungs[0].dropped
    []
    """

    def told(rung: RungResult) -> RungResult:
        variants = [one.variant for one in rung.standings]
        longer = [one for one in variants if one in proposed or standings[one].seconds > rung.seconds]
        return replace(rung, kept=tuple(longer))

    return tuple(replace(one, rungs=(told(one.rungs[0]),)) if len(one.rungs) == 1 else one for one in results)


class Heat:
    """Variants that are compared with one reference.

    Args:
        runner: What trains.
        reference: The baseline.
        noise: Standard deviation of the gain of one run after some seconds.
        seeds: The seeds; the first ones are used first.

    Attributes:
        standings: The last standing of each variant, by the variant.

    >>> from composer.exploration.goal import Goal
    >>> from composer.exploration.trajectory import Evaluation, Trajectory
    >>> run = Trajectory(tuple(Evaluation(t, 1, 1, t / 10) for t in (2.0, 4.0, 6.0, 9.0)), 9.0, 4)
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> heat = Heat(BudgetedRunner(None, goal), Reference(goal, (run,)), lambda seconds: 0.05, [0])
    >>> heat.fits([Variant("EMA")], 5.0)
    True
    """

    def __init__(
        self, runner: BudgetedRunner, reference: Reference, noise: Callable[[float], float], seeds: Sequence[int]
    ) -> None:
        self.runner = runner
        self.reference = reference
        self.noise = noise
        self.seeds = seeds
        self.standings: dict[Variant, Standing] = {}
        self._results: list[HeatResult] = []

    def fits(self, variants: Sequence[Variant], seconds: float, num_runs: int = 1) -> bool:
        """Return whether there is time to measure variants.

        Args:
            variants: The variants.
            seconds: Seconds of training.
            num_runs: Number of seeds.
        """
        return self.runner.fits(self._requests(variants, seconds, num_runs))

    def cost(self, variants: Sequence[Variant], seconds: float, num_runs: int = 1) -> float:
        """Return the wall seconds that it takes to measure variants, without what is known of them.

        Args:
            variants: The variants.
            seconds: Seconds of training.
            num_runs: Number of seeds.
        """
        return self.runner.cost(self._requests(variants, seconds, num_runs))

    def measure(self, stage: str, variants: Sequence[Variant], seconds: float, num_runs: int = 1) -> list[Standing]:
        """Train variants up to a time, and return how they stand there.

        Args:
            stage: What the cost counts for.
            variants: The variants.
            seconds: Seconds of training.
            num_runs: Number of seeds; those of a variant that has failed are not repeated.
        """
        outcomes = self.runner.train(stage, self._requests(variants, seconds, num_runs)) if variants else []
        found: list[Standing] = []
        for number, variant in enumerate(variants):
            own = outcomes[number :: len(variants)]
            errors = [outcome.error for outcome in own if isinstance(outcome, Failure)]
            gains = [self.reference.gain(one, seconds) for one in own if not isinstance(one, Failure)]
            known = [gain for gain in gains if gain is not None]
            if not errors and not known:
                errors = [f"was not evaluated within {seconds:.3g} s of training"]
            gain = -math.inf if errors else sum(known) / len(known)
            standing = Standing(variant, gain, seconds, len(own), errors[0] if errors else "")
            self.standings[variant] = standing
            found.append(standing)
        return found

    def at(self, variant: Variant, seconds: float, num_runs: int = 1) -> Standing:
        """Return how a variant stood at an earlier time, or with fewer seeds.

        Args:
            variant: A variant that was measured for longer.
            seconds: Seconds of training.
            num_runs: Number of seeds.
        """
        before = self.standings[variant]
        standing = self.measure("", [variant], seconds, num_runs)[0]
        self.standings[variant] = before
        return standing

    def halve(self, stage: str, variants: Sequence[Variant], rungs: Sequence[Rung]) -> list[Standing]:
        """Return the standings after successive halving, the best first; those that were dropped come last.

        Args:
            stage: What the cost counts for.
            variants: The variants.
            rungs: The rungs, the shortest first.
        """
        racing, dropped, results = list(variants), list[Standing](), list[RungResult]()
        for number, rung in enumerate(rungs):
            if not racing or not self.fits(racing, rung.seconds):
                break
            found = sorted(self.measure(stage, racing, rung.seconds), key=lambda one: -one.gain)
            following = rungs[number + 1].number if number + 1 < len(rungs) else len(found)
            least = -_BEHIND * self.noise(rung.seconds)
            kept = [one.variant for one in found[:following] if one.gain > least or number + 1 == len(rungs)]
            dropped = [one for one in found if one.variant not in kept] + dropped
            running = tuple(one.variant for one in found if one.variant in kept and math.isfinite(one.gain))
            results.append(RungResult(rung.seconds, tuple(found), running))
            racing = kept
        if results:
            self._results.append(HeatResult(stage, tuple(results)))
        left = sorted((self.standings[one] for one in racing if one in self.standings), key=lambda one: -one.gain)
        return left + dropped

    def take_results(self) -> list[HeatResult]:
        """Return what came of each successive halving since this was last called."""
        found, self._results = self._results, []
        return found

    def _requests(self, variants: Sequence[Variant], seconds: float, num_runs: int) -> list[Request]:
        stop = self.reference.goal.target is not None
        return [Request(variant, seed, seconds, stop) for seed in self.seeds[:num_runs] for variant in variants]


def rungs_within(
    number: int, longest: float, shortest: float, allowance: float, cost_of: Callable[[float], float]
) -> list[Rung]:
    """Return the rungs for a number of variants that make most of an allowance.

    There are up to three rungs, and each has the same share of the variants of the one before. Of the ladders that use
    most of the allowance, the one is taken whose first rung is the longest: what is dropped early is lost.

    Args:
        number: Number of variants.
        longest: Seconds of training of the last rung.
        shortest: Seconds of training below which nothing can be compared.
        allowance: Wall seconds.
        cost_of: Wall seconds for seconds of training.

    Returns:
        The rungs. The first takes fewer variants than there are if not all fit, and there is none if not one does.

    >>> rungs_within(9, 60.0, 5.0, 300.0, lambda seconds: seconds)
    [Rung(seconds=24.0, number=9), Rung(seconds=37.94..., number=3), Rung(seconds=60.0, number=1)]
    """
    starts = [share * longest for share in _SHARES if share * longest >= shortest] or [min(shortest, longest)]
    for taken in range(number, 0, -1):
        ladders = [_ladder(taken, start, longest, kept) for start in starts if start < longest for kept in _KEPT]
        fitting = [rungs for rungs in [[Rung(longest, taken)], *ladders] if _cost(rungs, cost_of) <= allowance]
        if fitting:
            most = max(_cost(rungs, cost_of) for rungs in fitting)
            return max(fitting, key=lambda rungs: (_cost(rungs, cost_of) >= _MOST * most, rungs[0].seconds))
    return []


def _ladder(number: int, start: float, longest: float, kept: float) -> list[Rung]:
    """Rungs from a start to the longest time, of which each keeps a share of the variants."""
    middle = math.ceil(kept * number)
    last = math.ceil(kept * middle)
    times = (start, math.sqrt(start * longest), longest)
    rungs = [Rung(seconds, count) for seconds, count in zip(times, (number, middle, last), strict=True)]
    # A rung after which all go on is none.
    return [
        one for one, after in zip(rungs, [*rungs[1:], None], strict=True) if after is None or after.number < one.number
    ]


def _cost(rungs: Sequence[Rung], cost_of: Callable[[float], float]) -> float:
    """Wall seconds of rungs."""
    before = [0.0, *(rung.seconds for rung in rungs)]
    return sum(rung.number * cost_of(rung.seconds - done) for rung, done in zip(rungs, before, strict=False))
