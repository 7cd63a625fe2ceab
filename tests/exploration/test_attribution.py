from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from composer.exploration.attribution import Attribution, attribute, break_even
from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.confirmation import Arms, confirm
from composer.exploration.goal import Goal
from composer.exploration.planning import baseline_runs, make_plan
from composer.exploration.variant import BASELINE, Variant, combined
from tests.exploration.simulation import GOAL, Effect, Simulation, method

QUIET = Simulation(time_noise=0.01, seed_noise=0.01, learning_noise=0.01)
EFFECTS = {"One": Effect(1.4), "Two": Effect(1.25)}


def attributed(simulation: Simulation, *names: str, tuned: Variant = BASELINE, budget: float = math.inf) -> Attribution:
    runner = BudgetedRunner(simulation, simulation.goal, budget)
    arms = Arms(runner, make_plan(runner, baseline_runs(runner), 1))
    winner = combined([tuned, *map(method, names)])
    (confirmed,) = confirm(arms, [(tuned, winner)])
    assert confirmed.pays
    return attribute(arms, tuned, confirmed)


def effects(found: Attribution) -> dict[str, tuple[str, float]]:
    return {
        one.part.name: (str(one.effect.decision), one.effect.effect.value)
        for one in found.contributions
        if one.effect is not None and one.effect.effect is not None
    }


def test_each_part_has_its_share_and_a_placebo_none() -> None:
    found = attributed(replace(QUIET, effects=EFFECTS, records={}), "Placebo", "Two", "One")
    assert [one.part.name for one in found.contributions] == ["One", "Two", "Placebo"]
    said = effects(found)
    assert said["One"] == ("pays", pytest.approx(1.4, rel=0.05))
    assert said["Two"] == ("pays", pytest.approx(1.25, rel=0.05))
    assert said["Placebo"][0] != "pays"
    assert found.interaction is not None
    assert found.interaction.effect.low < 1 < found.interaction.effect.high


def test_on_a_host_that_becomes_slower_a_placebo_has_no_share() -> None:
    simulation = replace(QUIET, effects=EFFECTS, slowdown=0.02, records={})
    said = effects(attributed(simulation, "One", "Two", "Placebo"))
    assert said["One"] == ("pays", pytest.approx(1.4, rel=0.05))
    assert said["Placebo"][0] != "pays"
    assert said["Placebo"][1] == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("factor", [0.85, 1.2])
def test_parts_that_interact_are_seen(factor: float) -> None:
    simulation = replace(QUIET, effects=EFFECTS, interactions={frozenset({"One", "Two"}): factor}, records={})
    both = attributed(simulation, "One", "Two").interaction
    assert both is not None
    assert both.effect.value == pytest.approx(factor, rel=0.05)
    assert not both.effect.low <= 1 <= both.effect.high


def test_interactions_of_quality_are_sums() -> None:
    goal = Goal("accuracy", maximize=True, seconds=150.0)
    simulation = replace(
        QUIET, effects={"One": Effect(ceiling=0.05), "Two": Effect(ceiling=0.03)}, goal=goal, records={}
    )
    found = attributed(simulation, "One", "Two")
    assert effects(found)["One"][1] == pytest.approx(0.05, abs=0.01)
    assert found.interaction is not None
    assert found.interaction.effect.value == pytest.approx(0.0, abs=0.01)


def test_of_a_single_part_the_confirmation_has_said_it() -> None:
    simulation = Simulation(EFFECTS)
    found = attributed(simulation, "One")
    assert effects(found)["One"][0] == "pays"
    assert {one.variant.name for one in simulation.records} == {"baseline", "One"}
    assert found.interaction is None


def test_parts_of_the_tuned_baseline_are_not_left_out() -> None:
    tuned = Variant("lr x2", ("optimizers.lr=0.2",), "learning_rate", group="lr")
    found = attributed(replace(QUIET, effects={**EFFECTS, "lr x2": Effect(1.3)}, records={}), "One", "Two", tuned=tuned)
    assert {one.part.name for one in found.contributions} == {"One", "Two"}


def test_without_time_the_contribution_is_not_known() -> None:
    runner = BudgetedRunner(Simulation(), GOAL)
    cost = make_plan(runner, baseline_runs(runner), 1).cost
    found = attributed(Simulation(EFFECTS), "One", "Two", budget=19 * cost)
    assert any(one.effect is None for one in found.contributions)
    json.dumps(found.to_json(), allow_nan=False)


def test_the_search_is_paid_back_by_what_each_training_saves() -> None:
    assert break_even(1000.0, 100.0, 80.0) == 50.0
    assert break_even(1000.0, 100.0, 80.0, startup=20.0) is None
    assert break_even(1000.0, 100.0, 80.0, startup=-5.0) == 40.0
