"""Two groups of seeds: values by hand, laws, and how often the intervals hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.statistics.groups import MeanDifference, mean_difference, student_p_value

GROUP = st.lists(st.integers(1, 30).map(float), min_size=2, max_size=6)


def test_by_hand() -> None:
    found = mean_difference([0.0, 2.0], [4.0, 6.0])
    assert (found.before, found.after, found.difference.value) == (1.0, 5.0, 4.0)
    # t = 4 / sqrt(2) with 2 degrees of freedom, of which the distribution is 1 - t / sqrt(t^2 + 2) on both sides.
    assert found.welch_p_value == pytest.approx(1 - 4 / math.sqrt(20))
    # 2 of 6 ways to split the four are as far apart.
    assert found.permutation_p_value == pytest.approx(2 / 6)
    assert found.ratio is None  # a value is 0
    median = mean_difference([1.0, 2.0, 9.0], [4.0, 5.0, 6.0], statistic="median")
    assert (median.before, median.after, median.welch_p_value) == (2.0, 5.0, None)
    assert median.ratio is not None
    assert median.ratio.value == 2.5


def test_a_single_run_has_no_interval_and_says_so() -> None:
    for found in (mean_difference([1.0], [2.0]), mean_difference([1.0], [2.0, 3.0])):
        assert not found.difference.has_interval
        assert found.ratio is not None
        assert (found.ratio.low, found.ratio.high) == (0.0, math.inf)
        assert found.welch_p_value is None
        assert "no interval: that takes 2 runs on each side" in str(found)
    assert mean_difference([1.0], [2.0]).permutation_p_value == 1.0


@settings(max_examples=30)
@given(before=GROUP, after=GROUP, factor=st.sampled_from([0.001, 7.0]))
def test_the_unit_of_the_metric_does_not_matter(before: list[float], after: list[float], factor: float) -> None:
    found = mean_difference(before, after, resamples=100)
    scaled = mean_difference([factor * value for value in before], [factor * value for value in after], resamples=100)
    assert scaled.permutation_p_value == found.permutation_p_value
    assert scaled.welch_p_value == pytest.approx(found.welch_p_value)
    assert scaled.difference.low == pytest.approx(factor * found.difference.low, rel=1e-6, abs=1e-6 * factor)
    assert found.ratio is not None
    assert scaled.ratio is not None
    assert scaled.ratio.high == pytest.approx(found.ratio.high, rel=1e-6)


@settings(max_examples=30)
@given(before=GROUP, after=GROUP, statistic=st.sampled_from(["mean", "median"]))
def test_exchanged_groups_are_inverse(before: list[float], after: list[float], statistic: str) -> None:
    found = mean_difference(before, after, statistic, resamples=100)
    other = mean_difference(after, before, statistic, resamples=100)
    assert other.difference.value == pytest.approx(-found.difference.value)
    assert other.permutation_p_value == found.permutation_p_value
    assert other.welch_p_value == found.welch_p_value
    assert found.difference.low <= found.difference.value <= found.difference.high


def _held(statistic: str, numbers: tuple[int, int], ratio: bool, spread: float = 0.2) -> float:
    generator = np.random.default_rng(sum(numbers))
    held = 0
    for seed in range(300):
        before = np.exp(spread * generator.normal(size=numbers[0]))
        after = 1.5 * np.exp(spread * generator.normal(size=numbers[1]))
        found: MeanDifference = mean_difference(before.tolist(), after.tolist(), statistic, resamples=300, seed=seed)
        center = math.exp(spread**2 / 2) if statistic == "mean" else 1.0
        truth = 1.5 if ratio else 0.5 * center
        interval = found.ratio if ratio else found.difference
        assert interval is not None
        held += interval.low <= truth <= interval.high
    return held / 300


@pytest.mark.parametrize(
    ("statistic", "numbers", "ratio"),
    [("mean", (3, 3), False), ("mean", (6, 4), True), ("median", (3, 5), True), ("median", (6, 6), False)],
)
def test_the_intervals_hold(statistic: str, numbers: tuple[int, int], ratio: bool) -> None:
    # The standard deviation of the share is 1.3 %.
    assert _held(statistic, numbers, ratio) >= 0.92


def test_random_permutations_agree_with_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = [1.0, 2.0, 3.0, 4.0, 5.0], [3.0, 4.0, 5.0, 6.0, 9.0]
    exact = mean_difference(before, after).permutation_p_value
    monkeypatch.setattr("composer.statistics.groups._EXACT_CHOICES", 0)
    drawn = mean_difference(before, after).permutation_p_value
    assert drawn != exact
    assert drawn == pytest.approx(exact, abs=0.01)


def test_equal_groups() -> None:
    found = mean_difference([1.0, 1.0], [1.0, 1.0])
    assert not found.difference.has_interval
    assert (found.welch_p_value, found.permutation_p_value) == (None, 1.0)


@pytest.mark.parametrize("statistic", ["mean", "median"])
def test_groups_without_spread_have_only_a_permutation_test(statistic: str) -> None:
    # One of 297 samples more is right, in both runs.
    found = mean_difference([286 / 297] * 2, [287 / 297] * 2, statistic)
    assert not found.difference.has_interval
    assert found.ratio is not None
    assert (found.ratio.low, found.ratio.high) == (0.0, math.inf)
    assert (found.welch_p_value, found.permutation_p_value) == (None, pytest.approx(1 / 3))
    assert str(found) == ("+0.003367 (no interval: the values of each group are all the same), p = 0.33, 2 and 2 runs")
    rounded = mean_difference([0.1 + 0.2] * 3, [0.3] * 3, statistic)
    assert (rounded.welch_p_value, rounded.permutation_p_value) == (None, 1.0)
    # Of one group with a spread there is an interval.
    assert mean_difference([1.0, 1.0], [2.0, 2.5], statistic).difference.has_interval


def test_the_largest_and_the_smallest_numbers() -> None:
    found = mean_difference([1e-300, 2e-300], [1e300, 2e300])
    usual = mean_difference([0.0, 0.0], [1.0, 2.0])
    assert found.difference.low == pytest.approx(1e300 * usual.difference.low)
    assert found.welch_p_value == pytest.approx(usual.welch_p_value)
    assert found.ratio is None  # no finite number
    assert mean_difference([1e300], [1e-300]).ratio is None
    assert mean_difference([1e300, 2e300], [1e300, 3e300]).ratio is not None


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([], [1.0]), ValueError, "before must have at least one value"),
        (([1.0], [math.nan]), ValueError, r"after\[0\] must be finite"),
        (([1.0], [1.0], "means"), ValueError, "Did you mean 'mean'"),
        (([1.0], [None]), TypeError, r"after\[0\] must be a number"),
    ],
)
def test_bad_arguments_are_named(arguments, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mean_difference(*arguments)


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=8))
def test_the_test_of_student_is_that_of_scipy(values: list[float]) -> None:
    if np.ptp(values) > 1e-6:
        expected = scipy.stats.ttest_1samp(values, 0).pvalue
        assert student_p_value(values) == pytest.approx(expected, abs=1e-9)


def test_the_test_of_student_of_few_values() -> None:
    assert [student_p_value(values) for values in ([3.0], [0.0, 0.0], [0.1, 0.1, 0.1])] == [None] * 3
