"""When a curve reaches a target: by hand, on lines with a known crossing, and with values that are not finite."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.statistics.crossing import Crossing, first_crossing, in_float32, reaches

CURVE = st.lists(st.integers(0, 20).map(float), min_size=1, max_size=12)


def clock(curve: list[float]) -> list[float]:
    return [10.0 * (number + 1) for number in range(len(curve))]


def test_between_evaluations_by_hand() -> None:
    assert first_crossing([10.0, 20.0, 40.0], [0.1, 0.5, 0.9], target=0.8) == Crossing(
        pytest.approx(35.0), 20.0, 40.0, at_first=False, limit=40.0
    )
    assert first_crossing([10.0, 20.0], [3.0, 1.0], target=1.5, mode="min").time == 17.5


def test_at_an_evaluation() -> None:
    assert first_crossing([10.0, 20.0, 30.0], [0.1, 0.5, 0.9], target=0.5).time == 20.0


def test_the_first_time_counts() -> None:
    assert first_crossing([1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.0, 1.0], target=1.0).time == 2.0


def test_reached_at_the_first_evaluation_is_marked() -> None:
    found = first_crossing([10.0, 20.0], [0.9, 0.95], target=0.9, start=4.0)
    assert found == Crossing(10.0, 4.0, 10.0, at_first=True, limit=20.0)


def test_never() -> None:
    found = first_crossing([10.0, 20.0], [0.1, 0.2], target=0.9)
    assert found == Crossing(None, 20.0, math.inf, at_first=False, limit=20.0)
    assert not found.is_reached


def test_an_evaluation_before_training() -> None:
    assert first_crossing([0.0, 10.0], [0.1, 0.3], target=0.2).time == pytest.approx(5.0)


def test_a_window_ignores_a_lucky_evaluation() -> None:
    times, curve = [1.0, 2.0, 3.0, 4.0, 5.0], [0.0, 0.9, 0.0, 0.8, 0.9]
    assert first_crossing(times, curve, target=0.8).low == 1.0
    # Means of two: 0.45 at 2 s, 0.45, 0.4, 0.85 at 5 s.
    assert first_crossing(times, curve, target=0.8, window=2).time == pytest.approx(4 + 0.4 / 0.45)
    # Fewer evaluations than the window have no mean.
    assert first_crossing(times, curve, target=0.0, window=6) == Crossing(
        None, 5.0, math.inf, at_first=False, limit=5.0
    )
    assert first_crossing(times, curve, target=0.3, window=3).at_first


@pytest.mark.parametrize("before", [math.nan, -math.inf])
def test_nothing_is_interpolated_from_a_value_that_is_not_finite(before: float) -> None:
    assert first_crossing([1.0, 2.0], [before, 0.9], target=0.5).time == 2.0
    assert first_crossing([1.0, 2.0], [0.1, math.inf], target=0.5).time == 2.0
    assert first_crossing([1.0, 2.0, 3.0], [0.1, math.nan, before], target=0.5).time is None
    assert first_crossing([1.0, 2.0, 3.0, 4.0], [math.inf, -math.inf, 1.0, 1.0], target=0.5, window=2).time == 4.0


@given(curve=CURVE, target=st.floats(0.5, 19.5))
def test_min_is_max_of_the_negated_metric(curve: list[float], target: float) -> None:
    mirrored = first_crossing(clock(curve), [-value for value in curve], -target, mode="min")
    assert mirrored == first_crossing(clock(curve), curve, target)


@given(curve=CURVE, target=st.floats(0.5, 19.5), harder=st.floats(0, 5))
def test_a_harder_target_is_never_sooner(curve: list[float], target: float, harder: float) -> None:
    easy, hard = (first_crossing(clock(curve), curve, goal) for goal in (target, target + harder))
    assert easy.low <= (math.inf if easy.time is None else easy.time) <= easy.high
    assert hard.time is None or (easy.time is not None and easy.time <= hard.time)


@given(
    slope=st.floats(0.01, 100),
    times=st.lists(st.integers(1, 1000), min_size=2, max_size=20, unique=True).map(sorted),
    where=st.floats(0.0, 1.0),
)
def test_a_straight_line_is_crossed_where_it_is_however_it_is_sampled(
    slope: float, times: list[int], where: float
) -> None:
    truth = times[0] + where * (times[-1] - times[0]) * 0.999 + 1e-3
    found = first_crossing([float(time) for time in times], [slope * time for time in times], slope * truth)
    assert found.time == pytest.approx(truth)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], [], 1.0), "at least 1; got 0 and 0"),
        (([1.0], [1.0, 2.0], 1.0), "got 1 and 2"),
        (([2.0, 1.0], [1.0, 2.0], 1.0), r"times\[1\] must be finite and after 2.0, but got 1.0"),
        (([1.0, math.inf], [1.0, 2.0], 1.0), r"times\[1\] must be finite"),
        (([1.0], [1.0], math.nan), "target must be finite, but got nan"),
        (([1.0], [1.0], 1.0, "maximum"), "mode must be one of 'max', 'min'"),
        (([1.0], [1.0], 1.0, "max", 0), "window must be at least 1"),
    ],
)
def test_bad_arguments_are_named(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        first_crossing(*arguments)


@given(st.floats(-1e6, 1e6), st.sampled_from(["max", "min"]))
def test_a_metric_in_float32_reaches_the_target_that_it_equals(target: float, mode: str) -> None:
    value = float(np.float32(target))
    assert reaches(value, target, mode)
    assert first_crossing([1.0, 2.0], [-1e9 if mode == "max" else 1e9, value], target, mode).time == pytest.approx(2.0)
    step = -math.inf if mode == "max" else math.inf
    assert not reaches(float(np.nextafter(np.float32(target), np.float32(step))), target, mode)


def test_beyond_the_range_of_float32_numbers_are_compared_as_they_are() -> None:
    assert in_float32(1e300) == 1e300
    assert not reaches(math.inf, 1e300, "min")
    assert not reaches(math.nan, 0.5)
