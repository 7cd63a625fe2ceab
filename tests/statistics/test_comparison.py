"""Pairs of runs with and without censored times: values by hand, laws, and how often the intervals hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.statistics import Decision, compare, log_ratios
from composer.statistics.comparison import Comparison, share_interval

TIME = st.none() | st.floats(0.5, 9.5).map(lambda value: round(value, 2))
PAIRS = st.lists(st.tuples(TIME, TIME), min_size=1, max_size=10)
FAST = {"resamples": 200}


def compared(pairs: list[tuple[float | None, float | None]], limit: float = 10.0, scale: float = 1.0) -> Comparison:
    before, after = ([None if time is None else scale * time for time in side] for side in zip(*pairs, strict=True))
    return compare(before, after, limit=scale * limit, **FAST)


def test_by_hand() -> None:
    found = compare([8.0, None, None, 4.0], [4.0, 5.0, None, None], limit=[10.0, 20.0, 30.0, 16.0])
    assert (found.num_pairs, found.num_known, found.reached_before, found.reached_after) == (4, 3, 2, 2)
    # log 2, log 20 / 5 and log 4 / 16 among the known pairs.
    assert found.ratio is not None
    assert found.ratio.value == pytest.approx(2 ** (1 / 3))
    assert found.sooner.value == pytest.approx(2 / 3)
    # Up to 16 s: 8 - 4, 16 - 5, 16 - 16, 4 - 16.
    assert found.horizon == 16.0
    assert found.saved.value == pytest.approx(3 / 4)
    # Signs of 1, 2, -2: the sum is at least 1 in 4 of 8 cases (1, 5, 1, and 3 of -1 + 2 + 2).
    assert found.p_value == 4 / 8


def test_ties_count_half() -> None:
    assert compare([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 1.0, 5.0]).sooner.value == 2.5 / 4


def test_times_beyond_the_limit_are_not_reached() -> None:
    assert compare([5.0, 3.0], [12.0, 2.0], limit=10.0) == compare([5.0, 3.0], [None, 2.0], limit=10.0)


def test_a_method_that_sometimes_fails_does_not_pay() -> None:
    # Twice as fast, but in one of ten pairs it never gets there. Without that pair it would pay.
    before, after = [10.0] * 10, [5.0] * 9 + [None]
    assert compare(before[:9], after[:9]).decide() == Decision.PAYS
    assert compare(before, after, limit=20.0).decide() == Decision.UNDECIDED


def test_a_method_that_rescues_runs_pays() -> None:
    found = compare([10.0, None, 11.0, None, 10.0, None], [8.0, 9.0, 9.0, 8.5, 8.0, 9.0], limit=20.0)
    assert found.decide() == Decision.PAYS
    assert found.sooner.value == 1.0
    assert "3 of 6 runs before did not reach the target" in str(found)


def test_runs_that_never_reach_the_target_tell_nothing() -> None:
    found = compare([None] * 6, [None] * 6, limit=10.0)
    assert found.ratio is None
    assert (found.p_value, found.two_sided_p_value) == (1.0, 1.0)
    assert (found.sooner.low, found.sooner.high) == (0.0, 1.0)
    assert found.saved.value == 0.0
    assert found.decide() == Decision.UNDECIDED
    assert str(found) == "no run reached the target, 6 pairs"


def test_one_pair_has_no_interval() -> None:
    found = compare([2.0], [1.0])
    assert found.ratio is not None
    assert (found.ratio.low, found.ratio.high) == (0.0, math.inf)
    assert "no interval" in str(found)


@settings(max_examples=50)
@given(pairs=PAIRS)
def test_exchanging_the_sides_inverts_everything(pairs: list[tuple[float | None, float | None]]) -> None:
    found, other = compared(pairs), compared([(two, one) for one, two in pairs])
    assert (found.ratio is None) == (other.ratio is None)
    if found.ratio is not None and other.ratio is not None:
        assert other.ratio.value == pytest.approx(1 / found.ratio.value)
        assert 1 / other.ratio.high == pytest.approx(found.ratio.low, rel=1e-6)  # 0 of a single pair
    assert other.two_sided_p_value == found.two_sided_p_value
    assert other.sooner.value == pytest.approx(1 - found.sooner.value)
    assert other.sooner.low == pytest.approx(1 - found.sooner.high)
    assert other.saved.value == pytest.approx(-found.saved.value)


@settings(max_examples=50)
@given(pairs=PAIRS, scale=st.sampled_from([1e-3, 0.5, 3600.0]))
def test_the_unit_of_time_does_not_matter(pairs: list[tuple[float | None, float | None]], scale: float) -> None:
    found, other = compared(pairs), compared(pairs, scale=scale)
    assert other.p_value == found.p_value
    assert other.sooner == found.sooner
    assert other.saved.value == pytest.approx(scale * found.saved.value)
    if found.ratio is not None and other.ratio is not None:
        assert other.ratio.value == pytest.approx(found.ratio.value)
        assert other.ratio.low == pytest.approx(found.ratio.low, rel=1e-6)


@settings(max_examples=50)
@given(pairs=PAIRS, which=st.integers(0, 9), share=st.floats(0.1, 1.0))
def test_a_sooner_run_never_looks_worse(
    pairs: list[tuple[float | None, float | None]], which: int, share: float
) -> None:
    one, two = pairs[which % len(pairs)]
    sooner = list(pairs)
    # Of a run that had not reached the target, any time within the limit.
    sooner[which % len(pairs)] = one, share * (10.0 if two is None else two)
    found, other = compared(pairs), compared(sooner)
    assert other.p_value <= found.p_value
    assert other.saved.value >= found.saved.value or other.horizon != found.horizon


def test_the_interval_of_the_time_saved_holds_with_censoring() -> None:
    generator = np.random.default_rng(0)
    limit, held = 12.0, 0
    draws = 10 * np.exp(0.3 * generator.normal(size=(2, 200_000)))
    truth = float(np.mean(np.minimum(draws[0], limit) - np.minimum(0.8 * draws[1], limit)))
    for _ in range(400):
        before, after = 10 * np.exp(0.3 * generator.normal(size=(2, 8))) * np.array([[1.0], [0.8]])
        saved = compare(before.tolist(), after.tolist(), limit=limit, resamples=1000).saved
        held += saved.low <= truth <= saved.high
    assert held / 400 >= 0.92


def test_placebos_rarely_pay() -> None:
    generator = np.random.default_rng(1)
    accepted = 0
    for _ in range(300):
        before, after = 10 * np.exp(0.15 * generator.normal(size=(2, 8)))
        accepted += compare(before.tolist(), after.tolist(), limit=12.0, **FAST).decide() == Decision.PAYS
    assert accepted / 300 <= 0.05


def test_shares_by_hand() -> None:
    # Of 6 of 6 the lower end solves p^6 = 0.025; of 0 of 4 the upper one solves (1 - p)^4 = 0.025.
    assert share_interval(6, 6).low == pytest.approx(0.025 ** (1 / 6))
    assert share_interval(0, 4).high == pytest.approx(1 - 0.025 ** (1 / 4))
    # Of 1 of 2: 1 - (1 - p)^2 = 0.025, and by symmetry.
    half = share_interval(1, 2)
    assert (half.low, half.high) == pytest.approx((1 - math.sqrt(0.975), math.sqrt(0.975)))
    with pytest.raises(ValueError, match="count must be between 0 and total = 2, but got 3"):
        share_interval(3, 2)


def test_log_ratios_are_zero_where_nothing_is_known() -> None:
    assert log_ratios([4.0, None, None], [2.0, 5.0, None], limit=10.0) == pytest.approx([math.log(2), math.log(2), 0.0])


@pytest.mark.parametrize(
    ("before", "after", "limit", "error", "message"),
    [
        ([], [], None, ValueError, "same number of runs, at least 1; got 0 and 0"),
        ([1.0], [1.0, 2.0], None, ValueError, "got 1 and 2"),
        ([1.0, None], [1.0, 2.0], None, ValueError, r"before\[1\] is None .* so limit must say"),
        ([1.0], [0.0], None, ValueError, r"after\[0\] must be a positive, finite time, but got 0.0"),
        ([math.inf], [1.0], None, ValueError, r"before\[0\] must be a positive, finite time, .* give None and a limit"),
        (["1"], [1.0], None, TypeError, r"before\[0\] must be a number"),
        ([1.0], [1.0], -1.0, ValueError, "limit must be positive and finite, but got -1.0"),
        ([1.0], [1.0], [1.0, 2.0], ValueError, "one for each of 1 pairs, but has 2"),
    ],
)
def test_bad_arguments_are_named(before, after, limit, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        compare(before, after, limit=limit)


def test_arrays_are_times() -> None:
    lists = [10.0, 11.0, 12.0], [8.0, 9.0, 9.5]
    assert compare(*map(np.array, lists), limit=np.array([20.0] * 3)) == compare(*lists, limit=20.0)
    assert log_ratios(*map(torch.tensor, lists)) == pytest.approx(log_ratios(*lists))
