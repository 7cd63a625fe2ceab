from __future__ import annotations

import math

import pytest

from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.confirmation import FIRST_SEED, Arms, confirm
from composer.exploration.planning import baseline_runs, make_plan
from composer.exploration.variant import BASELINE, combined
from tests.exploration.simulation import Effect, Simulation, method


def arms(simulation: Simulation, pairs: int = 8, budget: float = math.inf) -> Arms:
    runner = BudgetedRunner(simulation, simulation.goal, budget)
    return Arms(runner, make_plan(runner, baseline_runs(runner), 1, pairs))


GOOD, IDLE, BAD = method("Good"), method("Idle"), method("Bad")
EFFECTS = {"Good": Effect(1.4), "Bad": Effect(0.7), "Never": Effect(1.0, ceiling=-0.05), "Lost": Effect(fails="boom")}


def test_a_good_method_is_accepted_early_with_fresh_seeds_on_held_out_data_in_alternating_order() -> None:
    simulation = Simulation(EFFECTS)
    (found,) = confirm(arms(simulation), [(BASELINE, GOOD)])
    assert found.pays
    assert found.num_pairs == 6
    asked = [one for one in simulation.records if one.seed >= FIRST_SEED]
    assert {one.split for one in asked} == {"confirmation"}
    assert {one.split for one in simulation.records if one.seed < FIRST_SEED} == {"selection"}
    assert [one.variant.name for one in asked[:8]] == ["baseline", "Good", "Good", "baseline"] * 2
    assert [one.seed - FIRST_SEED for one in asked[:4]] == [0, 0, 1, 1]


def test_a_bad_method_is_given_up_early() -> None:
    (found,) = confirm(arms(Simulation(EFFECTS)), [(BASELINE, BAD)])
    assert (str(found.decision), found.num_pairs) == ("does not", 6)


def test_runs_that_do_not_reach_the_target_are_censored() -> None:
    (found,) = confirm(arms(Simulation(EFFECTS)), [(BASELINE, method("Never"))])
    assert not found.pays
    assert found.times is not None
    assert (found.times.reached_before, found.times.reached_after) == (6, 0)


def test_a_method_that_fails_does_not_pay() -> None:
    (found,) = confirm(arms(Simulation(EFFECTS)), [(BASELINE, method("Lost"))])
    assert str(found.decision) == "does not"
    assert found.failures == found.num_pairs


def test_a_claim_with_a_part_of_alpha_needs_more_pairs_and_its_p_value_says_so() -> None:
    (found,) = confirm(arms(Simulation(EFFECTS)), [(BASELINE, GOOD)], alpha=0.01)
    assert (found.pays, found.num_pairs) == (True, 8)
    assert found.p_value == 1 / 256
    assert found.adjusted == pytest.approx(5 / 256)


@pytest.mark.parametrize("claims", [1, 2])
def test_placebos_are_accepted_in_at_most_five_percent(claims: int) -> None:
    number = 60
    accepted = 0
    for world in range(number):
        simulation = Simulation(world=world, time_noise=0.05, learning_noise=0.05, interval=6.0)
        names = [(BASELINE, IDLE), (IDLE, combined([IDLE, method("Idle2")]))][:claims]
        accepted += any(one.pays for one in confirm(arms(simulation), names))
    # 7 of 60 is what 5 % exceeds with probability 1 %.
    assert accepted <= 7


def test_of_two_claims_each_is_tested_and_arms_that_are_decided_are_not_run_again() -> None:
    simulation = Simulation(EFFECTS, time_noise=0.01, learning_noise=0.01, seed_noise=0.01)
    both = combined([GOOD, IDLE])
    first, second = confirm(arms(simulation, pairs=12), [(BASELINE, GOOD), (GOOD, both)])
    assert first.pays
    assert not second.pays
    assert first.adjusted >= first.p_value
    asked = [one.variant for one in simulation.records if one.seed >= FIRST_SEED]
    assert asked.count(BASELINE) == first.num_pairs
    assert asked.count(both) == second.num_pairs
    assert asked.count(GOOD) == max(first.num_pairs, second.num_pairs) > min(first.num_pairs, second.num_pairs)


def test_a_budget_that_ends_leaves_the_pairs_that_are_there_undecided() -> None:
    cost = arms(Simulation(EFFECTS)).plan.cost
    limited = arms(Simulation(EFFECTS), budget=19 * cost)
    assert limited.plan.pairs == 6
    limited.runner.up_to(limited.runner.spent + 9 * cost)
    (found,) = confirm(limited, [(BASELINE, GOOD)])
    assert 3 <= found.num_pairs < 6
    assert str(found.decision) == "undecided"
    none = arms(Simulation(EFFECTS), budget=10 * cost)
    assert confirm(none, [(BASELINE, GOOD)]) == []


def test_nothing_to_confirm_is_nothing() -> None:
    assert confirm(arms(Simulation()), []) == []
