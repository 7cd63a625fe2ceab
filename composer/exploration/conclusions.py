"""What follows from the runs of an exploration: verdicts, the effect of the recipe, and which runs are kept."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from composer.exploration.attribution import Attribution, break_even
from composer.exploration.confirmation import Arms
from composer.exploration.exploration import MethodVerdict
from composer.exploration.halving import Standing
from composer.exploration.kept_runs import KeptRun
from composer.exploration.paired_runs import PairedRuns
from composer.exploration.planning import Plan
from composer.exploration.race import Race
from composer.exploration.trajectory import Trajectory
from composer.exploration.variant import BASELINE, Variant
from composer.statistics._special import special
from composer.statistics.bootstrap import Estimate
from composer.statistics.holm import SMALLEST_EFFECT, Decision

__all__ = ["kept_runs", "overall_effect", "trainings_to_break_even", "verdict_of_pairs", "verdicts_of"]

# Quantile of the normal distribution for 95 %.
_NORMAL = 1.96


def kept_runs(
    arms: Arms, noise: Sequence[Trajectory], variants: Sequence[Variant], final: Arms | None = None
) -> Iterator[KeptRun]:
    """Yield the A/A runs, those of the confirmation with the program as it is and some variants, and the attribution's.

    Args:
        arms: What has trained them.
        noise: The A/A runs.
        variants: The variants.
        final: What has trained the pairs of the recipe, if that was not ``arms``; its runs come first.

    >>> from composer.exploration.budgeted_runner import BudgetedRunner
    >>> from composer.exploration.goal import Goal
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> plan = Plan(goal, (10.0, 11.0), (0.9, 0.9), 12.0, 0.1, 8, 180.0, 192.0, 96.0, 1e9, 5, 20)
    >>> arms = Arms(BudgetedRunner(None, goal), plan)
    >>> list(kept_runs(arms, [], [Variant("EMA")]))
    []
    """
    for seed, run in enumerate(noise):
        yield KeptRun(BASELINE, seed, "noise", run)
    stages: dict[Arms, Literal["confirmation", "attribution"]] = {
        final or arms: "confirmation",
        arms: "confirmation",
        arms.fresh(): "attribution",
    }
    for own, stage in stages.items():
        for variant in dict.fromkeys([BASELINE, *variants]):
            for number in range(arms.plan.pairs):
                request = own.request(variant, number)
                known = own.runner.known(variant, request.seed, request.split)
                if known is not None:
                    yield KeptRun(variant, request.seed, stage, known)


def overall_effect(arms: Arms, recipe: Variant) -> PairedRuns | None:
    """Return the recipe compared with the program as it is, by the runs that are there.

    Args:
        arms: What has trained them.
        recipe: The recipe.

    >>> from composer.exploration.budgeted_runner import BudgetedRunner
    >>> from composer.exploration.goal import Goal
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> plan = Plan(goal, (10.0, 11.0), (0.9, 0.9), 12.0, 0.1, 8, 180.0, 192.0, 96.0, 1e9, 5, 20)
    >>> arms = Arms(BudgetedRunner(None, goal), plan)
    >>> overall_effect(arms, Variant("EMA")) is None  # nothing was trained
    True
    """
    if recipe == BASELINE:
        return None
    number = min(len(arms.runs(one, arms.plan.pairs)) for one in (BASELINE, recipe))
    return arms.compare(BASELINE, recipe, number) if number > 1 else None


def trainings_to_break_even(arms: Arms, recipe: Variant, spent: float) -> float | None:
    """Return after how many trainings with the recipe the search has saved its time; None if never.

    Args:
        arms: What has trained the runs.
        recipe: The recipe.
        spent: Wall seconds of the search.

    >>> from composer.exploration.budgeted_runner import BudgetedRunner
    >>> from composer.exploration.goal import Goal
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> plan = Plan(goal, (10.0, 11.0), (0.9, 0.9), 12.0, 0.1, 8, 180.0, 192.0, 96.0, 1e9, 5, 20)
    >>> arms = Arms(BudgetedRunner(None, goal), plan)
    >>> trainings_to_break_even(arms, BASELINE, 100.0) is None  # it saves nothing
    True
    """
    goal, plan = arms.plan.goal, arms.plan
    runs = [one for one in arms.runs(recipe, plan.pairs) if isinstance(one, Trajectory)]
    overall = overall_effect(arms, recipe) if recipe != BASELINE else None
    if goal.target is None or overall is None or overall.times is None or overall.times.ratio is None or not runs:
        return None
    before = plan.seconds
    startup = sum(run.startup for run in runs) / len(runs)
    given = [one.startup for one in arms.runs(BASELINE, plan.pairs) if isinstance(one, Trajectory)]
    startup -= sum(given) / len(given) if given else 0.0
    return break_even(spent, before, before / overall.times.ratio.value, startup)


def verdicts_of(
    raced: Race,
    found: Mapping[tuple[Variant, Variant], PairedRuns],
    attribution: Attribution | None,
    plan: Plan,
) -> list[MethodVerdict]:
    """Return the verdict for each variant that was tried, by the best evidence there is.

    Args:
        raced: The race.
        found: The comparisons of the confirmation.
        attribution: What each part contributes; None if nothing was confirmed.
        plan: The plan.

    >>> from composer.exploration.goal import Goal
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> plan = Plan(goal, (10.0, 11.0), (0.9, 0.9), 12.0, 0.1, 8, 180.0, 192.0, 96.0, 1e9, 5, 20)
    >>> verdicts_of(Race(BASELINE, None, ()), {}, None, plan)
    []
    """
    verdicts: dict[Variant, MethodVerdict] = {}
    for one in raced.standings:
        verdicts[one.variant] = _by_race(one, plan, raced.noise(one.seconds))
    for one in found.values():
        parts = [part for part in one.after.single if part not in one.before.single]
        if len(parts) == 1:
            verdicts[parts[0]] = verdict_of_pairs(parts[0], one, "confirmation")
    for one in attribution.contributions if attribution is not None else ():
        if one.effect is not None:
            # Of a single part, the confirmation has said it.
            source = "confirmation" if one.effect in found.values() else "attribution"
            verdicts[one.part] = verdict_of_pairs(one.part, one.effect, source)
    return list(verdicts.values())


def verdict_of_pairs(variant: Variant, effect: PairedRuns, source: str) -> MethodVerdict:
    """Return the verdict for a variant by pairs of runs.

    Args:
        variant: The variant.
        effect: The pairs.
        source: "attribution" or "confirmation".

    >>> pairs = PairedRuns(BASELINE, Variant("EMA"), 8, 0.01, 0.01, Decision.PAYS)
    >>> verdict_of_pairs(Variant("EMA"), pairs, "confirmation").evidence
    'confirmation, 8 pairs'
    """
    where = "attribution" if source == "attribution" else "confirmation"
    return MethodVerdict(variant, effect.decision, where, effect.effect, effect.num_pairs)


def _by_race(standing: Standing, plan: Plan, noise: tuple[float, int]) -> MethodVerdict:
    """A verdict by parts of runs: it never says that a method pays, only that it does not by far."""
    if standing.error:
        return MethodVerdict(
            standing.variant, Decision.DOES_NOT, "failure", None, standing.num_runs, reason=standing.error
        )
    if not math.isfinite(standing.gain):
        return MethodVerdict(
            standing.variant, Decision.DOES_NOT, "race", None, standing.num_runs, reason="the metric is not finite"
        )
    deviation, freedom = noise
    # Against the mean of a few runs, whose number is one more than the degrees of freedom.
    quantile = float(special().stdtrit(freedom, 0.975))
    width = quantile * deviation * math.sqrt(1 / standing.num_runs + 1 / (freedom + 1))
    if math.isfinite(standing.deviation):
        width = math.hypot(_NORMAL * standing.deviation, quantile * deviation / math.sqrt(freedom + 1))
    ends = standing.gain, standing.gain - width, standing.gain + width
    least = 0.0
    if plan.goal.target is not None:
        ends, least = tuple(math.exp(min(end, 50.0)) for end in ends), 1 + SMALLEST_EFFECT
    effect = Estimate(*ends)
    decision = Decision.DOES_NOT if effect.high < least else Decision.UNDECIDED
    share = standing.seconds / plan.seconds
    return MethodVerdict(
        standing.variant, decision, "race", effect, standing.num_runs, f"compared up to {share:.0%} of the time"
    )
