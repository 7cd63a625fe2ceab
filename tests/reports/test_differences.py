"""Differences of groups: times to a target that some runs missed, and which p-value decides."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from composer.reports.comparison_text import difference_cells
from composer.reports.differences import censored_row, row
from composer.statistics.crossing import Crossing

pytest.importorskip("scipy")


def runs(times: Sequence[float | None], ends: Sequence[float]) -> list[Crossing]:
    return [
        Crossing(None, end, math.inf, False, end) if time is None else Crossing(time, time - 1, time, False, end)
        for time, end in zip(times, ends, strict=True)
    ]


# Two runs reach it and stop, and four end without it; of the others, all reach it later.
SOMETIMES = runs([7.51, 7.52, None, None, None, None], [8.0, 8.0, *[10.0] * 4])
ALWAYS = runs([12.0, 12.1, 12.2, 11.9, 12.0, 12.1], [13.0] * 6)


def test_a_group_with_more_misses_is_neither_better_nor_the_other_worse() -> None:
    for groups, misses in (([ALWAYS, SOMETIMES], "4 of this group"), ([SOMETIMES, ALWAYS], "4 of the baseline")):
        found = censored_row("time", groups, [list(range(6))] * 2)
        difference = found.differences[0]
        assert found.better(difference) is None
        assert difference.verdict_p_value == difference.p_value == 0.5
        assert misses in difference.note
        assert "of 4 pairs it is not known which run was sooner" in difference.note


def test_misses_outweigh_any_p_value() -> None:
    """Of 20 pairs, 18 tell of runs that are sooner, and two more runs miss the target."""
    before = runs([12.0 + 0.1 * number for number in range(20)], [20.0] * 20)
    after = runs([*(7.0 + 0.1 * number for number in range(18)), None, None], [20.0] * 20)
    found = censored_row("time", [before, after], [list(range(20))] * 2)
    assert found.differences[0].verdict_p_value is not None
    assert found.differences[0].verdict_p_value <= 0.05
    assert found.differences[0].sign == -1
    assert found.better(found.differences[0]) is None
    back = censored_row("time", [after, before], [list(range(20))] * 2)
    assert back.better(back.differences[0]) is None


def test_times_that_are_cut_off_have_no_spread_of_their_own() -> None:
    """Runs that end at the target cut the others off there: of groups that do not differ, a quarter are all alike."""
    before = runs([8.5, 8.6, 8.4, None], [9.0, 9.0, 9.0, 20.0])
    after = runs([7.9, 7.91, 7.9, None], [8.0, 8.0, 8.0, 20.0])
    found = censored_row("time", [before, after], [[1, 2, 3, 4]] * 2)
    assert found.differences[0].verdict_p_value == found.differences[0].p_value == 0.25
    assert found.differences[0].verdict_test == "a permutation test"
    assert found.better(found.differences[0]) is None


def test_if_all_runs_reach_the_target_none_is_cut_off() -> None:
    before, after = runs([12.0, 13.0, 14.0], [20.0] * 3), runs([6.0, 6.5, 7.0], [8.0] * 3)
    difference = censored_row("time", [before, after], [[1, 2, 3]] * 2).differences[0]
    assert difference.estimate is not None
    assert difference.ratio is not None
    assert difference.estimate.value == pytest.approx(-6.5)
    assert difference.ratio.value == pytest.approx(0.5)


@pytest.mark.parametrize("swapped", [False, True])
def test_runs_that_reach_the_target_after_the_others_ended(swapped: bool) -> None:
    short, good = runs([None] * 6, [10.0] * 6), runs([45.0] * 6, [50.0] * 6)
    groups = [good, short] if swapped else [short, good]
    note = censored_row("time", groups, [list(range(6))] * 2).differences[0].note
    reached = (0, 6) if swapped else (6, 0)
    assert f"reached by {reached[0]} of 6 runs and by {reached[1]} of 6 of the baseline" in note
    assert "never before the other run of the pair ended" in note
    none = censored_row("time", [short, short], [list(range(6))] * 2).differences[0]
    assert none.note == "not reached by any run"


@pytest.mark.parametrize(("number", "test"), [(3, "Welch's test"), (5, "")])
def test_the_p_value_that_decides_is_shown_with_its_test(number: int, test: str) -> None:
    noise = np.random.default_rng(0)
    found = row("accuracy", "", True, [noise.normal(mean, 0.1, size=number).tolist() for mean in (0, 1)])
    difference = found.differences[0]
    _, _, p_value, word, note = difference_cells(found, difference)
    assert word == "better"
    assert p_value == f"{difference.verdict_p_value:.2g}"
    assert float(p_value) <= 0.05
    assert note == (f"p of {test}" if test else "")
    told = found.to_json(["a", "b"])["differences"]["b"]
    assert told["p_value"] == difference.p_value
    assert told["verdict_p_value"] == difference.verdict_p_value
    assert told["verdict_test"] == (test or "a permutation test")


def test_the_test_of_pairs_is_named() -> None:
    before, after = runs([12.0, 13.0, 14.0], [20.0] * 3), runs([6.0, 6.4, 7.0], [20.0] * 3)
    found = censored_row("time", [before, after], [[1, 2, 3]] * 2)
    assert (
        difference_cells(found, found.differences[0])[4] == "3 pairs of the same seed; p of Student's t-test of pairs"
    )
