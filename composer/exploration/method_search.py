"""The search from beginning to end: noise, race, confirmation, attribution."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from composer._numbers import positive
from composer.exploration.attribution import Attribution, attribute
from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.conclusions import kept_runs, overall_effect, trainings_to_break_even, verdicts_of
from composer.exploration.confirmation import ALPHA, Arms, confirm
from composer.exploration.exploration import Exploration
from composer.exploration.goal import Goal
from composer.exploration.paired_runs import PairedRuns
from composer.exploration.planning import SEARCH_COST, Plan, baseline_runs, make_plan
from composer.exploration.race import Race, race, replaced
from composer.exploration.runner import Request, Runner
from composer.exploration.screening_stage import Screening
from composer.exploration.trajectory import Trajectory
from composer.exploration.variant import BASELINE, TUNED_KINDS, Variant
from composer.statistics.holm import Decision

__all__ = ["search"]

# What the fallback has of alpha. With 8 pairs it still is accepted if 2 of the 256 combinations of signs are as good.
_FALLBACK_ALPHA = 0.01


def search(
    runner: Runner,
    goal: Goal,
    variants: Sequence[Variant],
    *,
    budget: float = math.inf,
    search_cost: float = SEARCH_COST,
    pairs: int = 8,
    refused: Mapping[str, str] | None = None,
    screening: Callable[[Plan, Sequence[Trajectory], Sequence[Variant]], Screening] | None = None,
    planned: Callable[[Plan], None] | None = None,
    asked: Callable[[str, Request, float], None] | None = None,
    command: str = "",
) -> Exploration:
    """Return which of some variants pay.

    1. A/A runs of the baseline say how much runs spread, what can be told, and how long it takes (:class:`.Plan`).
    2. Screening leaves out variants that cannot be used, if there is one (:class:`.ScreeningStage`).
    3. A race proposes a tuned baseline and a combination of methods (:func:`.race`).
    4. Pairs of runs with fresh seeds on held-out data decide whether they are better (:func:`.confirm`). If the
       combination is not, the method that is expected to help most by itself is tested as well, at a part of alpha.
    5. Each part of a confirmed combination is left out in turn (:func:`.attribute`). Parts that do not pay are removed
       if what is left, at least the strongest part, is confirmed as well.

    What is done depends on nothing but the outcomes of runs, so that a search that is repeated with a runner that
    remembers them goes on where it was interrupted.

    Args:
        runner: What trains.
        goal: The goal.
        variants: Methods, learning rates, batch sizes and other changes.
        budget: Wall seconds of all runs together.
        search_cost: Cost of the search at most, in trainings of the baseline, the A/A runs included.
        pairs: Number of pairs of the confirmation at most, at least 6.
        refused: Variants that cannot be used, with the reason, for the report.
        screening: Called with the plan, the A/A runs and the variants; returns which can be used.
        planned: Called with the plan before the search begins.
        asked: Called before each run with its stage, the run, and the wall seconds spent so far.
        command: The command or call that repeats the search, for the report.

    Raises:
        BaselineError: The program fails as it is, or does not reach the target.
        ValueError: ``budget`` is not positive, ``pairs`` is less than 6, or two variants have the same name.

    >>> from composer.exploration.trajectory import Evaluation
    >>> class Simulation:  # learns as 1 - exp(-t), and twice as fast with EMA
    ...     spent = 0.0
    ...
    ...     def train(self, requests):
    ...         return [self.run(request) for request in requests]
    ...
    ...     def run(self, request):
    ...         speed = (2 if "EMA" in request.variant.name else 1) * (1 + 0.01 * (request.seed % 5))
    ...         times = [0.1 * n for n in range(1, 31) if 0.1 * n <= (request.seconds or 3)]
    ...         curve = tuple(Evaluation(t, n, n, 1 - math.exp(-t * speed)) for n, t in enumerate(times))
    ...         return Trajectory(curve, times[-1], 30, cost=times[-1])
    >>> variants = [Variant("EMA", ("algorithms+=EMA()",)), Variant("SAM", ("algorithms+=SAM()",))]
    >>> print(search(Simulation(), Goal("accuracy", True, target=0.9), variants).python)
    from composer.algorithms import EMA
    <BLANKLINE>
    Trainer(
        ...,
        algorithms=[..., EMA()],
    )
    """
    names = [one.name for one in variants]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"variants must have different names; {twice[0]!r} is there {names.count(twice[0])} times.")
    budgeted = BudgetedRunner(runner, goal, positive("budget", budget), asked)
    runs = baseline_runs(budgeted)
    tried = [one for one in variants if one.kind not in TUNED_KINDS]
    plan = make_plan(budgeted, runs, len({one.group or one.name for one in tried}), pairs, search=search_cost)
    if planned is not None:
        planned(plan)
    screened, speeds = Screening(tuple(variants)), None
    if screening is not None:
        screened = screening(plan, runs, variants)
        budgeted.charge("screening", screened.seconds)
        budgeted.startups = {one.variant: one.startup for one in screened.screened}
        speeds = {one.variant: one.speed for one in screened.screened if one.speed is not None}
    raced = race(budgeted, plan, runs, screened.variants, None if screened.has_failed and not speeds else speeds)
    arms = Arms(budgeted, plan)
    confirmed = _confirmed(arms, raced)
    found = {(one.before, one.after): one for one in confirmed}
    winner = next((one for one in reversed(confirmed) if one.before == raced.tuned), None)
    attribution = attribute(arms, raced.tuned, winner) if winner is not None and winner.pays else None
    result, final = _without_idle_parts(arms, raced.tuned, winner, attribution)
    if result is None or not result.pays:
        result = next((one for one in confirmed if one.after == raced.tuned and one.pays), None)
    recipe = BASELINE if result is None else result.after
    compared = [one for one in (raced.tuned, raced.winner, raced.fallback, recipe) if one is not None]
    return Exploration(
        plan=plan,
        recipe=recipe,
        tuned=raced.tuned,
        proposed=raced.winner or raced.tuned,
        result=result,
        overall=overall_effect(final, recipe),
        rejected=tuple(one for one in confirmed if not one.pays),
        verdicts=tuple(verdicts_of(raced, found, attribution, plan)),
        attribution=attribution,
        refused={**(refused or {}), **screened.refused, **raced.left_out},
        screened=screened.screened,
        notes=screened.notes,
        costs=dict(budgeted.stages),
        break_even=trainings_to_break_even(final, recipe, budgeted.spent),
        command=command,
        runs=tuple(kept_runs(arms, runs, compared, final)),
        heats=raced.heats,
    )


def _confirmed(arms: Arms, raced: Race) -> list[PairedRuns]:
    """Test the tuned baseline and the winner, and if that does not pay, the fallback."""
    claims = [(BASELINE, raced.tuned)] if raced.tuned != BASELINE else []
    claims += [(raced.tuned, raced.winner)] if raced.winner is not None else []
    if raced.fallback is None:
        return confirm(arms, claims)
    found = confirm(arms, claims, ALPHA - _FALLBACK_ALPHA)
    if any(one.after == raced.winner and one.pays for one in found):
        return found
    return found + confirm(arms, [(raced.tuned, raced.fallback)], _FALLBACK_ALPHA)


def _without_idle_parts(
    arms: Arms, tuned: Variant, winner: PairedRuns | None, attribution: Attribution | None
) -> tuple[PairedRuns | None, Arms]:
    """The winner without the parts that were not shown to pay, if that is better than the tuned baseline as well.

    If none was shown to pay, its strongest part is what is left.

    What is left was chosen by the runs so far, so that it is compared by fresh ones, which are returned with it.
    """
    if winner is None or attribution is None:
        return winner, arms
    idle = [
        one.part for one in attribution.contributions if one.effect is None or one.effect.decision is not Decision.PAYS
    ]
    if len(idle) == len(attribution.contributions) and attribution.contributions[0].effect is not None:
        # Too few pairs to tell the parts apart; the strongest one, which comes first, may do by itself.
        idle = idle[1:]
    left = winner.after
    for part in idle:
        left = replaced(left, part, tuned)
    if left in (winner.after, tuned):
        return winner, arms
    pairs, fresh = arms.plan.pairs, arms.fresh(2)
    compared = [BASELINE, tuned, left]
    if not fresh.fits(compared, pairs) or fresh.train("attribution", compared, pairs) < pairs:
        return winner, arms
    found = fresh.compare(tuned, left, pairs)
    return (found, fresh) if found.pays else (winner, arms)
