"""The confirmation of a recipe that is given: noise, a tuned baseline, pairs of runs, attribution, and no search."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from composer._numbers import positive
from composer.exploration.attribution import attribute
from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.conclusions import (
    kept_runs,
    overall_effect,
    trainings_to_break_even,
    verdict_of_pairs,
    verdicts_of,
)
from composer.exploration.confirmation import Arms, confirm
from composer.exploration.exploration import Exploration
from composer.exploration.goal import Goal
from composer.exploration.planning import SEARCH_COST, Plan, baseline_runs, make_plan
from composer.exploration.race import Race, race
from composer.exploration.runner import Request, Runner
from composer.exploration.screening_stage import Screening
from composer.exploration.trajectory import Trajectory
from composer.exploration.variant import BASELINE, TUNED_KINDS, Variant, combined

__all__ = ["confirm_recipe"]

# Trainings of the baseline that the A/A runs and the tuning take at most; what a search spends of its SEARCH_COST.
_TUNING_COST = 9.0
# Without tuning: the A/A runs, and one for the screening.
_UNTUNED_COST = 4.0


def confirm_recipe(
    runner: Runner,
    goal: Goal,
    recipe: Variant,
    tuning: Sequence[Variant] = (),
    *,
    budget: float = math.inf,
    pairs: int = 8,
    refused: Mapping[str, str] | None = None,
    screening: Callable[[Plan, Sequence[Trajectory], Sequence[Variant]], Screening] | None = None,
    planned: Callable[[Plan], None] | None = None,
    asked: Callable[[str, Request, float], None] | None = None,
    command: str = "",
) -> Exploration:
    """Return whether a recipe pays, and what each part of it contributes.

    As :func:`.search`, without the search: A/A runs of the baseline, screening of the parts, a baseline that is tuned
    by the same effort, pairs of runs with fresh seeds on held-out data, and leave-one-out. The recipe stays as it is.

    Args:
        runner: What trains.
        goal: The goal.
        recipe: The recipe. Learning rates and batch sizes in it replace those of the tuned baseline.
        tuning: Learning rates and batch sizes that the baseline is tuned by; with none, the program as it is remains
            the baseline.
        budget: Wall seconds of all runs together.
        pairs: Number of pairs of the confirmation at most, at least 6.
        refused: What the baseline cannot be tuned by, with the reason, for the report.
        screening: Called with the plan, the A/A runs and the parts; returns which can be used.
        planned: Called with the plan before the confirmation begins.
        asked: Called before each run with its stage, the run, and the wall seconds spent so far.
        command: The command or call that repeats it, for the report.

    Raises:
        BaselineError: The program fails as it is, or does not reach the target.
        ValueError: ``budget`` is not positive, ``pairs`` is less than 6, ``recipe`` is the baseline, or a part of it
            fails in its first steps or has no effect.

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
    >>> goal, recipe = Goal("accuracy", True, target=0.9), Variant("EMA", ("algorithms+=EMA()",))
    >>> print(confirm_recipe(Simulation(), goal, recipe).result)
    2 times as fast [2, 2], p = 0.016, 6 pairs
    """
    if not recipe.single:
        raise ValueError("recipe must change something, but got the baseline.")
    budgeted = BudgetedRunner(runner, goal, positive("budget", budget), asked)
    runs = baseline_runs(budgeted)
    plan = _plan(budgeted, runs, recipe, len(tuning) > 0, pairs)
    if planned is not None:
        planned(plan)
    # Tuned by the effort of a search, of which it takes the first part, as far as the budget leaves it.
    effort = replace(plan, search=min(SEARCH_COST * plan.cost, plan.budget - plan.confirmation - plan.attribution))
    screened = Screening(())
    if screening is not None:
        parts = [one for one in recipe.single if one.kind not in TUNED_KINDS]
        screened = screening(effort, runs, list(dict.fromkeys([*parts, recipe])))
        budgeted.charge("screening", screened.seconds)
        for name, reason in screened.refused.items():
            raise ValueError(f"confirm: {name} cannot be used: {reason}. Leave it out, or change its arguments.")
    raced = race(budgeted, effort, runs, tuning if plan.pairs else ())
    raced = replace(raced, winner=_on_tuned(raced.tuned, recipe))
    found = _confirmed(Arms(budgeted, plan), raced, runs)
    return replace(
        found,
        refused={**(refused or {}), **raced.left_out},
        screened=screened.screened,
        notes=screened.notes,
        command=command,
    )


def _confirmed(arms: Arms, raced: Race, runs: Sequence[Trajectory]) -> Exploration:
    """The winner of a race, which is the recipe, compared with the tuned baseline, and its parts."""
    tuned, winner = raced.tuned, raced.winner or raced.tuned
    claims = [(BASELINE, tuned)] if tuned != BASELINE else []
    claims += [(tuned, winner)] if winner != tuned else []
    confirmed = confirm(arms, claims)
    own = next((one for one in confirmed if one.after == winner), None)
    attribution = attribute(arms, own.before, own) if own is not None and own.pays else None
    result = own if own is not None and own.pays else next((one for one in confirmed if one.pays), None)
    recipe = BASELINE if result is None else result.after
    verdicts = verdicts_of(raced, {(one.before, one.after): one for one in confirmed}, attribution, arms.plan)
    if own is not None and not own.pays and len(winner.single) > len(tuned.single) + 1:
        verdicts.append(verdict_of_pairs(winner, own, "confirmation"))  # of its parts alone, nothing is known
    effects = [one.effect for one in attribution.contributions] if attribution is not None else []
    compared = [*(one for claim in claims for one in claim), *(one.before for one in effects if one is not None)]
    return Exploration(
        plan=arms.plan,
        recipe=recipe,
        tuned=tuned,
        proposed=winner if own is not None else tuned,
        result=result,
        overall=overall_effect(arms, recipe),
        rejected=tuple(one for one in confirmed if not one.pays),
        verdicts=tuple(verdicts),
        attribution=attribution,
        costs=dict(arms.runner.stages),
        break_even=trainings_to_break_even(arms, recipe, arms.runner.spent),
        runs=tuple(kept_runs(arms, runs, compared)),
        heats=raced.heats,
    )


def _plan(runner: BudgetedRunner, runs: Sequence[Trajectory], recipe: Variant, is_tuned: bool, pairs: int) -> Plan:
    """The plan without a search."""
    plan = make_plan(runner, runs, 0, pairs, search=_TUNING_COST if is_tuned else _UNTUNED_COST)
    parts = len(recipe.single)
    # The recipe, which each part is left out of in turn, and the two strongest together.
    arms = 0 if parts == 1 else parts + 2
    left = plan.budget - plan.confirmation - plan.search
    return replace(plan, attribution=min(arms * plan.pairs * plan.cost, max(left, 0.0)))


def _on_tuned(tuned: Variant, recipe: Variant) -> Variant:
    """The recipe with the tuned baseline; the recipe's own learning rate or batch size replaces that."""
    own = {one.group for one in recipe.single if one.group}
    return combined([*(one for one in tuned.single if one.group not in own), *recipe.single])
