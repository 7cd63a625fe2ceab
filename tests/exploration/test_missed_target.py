from __future__ import annotations

import math

import pytest

from composer.exploration.goal import Goal
from composer.exploration.missed_target import missed_target
from composer.exploration.trajectory import Evaluation, Trajectory

HIGH, LOW = Goal("accuracy", True, target=0.95), Goal("loss", False, target=0.01)


def run(*values: float) -> Trajectory:
    """A run that is evaluated each second."""
    curve = tuple(Evaluation(float(second), second, second, value) for second, value in enumerate(values, 1))
    return Trajectory(curve, float(len(values)), len(values))


def test_the_value_that_all_runs_reach_early_is_to_be_written() -> None:
    assert "--target 'accuracy>=0.7'" in missed_target(HIGH, [run(0.1, 0.5, 0.7, 0.8, 0.9), run(0.1, 0.6, 0.7, 0.9)])
    assert "--target 'loss<=0.5'" in missed_target(LOW, [run(2.0, 1.0, 0.7, 0.5, 0.4)])


def test_a_value_that_is_reached_at_the_end_only_is_better_than_the_first_one() -> None:
    text = missed_target(HIGH, [run(0.3, 0.2, 0.2, 0.2, 0.6)])
    assert "--target 'accuracy>=0.6'" in text


@pytest.mark.parametrize("values", [(0.0854, 0.0854, 0.0854), (0.3, 0.2, 0.1)])
def test_a_program_whose_first_value_is_its_best_does_not_learn(values: tuple[float, ...]) -> None:
    text = missed_target(HIGH, [run(*values)])
    assert f"the best value was {values[0]:.4g}, as good as at the first evaluation" in text
    assert "does not learn" in text
    assert "--target" not in text


def test_a_metric_that_becomes_nan_has_diverged() -> None:
    text = missed_target(LOW, [run(2.0, 1.0, math.nan, math.nan)])
    assert "in 2 of 4 evaluations it was not finite: the program diverged" in text
    assert "--target" not in text
