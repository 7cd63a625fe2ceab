"""Short runs of combinations of methods, many of them, from which the effect of each method is estimated."""

from __future__ import annotations

import math
from collections.abc import Sequence

from composer.exploration.halving import Heat, HeatResult, RungResult, Standing
from composer.exploration.joint_effects import JointEffects
from composer.exploration.variant import TUNED_KINDS, Variant, combined

__all__ = ["ShortRuns"]

# Standard deviation of the difference between what a short run shows and a long one, in logarithms of speed.
_EARLY = 0.15
# Gain of a run that failed or diverged, in logarithms of speed.
_WORST = 1.4
# Proposals of what was trained before after which there is nothing new to try.
_MISSES = 20


class ShortRuns:
    """Combinations of methods that are trained for a short time.

    A combination that fails is divided into halves until the method is found that is to blame.

    Args:
        heat: What trains them, with what they are compared.
        effects: The effects of methods and learning rates as far as they are known; runs are added.
        seconds: Seconds of training of a short run.
        long: Seconds of training from which on a run shows what a whole one would.

    Attributes:
        results: How the combinations stood, for the report.

    >>> from composer.exploration.budgeted_runner import BudgetedRunner
    >>> from composer.exploration.curves import Reference
    >>> from composer.exploration.goal import Goal
    >>> from composer.exploration.trajectory import Evaluation, Trajectory
    >>> run = Trajectory(tuple(Evaluation(t, 1, 1, t / 10) for t in (2.0, 4.0, 6.0, 9.0)), 9.0, 4)
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> heat = Heat(BudgetedRunner(None, goal), Reference(goal, (run,)), lambda seconds: 0.05, [0])
    >>> short = ShortRuns(heat, JointEffects([Variant("EMA")], {}), 4.0, 8.0)
    >>> short.run(allowance=0.0)
    >>> short.results
    []
    """

    def __init__(self, heat: Heat, effects: JointEffects, seconds: float, long: float) -> None:
        self.effects = effects
        self.heat = heat
        self.seconds = seconds
        self.results: list[HeatResult] = []
        self.long = long
        self._known: set[frozenset[Variant]] = set()
        self._errors: dict[Variant, str] = {}
        self._has_worked: set[Variant] = set()
        # The run of the baseline with the seed that all have says what that seed does.
        own = heat.reference.gain(heat.reference.runs[0], seconds)
        if own is not None and math.isfinite(own):
            effects.add([], own, heat.noise(seconds))

    def run(self, allowance: float) -> None:
        """Train new combinations as long as an allowance lasts.

        Args:
            allowance: Wall seconds.
        """
        runner = self.heat.runner
        end = runner.spent + allowance
        found: list[Standing] = []
        suspects: list[list[Variant]] = []
        misses = 0
        while misses < _MISSES and runner.spent + runner.cost_of(self.seconds) <= end:
            parts = suspects.pop() if suspects else self.effects.propose()
            if all(one.kind in TUNED_KINDS for one in parts) or frozenset(parts) in self._known:
                misses += 1
                continue
            misses = 0
            found.append(self.observe("methods", parts, self.seconds))
            unproven = [one for one in parts if one not in self._has_worked]
            if found[-1].error and len(unproven) > 1:
                middle = len(unproven) // 2
                suspects += [unproven[middle:], unproven[:middle]]
        if found:
            standings = tuple(sorted(found, key=lambda one: -one.gain))
            self.results.append(HeatResult("methods", (RungResult(self.seconds, standings, ()),)))

    def observe(self, stage: str, parts: Sequence[Variant], seconds: float) -> Standing:
        """Train a combination, and tell the effects how far it is ahead.

        Args:
            stage: What the cost counts for.
            parts: Its methods, and its learning rate and batch size if they are others than those of the program.
            seconds: Seconds of training.
        """
        (standing,) = self.heat.measure(stage, [combined(parts)], seconds)
        self._known.add(frozenset(parts))
        worst = -_WORST * self.effects.scale
        if standing.error:
            unproven = [one for one in parts if one not in self._has_worked]
            if len(unproven) == 1:
                self._errors[unproven[0]] = standing.error
                self.effects.exclude(unproven[0])
            elif not unproven:  # not one of them, but what they are together
                self.effects.add(parts, worst, abs(worst) / 2)
            return standing
        self._has_worked.update(parts)
        has_diverged = not math.isfinite(standing.gain)
        noise = abs(worst) / 2 if has_diverged else self.heat.noise(seconds)
        if seconds < self.long and not has_diverged:
            noise = math.hypot(noise, _EARLY * self.effects.scale)
        self.effects.add(parts, max(standing.gain, worst), noise)
        return standing

    def standings(self) -> tuple[list[Standing], list[Variant]]:
        """Return how each part stands by all runs that had it, the best first, and the methods without a run."""
        found: list[Standing] = []
        untried: list[Variant] = []
        for one in self.effects.factors:
            number = self.effects.counts[one]
            if one in self._errors:
                found.append(Standing(one, -math.inf, self.seconds, 1, self._errors[one]))
            elif number:
                mean, deviation = self.effects.effect(one)
                found.append(Standing(one, mean, self.seconds, number, deviation=deviation))
            elif one.kind not in TUNED_KINDS:
                untried.append(one)
        return sorted(found, key=lambda one: -one.gain), untried
