from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest

from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.goal import Goal
from composer.exploration.planning import baseline_runs, make_plan
from composer.exploration.race import Race, race, replaced
from composer.exploration.variant import BASELINE, Variant, combined
from composer.statistics.paired import Ratio
from tests.exploration.simulation import Effect, Simulation, method, placebos, rates, tuning

SAME = Ratio(1.0, 0.9, 1.1)


def raced(
    simulation: Simulation,
    variants: list[Variant],
    budget: float = float("inf"),
    startups: Mapping[Variant, float] = MappingProxyType({}),
) -> tuple[Race, float]:
    """The race, and its cost in trainings of the baseline."""
    runner = BudgetedRunner(simulation, simulation.goal, budget)
    runner.startups = dict(startups)
    runs = baseline_runs(runner)
    plan = make_plan(runner, runs, len(variants))
    found = race(runner, plan, runs, variants)
    assert runner.spent == pytest.approx(simulation.spent)
    return found, runner.spent / plan.cost


def names(variant: Variant | None) -> set[str]:
    assert variant is not None
    return {part.name for part in variant.single}


def test_the_baseline_is_tuned_and_the_best_method_wins_within_fifteen_trainings() -> None:
    effects = {**rates(0.6, 1.5, 0.4), "Good": Effect(1.4)}
    found, cost = raced(Simulation(effects), [*tuning(), method("Good"), *placebos(19)])
    assert found.tuned.name == "lr x2"
    assert {"lr x2", "Good"} <= names(found.winner)
    assert cost <= 15
    assert found.standings[0].variant.name == "Good"


def test_methods_that_help_together_are_combined_and_those_that_hinder_each_other_are_not() -> None:
    effects = {"One": Effect(1.4), "Two": Effect(1.3)}
    variants = [method("One"), method("Two"), *placebos(4)]
    both, _ = raced(Simulation(effects), variants)
    assert {"One", "Two"} <= names(both.winner)
    less = Simulation(effects, interactions={frozenset({"One", "Two"}): 0.6})
    one, _ = raced(less, variants)
    assert len({"One", "Two"} & names(one.winner)) == 1


def test_values_of_an_argument_exclude_each_other_and_the_others_join_if_one_is_good() -> None:
    values = [method(f"EMA{n}", group="EMA") for n in range(3)]
    idle = [method(f"SAM{n}", group="SAM") for n in range(3)]
    effects = {"EMA0": Effect(1.25), "EMA1": Effect(1.6), **{f"SAM{n}": Effect(0.6) for n in range(3)}}
    found, _ = raced(Simulation(effects), [*values, *idle, *placebos(3)])
    assert "EMA1" in names(found.winner)
    assert len({"EMA0", "EMA1", "EMA2"} & names(found.winner)) == 1
    assert not {"SAM1", "SAM2"} & {part.name for one in found.standings for part in one.variant.single}


def test_a_method_that_never_reaches_the_target_does_not_win() -> None:
    effects = {"Trap": Effect(1.5, ceiling=-0.05)}
    found, _ = raced(Simulation(effects), [method("Trap"), *placebos(3)])
    assert found.winner is None or "Trap" not in names(found.winner)


def test_what_is_left_of_a_winner_without_a_part_that_never_arrives_is_extended() -> None:
    effects = {"One": Effect(1.5), "Two": Effect(1.4), "Trap": Effect(1.6, ceiling=-0.035)}
    quiet = {"time_noise": 0.01, "learning_noise": 0.01, "seed_noise": 0.01}
    for world in (0, 3):
        found, cost = raced(Simulation(effects, world=world, **quiet), [*map(method, effects), *placebos(2)])
        assert {"One", "Two"} <= names(found.winner)
        assert "Trap" not in names(found.winner)
        assert cost <= 15


def test_a_method_that_helps_late_is_judged_late() -> None:
    effects = {"Average": Effect(3.0, late=0.3)}
    variants = [*placebos(12), method("Average", late=True)]
    found, _ = raced(Simulation(effects, time_noise=0.01, learning_noise=0.01), variants)
    assert "Average" in names(found.winner)


def test_a_winner_with_another_learning_rate_is_found() -> None:
    simulation = Simulation(
        {**rates(0.6, 0.7, 0.3), "Norm": Effect(1.4)},
        interactions={frozenset({"Norm", "lr x2"}): 2.2},
    )
    found, _ = raced(simulation, [*tuning(), method("Norm"), *placebos(4)])
    assert found.tuned is BASELINE
    assert names(found.winner) >= {"Norm", "lr x2"}


def test_a_baseline_that_is_tuned_by_chance_is_seldom_taken() -> None:
    tuned = [raced(Simulation(world=world), tuning())[0].tuned for world in range(20)]
    assert sum(one != BASELINE for one in tuned) <= 6


def test_a_small_budget_is_kept_and_what_was_not_tried_is_said() -> None:
    cost = raced(Simulation(), [])[1]
    assert cost == pytest.approx(3.0, abs=0.1)
    seconds = 8 * 131.0
    simulation = Simulation()
    found, _ = raced(simulation, [*tuning(), *placebos(60)], budget=seconds)
    assert simulation.spent <= seconds * 1.02
    assert any("no time" in reason for reason in found.left_out.values())


def test_a_goal_of_quality_finds_what_is_better_then() -> None:
    goal = Goal("accuracy", maximize=True, seconds=120.0)
    effects = {"Deep": Effect(0.95, ceiling=0.06), "Bad": Effect(0.6)}
    found, cost = raced(Simulation(effects, goal=goal), [method("Deep"), method("Bad"), *placebos(6)])
    assert "Deep" in names(found.winner)
    assert cost <= 15


def test_the_search_stays_within_its_cost_with_a_method_that_takes_long_to_start() -> None:
    compiled = method("Compiled", late=True)
    simulation = Simulation({"Compiled": Effect(1.3, startup=300.0), "Good": Effect(1.4)})
    found, cost = raced(simulation, [method("Good"), compiled, *placebos(8)], startups={compiled: 300.0})
    assert cost <= 15
    assert found.left_out["Compiled"] == "there was no time for it within the budget"
    assert names(found.winner) >= {"Good"}


def test_compilation_is_not_tried_where_it_is_not_known_how_long_it_takes_to_start() -> None:
    compiled = Variant("compile", ("compile_config={}",), "compile", group="compile")
    simulation = Simulation({"compile": Effect(1.5, startup=300.0)})
    runner = BudgetedRunner(simulation, simulation.goal)
    runs = baseline_runs(runner)
    plan, others = make_plan(runner, runs, 4), placebos(3)
    found = race(runner, plan, runs, [*others, compiled], dict.fromkeys(others, SAME))
    assert found.left_out["compile"] == "there was no time to measure how long it takes to start"
    assert found.winner is None or "compile" not in names(found.winner)
    assert runner.spent <= 15 * plan.cost
    measured = race(runner, plan, runs, [*others, compiled], dict.fromkeys([*others, compiled], SAME))
    assert "compile" in names(measured.winner)  # 15 trainings of this program take longer than its start


def test_nothing_wins_among_methods_that_fail() -> None:
    effects = {"One": Effect(fails="boom"), "Two": Effect(0.5)}
    found, _ = raced(Simulation(effects), [method("One"), method("Two")])
    assert found.winner is None
    assert {one.variant.name: one.error for one in found.standings}["One"] == "boom"


def test_the_race_is_the_same_when_it_is_repeated_from_records() -> None:
    variants = [*tuning(), method("Good"), *placebos(5)]
    first = Simulation({"Good": Effect(1.3)})
    expected, _ = raced(first, variants)
    again = replace(first, spent=first.spent, runs=0, stop_after=0)
    assert raced(again, variants)[0] == expected
    assert again.runs == 0


def test_a_part_that_is_left_out_gives_way_to_that_of_the_tuned_baseline() -> None:
    low, high = (Variant(name, (f"optimizers.lr={name}",), "learning_rate", group="lr") for name in ("0.1", "0.2"))
    winner = combined([high, method("EMA")])
    assert replaced(winner, high, low) == combined([low, method("EMA")])
    assert replaced(winner, method("EMA"), high) == high
    assert replaced(winner, high, BASELINE) == method("EMA")
