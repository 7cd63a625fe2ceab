from __future__ import annotations

import math

import pytest

from composer.exploration.budgeted_runner import BudgetedRunner
from composer.exploration.runner import Failure, Request
from composer.exploration.trajectory import Trajectory
from composer.exploration.variant import BASELINE, Variant, combined
from tests.exploration.simulation import GOAL, Effect, Simulation, method


def test_the_cost_is_that_of_the_runner_and_a_run_that_goes_on_is_paid_once() -> None:
    simulation = Simulation()
    runner = BudgetedRunner(simulation, GOAL)
    for seconds in (10.0, 20.0, 40.0):
        runner.train("race", [Request(BASELINE, seed, seconds) for seed in (0, 1)])
    assert runner.spent == pytest.approx(simulation.spent)
    assert runner.stages == {"race": pytest.approx(simulation.spent)}
    assert 80 < runner.spent < 100


def test_what_is_known_is_not_run_again() -> None:
    simulation = Simulation({"Bad": Effect(fails="boom")})
    runner = BudgetedRunner(simulation, GOAL)
    long = Request(BASELINE, 0, 250.0)
    (first,) = runner.train("noise", [long])
    assert isinstance(first, Trajectory)
    assert first.seconds < 250.0  # it has reached the target
    for request in (long, Request(BASELINE, 0, 10.0), Request(BASELINE, 0, 280.0)):
        assert runner.missing(request) == 0
        assert runner.train("noise", [request]) == [first]
    assert simulation.runs == 1
    assert isinstance(runner.train("race", [Request(method("Bad"), 0, 10.0)])[0], Failure)
    assert runner.missing(Request(method("Bad"), 0, 90.0)) == 0
    assert runner.missing(Request(BASELINE, 0, 10.0, split="confirmation")) == 10.0
    assert runner.missing(Request(BASELINE, 1)) == math.inf


def test_a_failure_costs_too() -> None:
    runner = BudgetedRunner(Simulation({"Bad": Effect(fails="boom")}, start=7.0), GOAL)
    runner.train("race", [Request(method("Bad"), 0, 10.0)])
    assert runner.spent == 7.0


def test_the_cost_of_a_run_is_learned_from_short_and_long_ones() -> None:
    runner = BudgetedRunner(Simulation(start=5.0, evaluation=0.3), GOAL)
    assert runner.cost_of(10.0) == 10.0
    runner.train("noise", [Request(BASELINE, seed, seconds) for seed, seconds in enumerate((5.0, 10.0, 60.0, 90.0))])
    for seconds in (5.0, 50.0, 90.0):
        assert runner.cost_of(seconds) == pytest.approx(5.0 + 1.1 * seconds, rel=0.1)


def test_a_limit_is_never_above_the_budget() -> None:
    runner = BudgetedRunner(Simulation(), GOAL, budget=100.0)
    runner.up_to(500.0)
    assert runner.left == 100.0
    runner.up_to(30.0)
    assert runner.fits([Request(BASELINE, 0, 20.0)])
    assert not runner.fits([Request(BASELINE, seed, 20.0) for seed in range(2)])
    assert runner.fits([Request(BASELINE, seed) for seed in range(2)], most=15.0)


def test_what_a_method_takes_to_start_counts_for_its_runs_only() -> None:
    compiled = method("Compiled")
    runner = BudgetedRunner(Simulation({"Compiled": Effect(startup=40.0)}), GOAL, budget=300.0)
    runner.startups = {compiled: 40.0}
    both = combined([compiled, method("Other")])
    requests = [Request(one, 0, seconds) for one in (BASELINE, both) for seconds in (20.0, 60.0)]
    runner.train("noise", requests)
    assert runner.cost_of(20.0) == pytest.approx(23.0, rel=0.1)
    assert runner.cost([Request(BASELINE, 1, 20.0), Request(both, 1, 20.0)]) == pytest.approx(86.0, rel=0.1)
    assert not runner.cost([requests[1], requests[3]])
    assert runner.fits([requests[1], requests[3]])


def test_what_is_compiled_in_a_combination_may_be_compiled_twice() -> None:
    compiled, other = Variant("compile", kind="compile"), method("Other")
    runner = BudgetedRunner(Simulation(), GOAL, budget=100.0)
    runner.startups = {compiled: 30.0, other: 5.0}
    alone, both = (Request(one, 0, 20.0) for one in (compiled, combined([compiled, other])))
    assert runner.cost([both]) - runner.cost([alone]) == 35.0
    runner.up_to(runner.cost([alone]) + 34.0)
    assert runner.fits([alone])
    assert not runner.fits([both])
