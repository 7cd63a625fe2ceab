from __future__ import annotations

import json
import math

import pytest

from composer.exploration.exploration import Exploration
from composer.exploration.goal import Goal
from composer.exploration.recipe_confirmation import confirm_recipe
from composer.exploration.screening import Screened
from composer.exploration.screening_stage import Screening
from composer.exploration.variant import BASELINE, Variant, combined
from tests.exploration.simulation import GOAL, Effect, Simulation, method, rates, tuning

EFFECTS = {"Good": Effect(1.4), "Help": Effect(1.25), **rates(0.7, 1.3, 0.5), "Bad": Effect(0.7)}
QUIET = {"time_noise": 0.01, "seed_noise": 0.01, "learning_noise": 0.01}
GOOD, HELP, IDLE = method("Good"), method("Help"), method("Idle")
OWN_RATE = Variant("optimizers.lr=0.2", ("optimizers.lr=0.2",), "learning_rate", group="lr")


def decisions(found: Exploration) -> dict[str, tuple[str, str]]:
    return {one.variant.name: (str(one.decision), one.source) for one in found.verdicts}


def test_a_recipe_that_pays_is_compared_with_the_tuned_baseline_and_taken_apart() -> None:
    simulation = Simulation(EFFECTS, **QUIET)
    found = confirm_recipe(simulation, GOAL, combined([GOOD, HELP, IDLE]), tuning())
    assert found.tuned.name == "lr x2"
    assert found.recipe.name == "lr x2+Good+Help+Idle"
    assert found.result is not None and found.result.effect is not None
    assert found.result.before.name == "lr x2"
    assert found.result.effect.value == pytest.approx(1.4 * 1.25, rel=0.1)
    assert found.overall is not None and found.overall.effect is not None
    assert found.overall.effect.value == pytest.approx(1.3 * 1.4 * 1.25, rel=0.1)
    said = decisions(found)
    assert said["Good"] == said["Help"] == ("pays", "attribution")
    assert said["Idle"][0] != "pays"
    assert said["lr x2"] == ("pays", "confirmation")
    # Nothing but the baseline and the recipe, whole and without its parts, is trained.
    names = {one.variant.name for one in simulation.records if one.split == "selection"}
    tuned = {"baseline", *(one.name for one in tuning())} | {"lr x2+batch x0.5", "lr x2+batch x2"}
    assert {"baseline", "lr x2", "lr x4"} < names <= tuned
    assert found.search_cost <= 9
    assert "algorithms=[..., Good(), Help(), Idle()]" in found.python
    assert found.break_even is not None
    json.dumps(found.to_json(), allow_nan=False)


def test_runs_of_what_was_left_out_are_kept() -> None:
    found = confirm_recipe(Simulation(EFFECTS, **QUIET), GOAL, combined([GOOD, HELP]))
    kept = {one.variant.name for one in found.runs if one.stage != "noise"}
    assert kept == {"baseline", "Good+Help", "Good", "Help"}


def test_without_tuning_the_program_as_it_is_stays_the_baseline() -> None:
    simulation = Simulation(EFFECTS)
    found = confirm_recipe(simulation, GOAL, GOOD)
    assert found.tuned == BASELINE
    assert (found.recipe, found.overall) == (GOOD, found.result)
    assert decisions(found) == {"Good": ("pays", "confirmation")}
    assert {one.variant.name for one in simulation.records} == {"baseline", "Good"}
    assert found.search_cost == pytest.approx(3, abs=0.1)


def test_the_costs_are_said_before() -> None:
    said: list[str] = []
    simulation = Simulation(EFFECTS)
    found = confirm_recipe(
        simulation, GOAL, combined([GOOD, HELP, IDLE]), tuning(), planned=lambda plan: said.append(str(plan))
    )
    assert "The A/A runs and the tuning of the baseline take at most" in said[0]
    assert found.plan.attribution == pytest.approx(5 * 8 * found.plan.cost)
    assert simulation.spent <= found.plan.total
    single = confirm_recipe(Simulation(EFFECTS), GOAL, GOOD)
    assert single.plan.attribution == 0


def test_a_recipe_that_does_not_pay_is_not_taken_apart_and_the_tuned_baseline_is_the_result() -> None:
    simulation = Simulation(EFFECTS, **QUIET)
    recipe = combined([method("Bad"), IDLE])
    found = confirm_recipe(simulation, GOAL, recipe, tuning())
    assert found.recipe.name == "lr x2"
    assert [one.after.name for one in found.rejected] == ["lr x2+Bad+Idle"]
    assert decisions(found)["lr x2+Bad+Idle"] == ("does not", "confirmation")
    assert found.attribution is None
    assert "not confirmed: lr x2+Bad+Idle: 0." in str(found)
    alone = confirm_recipe(Simulation(EFFECTS, **QUIET), GOAL, recipe)
    assert alone.recipe == BASELINE
    assert str(alone).startswith("Keep what you have")
    assert "in the race" not in alone.headline[1]


def test_the_recipe_keeps_its_own_learning_rate() -> None:
    effects = {**EFFECTS, OWN_RATE.name: Effect(1.3)}
    found = confirm_recipe(Simulation(effects, **QUIET), GOAL, combined([OWN_RATE, GOOD]), tuning())
    assert found.tuned.name == "lr x2"
    assert found.recipe.name == "optimizers.lr=0.2+Good"
    assert found.attribution is not None
    left_out = {one.part.name: one.effect and one.effect.before.name for one in found.attribution.contributions}
    assert left_out == {"Good": "optimizers.lr=0.2", "optimizers.lr=0.2": "lr x2+Good"}


def test_a_recipe_that_the_tuning_finds_as_well_is_compared_with_the_program_as_it_is() -> None:
    rate = tuning()[0]
    assert rate.name == "lr x2"
    found = confirm_recipe(Simulation(EFFECTS, **QUIET), GOAL, rate, tuning())
    assert found.tuned == found.recipe == rate
    assert found.result is not None
    assert found.result.before == BASELINE
    assert decisions(found)["lr x2"][0] == "pays"


def test_placebos_are_confirmed_in_at_most_five_percent() -> None:
    number = 60
    confirmed = 0
    for world in range(number):
        simulation = Simulation(world=world, time_noise=0.05, learning_noise=0.05, interval=6.0)
        confirmed += confirm_recipe(simulation, GOAL, IDLE).found
    # 7 of 60 is what 5 % exceeds with probability 1 %.
    assert confirmed <= 7


def test_an_interrupted_confirmation_goes_on_to_the_same_result() -> None:
    recipe = combined([GOOD, HELP])
    whole = Simulation(EFFECTS)
    expected = confirm_recipe(whole, GOAL, recipe, tuning()).to_json()
    for stop in range(0, whole.runs, 11):
        interrupted = Simulation(EFFECTS, stop_after=stop)
        with pytest.raises(KeyboardInterrupt):
            confirm_recipe(interrupted, GOAL, recipe, tuning())
        again = Simulation(EFFECTS, records=interrupted.records)
        assert confirm_recipe(again, GOAL, recipe, tuning()).to_json() == expected
        assert again.runs == whole.runs - stop


@pytest.mark.parametrize("trainings", [2.5, 5, 12, 17, 22, 45])
def test_any_budget_is_kept_and_has_a_result(trainings: float) -> None:
    simulation = Simulation(EFFECTS)
    found = confirm_recipe(simulation, GOAL, combined([GOOD, HELP]), tuning(), budget=trainings * 130.0)
    assert simulation.spent <= trainings * 130.0 + 0.3 * found.plan.cost
    assert found.found == (trainings >= 22)
    assert found.found or found.plan.pairs or str(found).startswith("Nothing is confirmed: the budget")
    assert "seemed best in the race" not in str(found)


def test_a_goal_of_quality_has_differences() -> None:
    goal = Goal("accuracy", maximize=True, seconds=100.0)
    found = confirm_recipe(Simulation({"Deep": Effect(ceiling=0.05)}, goal=goal), goal, method("Deep"))
    assert found.result is not None
    assert found.result.effect is not None
    assert found.result.effect.value == pytest.approx(0.05, abs=0.02)


def test_a_part_that_cannot_be_used_ends_it_before_the_pairs() -> None:
    asked: list[list[Variant]] = []

    def screening(plan: object, runs: object, variants: list[Variant]) -> Screening:
        asked.append(variants)
        refused = {variants[1].name: "ZeroDivisionError: division by zero"}
        return Screening(tuple(variants), refused, (Screened(variants[0], None, math.nan),))

    simulation = Simulation(EFFECTS)
    with pytest.raises(ValueError, match=r"confirm: Idle cannot be used: ZeroDivisionError: .*\. Leave it"):
        confirm_recipe(simulation, GOAL, combined([OWN_RATE, GOOD, IDLE]), screening=screening)
    assert simulation.runs == 3
    assert [one.name for one in asked[0]] == ["Good", "Idle", "optimizers.lr=0.2+Good+Idle"]


def test_nothing_to_confirm_is_an_error() -> None:
    with pytest.raises(ValueError, match="recipe must change something, but got the baseline"):
        confirm_recipe(Simulation(), GOAL, BASELINE)
