"""Tune the baseline: its learning rate by a line search in short runs, its batch size, and a check with other seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from composer.exploration.halving import HeatResult, RungResult, Standing
from composer.exploration.short_runs import ShortRuns
from composer.exploration.variant import BASELINE, Variant, combined

__all__ = ["line_search", "tune"]

# Doubt about an effect, in standard deviations, from which on a change is not proposed. A batch size that does nothing
# would take part in the longer runs beside a learning rate that is good, so that they do not tell.
_DOUBT, _SIZE_DOUBT = 0.5, 1.0
# Seeds with which a tuned baseline has to be better.
_SEEDS = 2
# Proposals that are trained for longer.
_TRIES = 2


def tune(
    short: ShortRuns, variants: Sequence[Variant], allowance: float, long: float, worth: Callable[[float, int], float]
) -> tuple[Variant, float]:
    """Return the tuned baseline, and how far it is ahead of the program as it is.

    The best learning rate is searched in short runs, then the batch sizes are tried with it. What is expected to be
    best takes over if longer runs with two seeds are better as well.

    Args:
        short: What trains, and what is told of the effects.
        variants: Learning rates and batch sizes.
        allowance: Wall seconds, those of the longer runs included.
        long: Seconds of training of these.
        worth: Called with seconds of training and a number of runs; returns the gain that is worth a change.

    Returns:
        The tuned baseline, :data:`.BASELINE` where nothing seemed better, and its gain.

    >>> from composer.exploration.budgeted_runner import BudgetedRunner
    >>> from composer.exploration.curves import Reference
    >>> from composer.exploration.goal import Goal
    >>> from composer.exploration.halving import Heat
    >>> from composer.exploration.joint_effects import JointEffects
    >>> from composer.exploration.trajectory import Evaluation, Trajectory
    >>> run = Trajectory(tuple(Evaluation(t, 1, 1, t / 10) for t in (2.0, 4.0, 6.0, 9.0)), 9.0, 4)
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> heat = Heat(BudgetedRunner(None, goal), Reference(goal, (run,)), lambda seconds: 0.05, [0])
    >>> tune(ShortRuns(heat, JointEffects([], {}), 4.0, 8.0), [], 100.0, 8.0, lambda seconds, runs: 0.03)[1]
    0.0
    """
    heat, effects = short.heat, short.effects
    runner = heat.runner
    end = runner.spent + allowance - _SEEDS * runner.cost_of(long)
    tried: dict[Variant, Standing] = {}

    def gain_of(parts: Sequence[Variant]) -> float | None:
        if runner.spent + runner.cost_of(short.seconds) > end:
            return None
        standing = tried[combined(parts)] = short.observe("tuning", parts, short.seconds)
        return standing.gain

    rates = {one.factor: one for one in variants if one.kind == "learning_rate"}
    sizes = [one for one in variants if one.kind == "batch_size"]
    found = line_search([*rates], lambda factor: gain_of([rates[factor]]), effects.shared)
    fastest = max(found, key=lambda factor: found[factor])
    rate = [] if fastest == 1.0 else [rates[fastest]]
    for one in sizes:
        if gain_of([*rate, one]) is None:
            break
    _note(short, tried)
    for _ in range(_TRIES):
        best = [one for one in effects.best(_DOUBT, most=0) if one not in sizes or _is_sure(effects.effect(one))]
        variant = combined(best)
        if not best or (variant in tried and tried[variant].seconds >= long) or not heat.fits([variant], long):
            break
        standing = tried[variant] = short.observe("tuning", best, long)
        if standing.gain > worth(long, 1) and heat.fits([variant], long, _SEEDS):
            (standing,) = heat.measure("tuning", [variant], long, _SEEDS)
            if standing.gain > worth(long, _SEEDS):
                return variant, standing.gain
    return BASELINE, 0.0


def line_search(
    factors: Sequence[float], gain_of: Callable[[float], float | None], at_one: float = 0.0
) -> Mapping[float, float]:
    """Search the factor with the largest gain, and return the gains that were measured.

    Powers of two are tried upward from 1 as long as each gains, or else downward; then the factors on both sides of the
    best one.

    Args:
        factors: The factors.
        gain_of: Called with a factor; returns its gain, or None if there is no time for it.
        at_one: The gain of 1.

    >>> sorted(
    ...     line_search([0.5, 0.7, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0], lambda factor: -abs(factor - 3.0), -2.0)
    ... )
    [1.0, 1.4, 2.0, 2.8, 4.0]
    """
    gains = {1.0: at_one}

    def tried(factor: float) -> bool:
        """Try a factor; whether there was time for it, and it is the best so far."""
        gain = gain_of(factor)
        if gain is None:
            return False
        before = max(gains.values())
        gains[factor] = gain
        return gain > before

    powers = [factor for factor in sorted(factors) if math.log2(factor).is_integer()]
    up, down = [one for one in powers if one > 1], [one for one in reversed(powers) if one < 1]
    for direction in (up, down):
        for factor in direction:
            if not tried(factor):
                break
        if max(gains, key=lambda one: gains[one]) != 1.0:
            break
    best = max(gains, key=lambda one: gains[one])
    grid = sorted({*factors, 1.0})
    place = grid.index(best)
    for beside in (grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)]):
        if beside not in gains:
            tried(beside)
    return gains


def _is_sure(effect: tuple[float, float]) -> bool:
    """Whether an effect, a mean and a standard deviation, is positive beyond doubt."""
    mean, deviation = effect
    return mean > _SIZE_DOUBT * deviation


def _note(short: ShortRuns, tried: Mapping[Variant, Standing]) -> None:
    """Keep how the short runs stood, for the report."""
    standings = tuple(sorted(tried.values(), key=lambda one: -one.gain))
    if standings:
        short.results.append(HeatResult("tuning", (RungResult(short.seconds, standings, ()),)))
