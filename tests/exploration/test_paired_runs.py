from __future__ import annotations

import math

import pytest

from composer.exploration.goal import Goal
from composer.exploration.paired_runs import Outcome, advantages, compare_runs, with_holm
from composer.exploration.runner import Failure
from composer.exploration.trajectory import Evaluation, Trajectory
from composer.exploration.variant import BASELINE
from composer.statistics.holm import Decision
from tests.exploration.simulation import GOAL, method

QUALITY = Goal("accuracy", maximize=True, seconds=100.0)
PAIR = BASELINE, method("New")
FAILURE = Failure("boom")


def run(time: float, end: float = 0.95, rate: float = 32.0) -> Trajectory:
    """A run whose metric rises evenly, to 0.95 or another value at a time."""
    curve = tuple(
        Evaluation(share * time, n, int(rate * share * time), end * share) for n, share in enumerate((0.5, 1.0))
    )
    return Trajectory(curve, time, 100)


def runs(*times: float) -> list[Outcome]:
    return [run(time) for time in times]


SLOW, FAST = runs(100, 102, 98, 101, 99, 103, 97, 100), runs(80, 81, 79, 82, 78, 80, 81, 79)


def test_faster_runs_pay_and_equal_ones_do_not() -> None:
    found = compare_runs(GOAL, PAIR, SLOW, FAST, 200.0)
    assert found.decision is Decision.PAYS
    assert found.effect is not None
    assert found.effect.value == pytest.approx(1.25, rel=0.02)
    assert found.p_value == 1 / 256
    assert compare_runs(GOAL, PAIR, FAST, SLOW, 200.0).decision is Decision.DOES_NOT
    assert compare_runs(GOAL, PAIR, SLOW, SLOW, 200.0).decision is Decision.DOES_NOT


def test_a_sequential_test_that_did_not_accept_outweighs_the_p_value() -> None:
    assert compare_runs(GOAL, PAIR, SLOW, FAST, 200.0, accepted=False).decision is Decision.UNDECIDED
    assert compare_runs(GOAL, PAIR, SLOW, FAST, 200.0, accepted=True).decision is Decision.PAYS


def test_runs_that_miss_the_target_are_kept_and_a_change_that_makes_them_miss_it_does_not_pay() -> None:
    lost = [*FAST[:-2], run(200, end=0.9), run(200, end=0.9)]
    found = compare_runs(GOAL, PAIR, SLOW, lost, 200.0)
    assert found.times is not None
    assert (found.num_pairs, found.times.reached_after) == (8, 6)
    assert not found.pays
    assert "2 of 8 runs after did not reach the target" in str(found)


@pytest.mark.parametrize("goal", [GOAL, QUALITY])
def test_a_change_with_which_runs_fail_does_not_pay(goal: Goal) -> None:
    found = compare_runs(goal, PAIR, SLOW, [*FAST[:-1], FAILURE], 200.0)
    assert found.failures == 1
    assert found.decision is Decision.UNDECIDED
    assert "1 run failed" in str(found)
    assert compare_runs(goal, PAIR, SLOW, [FAILURE] * 8, 200.0).decision is Decision.DOES_NOT


def test_a_goal_of_quality_is_a_difference_in_the_direction_of_the_goal() -> None:
    before = [run(100, end=0.80 + 0.001 * n) for n in range(8)]
    after = [run(100, end=0.85 + 0.0012 * n) for n in range(8)]
    found = compare_runs(QUALITY, PAIR, before, after, 100.0)
    assert found.pays
    assert found.difference is not None
    assert found.difference.value == pytest.approx(0.05, abs=0.002)
    loss = Goal("loss", maximize=False, seconds=100.0)
    assert compare_runs(loss, PAIR, before, after, 100.0).decision is Decision.DOES_NOT
    assert compare_runs(loss, PAIR, after, before, 100.0).pays


def test_a_run_without_a_value_is_the_worse_one_of_its_pair() -> None:
    before, after = [run(100, end=0.8), FAILURE, run(100, end=0.8), FAILURE], [run(100, end=0.9)] * 2 + [FAILURE] * 2
    assert advantages(QUALITY, before, after, 100.0) == pytest.approx([0.1, 0.1, -0.1, 0.0])
    nan = run(100, end=math.nan)
    assert advantages(QUALITY, [run(100)], [nan], 100.0) == [-1.0]


def test_quality_and_throughput_stand_beside_the_time() -> None:
    before, after = [run(100, rate=10.0)] * 6, [run(80, rate=20.0)] * 6
    found = compare_runs(GOAL, PAIR, before, after, 200.0)
    assert found.quality is not None
    assert found.quality.value == pytest.approx(0.95 - 0.95 * 80 / 100)
    # At 1000 samples the first is at its target, the second after 50 s.
    assert found.quality_by_samples is not None
    assert found.quality_by_samples.value == pytest.approx(0.95 * 50 / 80 - 0.95)
    assert found.throughput == pytest.approx(2.0)


def test_holm_makes_one_of_several_harder() -> None:
    one = compare_runs(GOAL, PAIR, SLOW[:6], FAST[:6], 200.0)
    assert one.pays
    assert [each.pays for each in with_holm([one] * 3)] == [True] * 3
    assert [each.pays for each in with_holm([one] * 4)] == [False] * 4
    assert [each.pays for each in with_holm([one] * 2, [True, False])] == [True, False]


def test_json_has_no_infinity() -> None:
    found = compare_runs(GOAL, PAIR, [run(300, end=0.5)] * 2, [run(300, end=0.5)] * 2, 200.0).to_json()
    assert found["effect"] is None
    assert all(value is None or not isinstance(value, float) or math.isfinite(value) for value in found.values())
