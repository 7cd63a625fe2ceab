from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.exploration.curves import Reference, increasing, pooled_noise, time_to_target, value_at
from composer.exploration.goal import Goal
from composer.exploration.runner import Request
from composer.exploration.trajectory import Evaluation, Trajectory
from composer.exploration.variant import BASELINE
from tests.exploration.simulation import GOAL, Effect, Simulation, method

QUIET = Simulation(time_noise=0, seed_noise=0, learning_noise=0, value_noise=0)


def trained(simulation: Simulation, seed: int, name: str = "", seconds: float | None = None) -> Trajectory:
    (outcome,) = simulation.train([Request(method(name) if name else BASELINE, seed, seconds, stop_at_target=False)])
    assert isinstance(outcome, Trajectory)
    return outcome


def test_a_value_is_interpolated_between_evaluations_and_known_from_the_first_to_the_end_of_the_run() -> None:
    run = Trajectory((Evaluation(10.0, 1, 1, 0.5), Evaluation(20.0, 2, 2, 0.9)), 25.0, 3)
    assert [value_at(run, seconds) for seconds in (9.0, 10.0, 15.0, 25.0, 26.0)] == [None, 0.5, 0.7, 0.9, None]
    assert value_at(Trajectory((), 5.0, 1), 1.0) is None


def test_the_time_to_a_target_is_none_without_one_and_without_evaluations() -> None:
    run = Trajectory((Evaluation(10.0, 1, 1, 0.5), Evaluation(20.0, 2, 2, 0.9)), 25.0, 3)
    assert time_to_target(run, Goal("loss", maximize=False, target=0.5)) == 10.0
    assert time_to_target(run, Goal("accuracy", maximize=True, seconds=10.0)) is None
    assert time_to_target(Trajectory((), 5.0, 1), GOAL) is None


@pytest.mark.parametrize("speed", [0.5, 0.8, 1.0, 1.3, 2.0])
@pytest.mark.parametrize("seconds", [30.0, 60.0])
def test_the_gain_without_noise_is_the_logarithm_of_the_speed(speed: float, seconds: float) -> None:
    simulation = Simulation({"Fast": Effect(speed)}, time_noise=0, seed_noise=0, learning_noise=0, value_noise=0)
    reference = Reference(GOAL, (trained(simulation, 0, seconds=120.0),))
    gain = reference.gain(trained(simulation, 0, "Fast", seconds=seconds), seconds)
    assert gain == pytest.approx(math.log(speed), abs=0.02)


def test_a_run_with_slow_evaluations_is_compared_where_it_was_evaluated() -> None:
    simulation = Simulation(
        {"Slow": Effect(1.0, step=3.0)}, time_noise=0, seed_noise=0, learning_noise=0, value_noise=0
    )
    reference = Reference(GOAL, (trained(simulation, 0, seconds=120.0),))
    # Its last evaluation before 26 s is at 18 s.
    assert reference.gain(trained(simulation, 0, "Slow", seconds=26.0), 26.0) == pytest.approx(0.0, abs=0.02)
    assert reference.gain(trained(simulation, 0, "Slow", seconds=26.0), 5.0) is None


def test_a_gain_in_quality_is_the_difference_and_a_loss_that_falls_is_one() -> None:
    goal = Goal("loss", maximize=False, seconds=10.0)
    one = Trajectory(tuple(Evaluation(t, 1, 1, 2 - t / 10) for t in (2.0, 6.0, 8.0, 10.0)), 10.0, 4)
    two = Trajectory(tuple(Evaluation(t, 1, 1, 1.9 - t / 10) for t in (2.0, 6.0, 8.0, 10.0)), 10.0, 4)
    assert Reference(goal, (one,)).gain(two, 10.0) == pytest.approx(0.1)


def test_a_run_that_diverged_is_infinitely_far_behind() -> None:
    run = trained(QUIET, 0, seconds=60.0)
    lost = Trajectory((*run.evaluations[:-1], Evaluation(60.0, 200, 6400, math.nan)), 60.0, 200)
    assert Reference(GOAL, (run,)).gain(lost, 60.0) == -math.inf


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_noise_is_that_of_the_runs(noise: float) -> None:
    simulation = Simulation(time_noise=0, seed_noise=0, learning_noise=noise, value_noise=0.001)
    reference = Reference(GOAL, tuple(trained(simulation, seed, seconds=150.0) for seed in range(24)))
    found, freedom = pooled_noise([reference], 70.0)
    assert freedom == 23
    assert found == pytest.approx(noise, rel=0.35)


def test_noise_of_single_runs_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 2 equal runs"):
        pooled_noise([Reference(GOAL, (trained(QUIET, 0),))], 60.0)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_isotonic_regression_is_increasing_keeps_the_mean_and_what_is_increasing(values: list[float]) -> None:
    found = increasing(np.array(values))
    assert np.all(np.diff(found) >= -1e-9)
    assert found.mean() == pytest.approx(np.mean(values), abs=1e-9)
    ordered = np.sort(np.array(values))
    assert np.array_equal(increasing(ordered), ordered)
