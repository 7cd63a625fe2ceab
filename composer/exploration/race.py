"""The race: tune the baseline, find methods that seem to pay, combine them. It proposes; the confirmation decides."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.curves import Reference, pooled_noise, time_to_target
from composer.exploration.halving import Heat, HeatResult, RungResult, Standing, rungs_within, with_kept
from composer.exploration.joint_effects import JointEffects
from composer.exploration.planning import Plan
from composer.exploration.runner import Failure, Request
from composer.exploration.short_runs import ShortRuns
from composer.exploration.trajectory import Trajectory
from composer.exploration.tuning import tune
from composer.exploration.variant import BASELINE, TUNED_KINDS, Variant, combined
from composer.statistics.paired import Ratio

__all__ = ["Race", "race", "replaced"]

# Share of the baseline's time after which single variants and combinations are compared, and learning rates again.
_LONG, _SHORT = 0.6, 0.35
# The same share for combinations of methods, of which there are many.
_MIXED = 0.2
# Combinations that are trained for longer.
_FINALS = 3
# The same share where methods take part that help late.
_LATE = 0.9
# Share of the search that the tuning of the baseline takes at most.
_TUNING = 0.4
# Share of what is left after the tuning that is kept for longer runs of the best combinations.
_KEPT = 0.6
# Gains below are not worth a change.
_WORTH = math.log(1.03)
# What a run must be better, in standard deviations of the gain of a run, to be preferred.
_DOUBT = 0.5
# Methods of a combination that is trained for longer, at most.
_CONTENDERS = 4
# Parts of a recipe at most: of more, pairs of runs cannot tell whether each pays.
_MOST_PARTS = 6
# Learning rates beside that of the winner that are tried with it, in powers of two at most.
_BESIDE = 1.01
_NO_TIME = "there was no time for it within the budget"
_NOT_MEASURED = "there was no time to measure how long it takes to start"


@dataclass(frozen=True)
class Race:
    """What the race proposes.

    Args:
        tuned: The tuned baseline; :data:`.BASELINE` where nothing seemed better than what is there.
        winner: The combination with the tuned baseline that seems best; None if no method seems to pay.
        fallback: The tuned baseline with the one method that is expected to help most, to be confirmed if the winner is
            not; None if that is the winner, or none is expected to help.
        standings: How far each variant came, the best first; single methods are named without the tuned baseline.
        left_out: Variants that were not tried, with the reason.
        seconds: Seconds of training of the tuned baseline to the target, or of the goal.
        references: The runs of the baselines.
        heats: What was compared in each stage; single methods are named without the tuned baseline.

    >>> Race(BASELINE, None, (), {}, 10.0).winner is None
    True
    """

    tuned: Variant
    winner: Variant | None
    standings: tuple[Standing, ...]
    left_out: dict[str, str] = field(default_factory=dict[str, str])
    seconds: float = 0.0
    references: tuple[Reference, ...] = ()
    heats: tuple[HeatResult, ...] = ()
    fallback: Variant | None = None

    def noise(self, seconds: float) -> tuple[float, int]:
        """Return the standard deviation of the gain of a run, and its degrees of freedom.

        Args:
            seconds: Seconds of training up to which runs are compared.
        """
        return pooled_noise(self.references, seconds)


def race(
    runner: BudgetedRunner,
    plan: Plan,
    runs: Sequence[Trajectory],
    variants: Sequence[Variant],
    speeds: Mapping[Variant, Ratio] | None = None,
) -> Race:
    """Return what seems best, after at most the cost that the plan allows for the search.

    - The learning rate and batch size of the baseline are tuned in short runs (:func:`.tune`). The tuned baseline takes
      over if it is also faster in longer runs with two seeds, by more than noise.
    - Combinations of methods and learning rates are trained for a short time, many of them, from which the effect of
      each is estimated (:class:`.ShortRuns`). Of each group of methods the first one takes part.
    - The combinations that are expected to be best are trained longer, then with the learning rates beside theirs and
      other values of arguments, and with the methods that help near the target. What results is trained to the
      target; if it does not get there, the next one is taken, such as the winner without one of its parts.

    Args:
        runner: What trains.
        plan: The plan.
        runs: The A/A runs of the baseline, with the seeds 0, 1, ....
        variants: The variants.
        speeds: How many times as fast a step is with each method, where it was measured; None if nothing measures
            that.

    >>> from composer.exploration.goal import Goal
    >>> from composer.exploration.trajectory import Evaluation
    >>> runs = [Trajectory(tuple(Evaluation(t, 1, 1, t / 10) for t in (2.0, 4.0, 6.0, 9.0)), 9.0, 4)] * 2
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> plan = Plan(goal, (9.0, 9.0), (0.9, 0.9), 9.0, 0.1, 8, 135.0, 144.0, 72.0, 1e9, 0, 4)
    >>> race(BudgetedRunner(None, goal), plan, runs, []).winner is None
    True
    """
    return _Search(runner, plan, runs, variants, speeds).run()


class _Search:
    """A race; its decisions depend on nothing but the outcomes of runs."""

    def __init__(
        self,
        runner: BudgetedRunner,
        plan: Plan,
        runs: Sequence[Trajectory],
        variants: Sequence[Variant],
        speeds: Mapping[Variant, Ratio] | None,
    ) -> None:
        self.runner = runner
        self.plan = plan
        self.tuners = [one for one in variants if one.kind in TUNED_KINDS]
        self.methods = [one for one in variants if one.kind not in TUNED_KINDS and one.kind != "baseline"]
        self.given = Reference(plan.goal, tuple(runs))
        self.heat = Heat(runner, self.given, self.noise, range(len(runs)))
        self.seconds = plan.seconds
        self.tuned = BASELINE
        self.left_out: dict[str, str] = {}
        self.late_standings: list[Standing] = []
        self.heats: list[HeatResult] = []
        self._noise: dict[float, float] = {}
        first: dict[str, Variant] = {}
        for one in self.methods:
            first.setdefault(one.group or one.name, one)
        # A start that takes longer than many runs would take their time from the search.
        unknown = [one for one in first.values() if speeds is not None and one.kind == "compile" and one not in speeds]
        first = {name: one for name, one in first.items() if one not in unknown}
        self.left_out.update({one.name: _NOT_MEASURED for one in unknown})
        # What compiles takes so long to start that it would take the time of many short runs.
        self.late = [one for one in first.values() if one.late or one.kind == "compile"]
        self.others = [one for one in self.methods if one not in first.values() and one not in unknown]
        early = [one for one in first.values() if one not in self.late]
        seconds = min(max(1.2 * self.given.earliest, _MIXED * plan.seconds), self.long)
        timed = plan.goal.target is not None
        scale = 1.0 if timed else self.noise(plan.seconds) / 0.1
        factors = [*self.tuners, *early]
        effects = JointEffects(factors, speeds or {}, scale, self.noise(seconds), speed_is_gain=timed)
        self.short = ShortRuns(self.heat, effects, seconds, self.long)

    @property
    def long(self) -> float:
        """Seconds of training after which combinations are compared."""
        return _LONG * self.seconds

    def noise(self, seconds: float) -> float:
        if seconds not in self._noise:
            self._noise[seconds] = pooled_noise([self.given], seconds)[0]
        return self._noise[seconds]

    def worth(self, seconds: float, num_runs: int = 1) -> float:
        """The gain from which on something seems to pay."""
        noise = _DOUBT * self.noise(seconds) / math.sqrt(num_runs)
        return max(_WORTH, noise) if self.plan.goal.target is not None else noise

    def run(self) -> Race:
        self.runner.up_to(self.plan.search)
        self.tune()
        self.mix()
        # The learning rate is tuned again for the winner, which is then trained to the target.
        reserve = sum(self.runner.cost_of(share * self.seconds) for share in (1.0, 1.0, _LONG, _SHORT))
        self.runner.up_to(self.plan.search - min(reserve + self.reserve_for_late(), self.runner.left / 2))
        winner = self.combine()
        self.runner.up_to(self.plan.search)
        if winner is not None:
            winner = self.check([self.retune(winner), winner, *self.without_parts(winner)])
        extended = None if winner is None else self.extend(winner)
        winner = self.check([one for one in (self.with_late(extended), extended, winner) if one is not None])
        mixed, untried = self.short.standings()
        self.left_out.update(dict.fromkeys((one.name for one in untried), _NO_TIME))
        methods = [one for one in mixed if one.variant.kind not in TUNED_KINDS]
        tuners = [one for one in mixed if one not in methods]
        standings = (*methods, *self.late_standings, *tuners)
        self.runner.up_to(math.inf)
        heats = with_kept([*self.short.results, *self.heats], self.heat.standings, [self.tuned, winner])
        fallback = self.fallback(winner)
        return Race(self.tuned, winner, standings, self.left_out, self.seconds, (self.given,), heats, fallback)

    def tune(self) -> None:
        """Tune the baseline."""
        allowance = _TUNING * self.runner.left
        self.tuned, gain = tune(self.short, self.tuners, allowance, self.long, self.worth)
        if self.plan.goal.target is not None:
            self.seconds = self.plan.seconds * math.exp(-gain)
            self.short.long = self.long
        # Combinations have rates that are near this one, and its batch size.
        for one in self.tuners:
            if not (self.is_near(one, self.tuned) if one.kind == "learning_rate" else one in self.tuned.single):
                self.short.effects.exclude(one)

    def is_near(self, rate: Variant, variant: Variant) -> bool:
        """Whether a learning rate is at most twice or half that of a variant."""
        return abs(math.log2(rate.factor / math.prod(one.factor for one in variant.single))) < _BESIDE

    def mix(self) -> None:
        """Train combinations of methods for a short time, many of them, and estimate what each method does."""
        if all(one.kind in TUNED_KINDS for one in self.short.effects.factors):
            return
        reserve = 2 * self.runner.cost_of(self.seconds) + _FINALS * self.runner.cost_of(self.long)
        reserve = min(reserve + self.reserve_for_late(), _KEPT * self.runner.left)
        self.short.run(self.runner.left - reserve)

    def reserve_for_late(self) -> float:
        """Wall seconds for methods that help late, with the winner, which is trained as long."""
        return min(len(self.late), 2) * 1.4 * self.runner.cost_of(_LATE * self.seconds)

    def combine(self) -> Variant | None:
        """Train the combinations that are expected to be best for longer; None if not even the best seems to pay."""
        measured: list[tuple[Variant, list[Variant]]] = []
        standings: list[Standing] = []
        effects = self.short.effects
        for _ in range(_FINALS):
            good = effects.best(_DOUBT, _CONTENDERS)
            if all(one.kind in TUNED_KINDS for one in good):
                # Short runs could not tell; a longer one may.
                good = effects.best(most=1)
            methods = [one for one in good if one.kind not in TUNED_KINDS]
            # Without the strongest part, which may be one that is fast at first only; then without each other one.
            sets = [good, *([one for one in good if one != part] for part in methods)]
            known = [{*parts} for _, parts in measured]
            following = next((parts for parts in sets if {*parts} & {*methods} and {*parts} not in known), None)
            if following is None:
                break
            variant = combined(following)
            if not self.heat.fits([variant], self.long):
                break
            standing = self.short.observe("combinations", following, self.long)
            standings.append(standing)
            if math.isfinite(standing.gain):
                measured.append((variant, following))
        if standings:
            ranked = tuple(sorted(standings, key=lambda one: -one.gain))
            self.heats.append(HeatResult("combinations", (RungResult(self.long, ranked, ()),)))
        least = effects.expected(self.tuned.single) + _WORTH * effects.scale
        measured = [one for one in measured if effects.expected(one[1]) > least]
        measured.sort(key=lambda one: -(effects.expected(one[1]) + self.heat.standings[one[0]].gain))
        return measured[0][0] if measured else None

    def retune(self, winner: Variant) -> Variant:
        """Return the winner with another learning rate or other values of its arguments if that seems better."""
        own = [one for one in winner.single if one.kind == "learning_rate"]
        rest = [one for one in winner.single if one not in own]
        rates = [one for one in self.tuners if one.kind == "learning_rate" and one not in own]
        variants = [combined([one, *rest]) for one in rates if self.is_near(one, winner)]
        variants += [combined(rest)] if own and self.is_near(BASELINE, winner) else []
        for part in winner.single:
            if part.group and part not in own:
                others = [one for one in self.others if one.group == part.group]
                variants += [combined([one if each == part else each for each in winner.single]) for one in others]
        seconds = self.long
        now = self.heat.standings[winner]
        # What is proposed is checked up to the target, and if it does not get there, what is next.
        allowance = self.runner.left - 2 * self.runner.cost_of(self.seconds) - self.reserve_for_late()
        rungs = rungs_within(len(variants), seconds, _SHORT * self.seconds, allowance, self.runner.cost_of)
        if not rungs:
            return winner
        found = self.heat.halve("combinations", variants[: rungs[0].number], rungs)
        self.heats += self.heat.take_results()
        best = found[0]
        if best.gain <= self.heat.at(winner, best.seconds).gain or not self.heat.fits([best.variant], seconds):
            return winner
        (standing,) = self.heat.measure("combinations", [best.variant], seconds)
        return best.variant if standing.gain > now.gain + self.worth(seconds) else winner

    def extend(self, winner: Variant) -> Variant:
        """Return the winner with further methods, as long as there is time and each of them seems to help."""
        if not self.heat.fits([winner], self.long):
            return winner
        (now,) = self.heat.measure("combinations", [winner], self.long)
        for one in self.short.effects.best(most=len(self.methods)):
            groups = {part.group for part in winner.single if part.group}
            if one.kind in TUNED_KINDS or one in winner.single or one.group in groups:
                continue
            variant = combined([winner, one])
            left = self.runner.left - self.runner.cost_of(self.seconds) - self.reserve_for_late()
            if len(winner.single) == _MOST_PARTS or self.runner.cost_of(self.long) > left:
                break
            (standing,) = self.heat.measure("combinations", [variant], self.long)
            if standing.gain > now.gain + self.worth(self.long):
                winner, now = variant, standing
        return winner

    def with_late(self, winner: Variant | None) -> Variant | None:
        """Return the winner with the method that helps it most near the end of training, if there is one."""
        seconds = _LATE * self.seconds
        before = winner or self.tuned
        # What is proposed is trained on, up to the target.
        allowance = self.runner.left - self.runner.cost_of(self.seconds - seconds)
        found: list[Standing] = []
        for one in self.late:
            variants = [combined([before, one]), *([winner] if winner is not None else [])]
            if self.heat.cost(variants, seconds) > allowance or not self.heat.fits(variants, seconds):
                self.left_out[one.name] = _NO_TIME
                continue
            spent = self.runner.spent
            standings = self.heat.measure("combinations", variants, seconds)
            allowance -= self.runner.spent - spent
            gain = standings[0].gain - (standings[1].gain if winner is not None else 0.0)
            self.late_standings.append(replace(standings[0], variant=one, gain=gain))
            found.append(replace(standings[0], gain=gain))
        best = max(found, key=lambda one: one.gain, default=None)
        return winner if best is None or best.gain <= self.worth(seconds) else best.variant

    def fallback(self, winner: Variant | None) -> Variant | None:
        """The tuned baseline with the method that is expected to help most, if that is not the winner itself."""
        effects = self.short.effects
        for one in effects.best(most=len(self.methods)):
            if one.kind in TUNED_KINDS or not effects.counts[one] or effects.effect(one)[0] < _WORTH * effects.scale:
                continue
            variant = combined([*self.tuned.single, one])
            if variant != winner:
                return variant
        return None

    def without_parts(self, winner: Variant | None) -> list[Variant]:
        """The winner without each method in turn, the strongest first: one that is fast at first may never arrive."""
        parts = [] if winner is None else list(winner.single)
        methods = [one for one in parts if one.kind not in TUNED_KINDS and one in self.short.effects.factors]
        methods.sort(key=lambda one: -self.short.effects.effect(one)[0])
        return [combined(one for one in parts if one != part) for part in methods] if len(methods) > 1 else []

    def check(self, candidates: Sequence[Variant]) -> Variant | None:
        """Return the first candidate that is ahead at the end of the baseline too, or for which there is no time."""
        goal, seed = self.plan.goal, self.heat.seeds[0]
        # The time of the tuned baseline is that of two runs only.
        seconds = min(self.seconds * math.exp(self.noise(self.seconds)), self.plan.seconds)
        for one in dict.fromkeys(candidates):
            request = Request(one, seed, seconds, stop_at_target=goal.target is not None)
            if not self.runner.fits([request]):
                return one
            (outcome,) = self.runner.train("combinations", [request])
            if isinstance(outcome, Failure):
                continue
            if goal.target is not None:
                is_ahead = time_to_target(outcome, goal) is not None
            else:
                is_ahead = (self.given.gain(outcome, seconds) or 0.0) > 0
            if is_ahead:
                return one
        return None


def replaced(variant: Variant, part: Variant, tuned: Variant) -> Variant:
    """Return a combination without one of its parts; a part of the tuned baseline comes back in its place.

    Args:
        variant: The combination.
        part: One of its parts.
        tuned: The tuned baseline.

    >>> low, high = (Variant(name, kind="learning_rate", group="lr") for name in ("low", "high"))
    >>> replaced(combined([high, Variant("EMA")]), high, low).name
    'low+EMA'
    """
    left = [one for one in variant.single if one != part]
    groups = {one.group for one in left if one.group}
    back = [one for one in tuned.single if one not in left and (not one.group or one.group not in groups)]
    return combined([*back, *left])
