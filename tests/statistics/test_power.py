"""What a number of pairs can tell: against simulated sign-flip tests, and its laws."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.statistics.power import pair_spread, pairs_needed, power_of, prospect, smallest_gain


def simulated(gain: float, pairs: int, spread: float, alpha: float) -> float:
    """The share of sign-flip tests that find a gain."""
    logs = math.log1p(gain) + spread * np.random.default_rng([1, pairs]).normal(size=(3000, pairs))
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=pairs)))
    sums = logs @ signs.T
    return float(np.mean(np.mean(sums >= sums[:, :1] - 1e-9, axis=1) <= alpha))


@pytest.mark.parametrize("pairs", [6, 8, 10])
@pytest.mark.parametrize(("spread", "alpha"), [(0.05, 0.05), (0.2, 0.02)])
def test_the_smallest_gain_is_found_with_the_power_that_is_said(pairs: int, spread: float, alpha: float) -> None:
    gain = smallest_gain(pairs, spread, power=0.8, alpha=alpha)
    assert simulated(gain, pairs, spread, alpha) == pytest.approx(0.8, abs=0.03)


@given(pairs=st.integers(6, 40), spread=st.floats(0.001, 1), power=st.floats(0.3, 0.99))
def test_gain_and_power_are_inverse(pairs: int, spread: float, power: float) -> None:
    gain = smallest_gain(pairs, spread, power)
    assert power_of(gain, pairs, spread) == pytest.approx(power, abs=1e-3)


@given(pairs=st.integers(6, 30), spread=st.floats(0.01, 0.5), gain=st.floats(0.0, 1.0))
def test_larger_gains_and_less_noise_are_easier(pairs: int, spread: float, gain: float) -> None:
    power = power_of(gain, pairs, spread)
    assert 0 <= power <= 1
    assert power_of(gain + 0.05, pairs, spread) >= power - 1e-9
    assert power_of(gain, pairs, spread / 2) >= power - 1e-9
    assert smallest_gain(pairs, 2 * spread) > smallest_gain(pairs, spread)


def test_enough_pairs_are_enough_and_one_less_is_not() -> None:
    needed = pairs_needed(0.1, spread=0.15)
    assert needed is not None
    assert power_of(0.1, needed, 0.15) >= 0.8 > power_of(0.1, needed - 1, 0.15)
    assert pairs_needed(0.001, spread=0.5, max_pairs=50) is None


def test_too_few_pairs_can_tell_nothing() -> None:
    # The smallest p-value of four pairs is 1/16.
    assert smallest_gain(4, 0.001) == math.inf
    assert power_of(100.0, 4, 0.001) == 0.0
    assert not prospect(4, 0.001).is_possible(1e9)
    # 6 pairs and 5 methods: 1/64 is more than 0.01; 7 pairs are enough.
    assert math.isinf(prospect(6, 0.1, methods=5).smallest_gain)
    assert "at least 7 pairs" in str(prospect(6, 0.1, methods=5))
    assert prospect(7, 0.1, methods=5).smallest_gain < 1


def test_power_without_a_gain_is_alpha() -> None:
    assert power_of(0.0, 8, 0.1, alpha=0.0625) == pytest.approx(0.0625, abs=0.01)
    assert power_of(0.0, 20, 0.1, alpha=0.0625) == pytest.approx(0.0625)


def test_all_pairs_must_be_faster_by_hand() -> None:
    # One combination of 64 is at most 0.02: all six log ratios must be positive, with the probability Phi(2)^6.
    assert power_of(math.expm1(0.1), 6, 0.05, alpha=0.02) == pytest.approx(0.977250**6, abs=0.02)


def test_simulation_and_approximation_meet() -> None:
    assert smallest_gain(13, 0.1) < smallest_gain(12, 0.1)
    assert smallest_gain(13, 0.1) == pytest.approx(smallest_gain(12, 0.1), rel=0.08)


def test_the_spread_by_hand() -> None:
    # sqrt((9 + 16) / 2), and chi-square with 2 degrees of freedom has the quantiles -2 log(1 - p).
    found = pair_spread([3.0, -4.0])
    assert found.value == pytest.approx(math.sqrt(12.5))
    assert found.low == pytest.approx(5 / math.sqrt(-2 * math.log(0.025)))
    assert found.high == pytest.approx(5 / math.sqrt(-2 * math.log(0.975)))


def test_the_interval_of_the_spread_holds() -> None:
    found = [pair_spread(one.tolist()) for one in 0.1 * np.random.default_rng(0).normal(size=(1000, 6))]
    assert sum(one.low <= 0.1 <= one.high for one in found) / 1000 == pytest.approx(0.95, abs=0.02)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: smallest_gain(1, 0.1), "num_pairs must be at least 2, but got 1"),
        (lambda: smallest_gain(6, 0.0), "spread must be greater than 0"),
        (lambda: smallest_gain(6, 0.1, power=1.0), "power must be between 0 and 1"),
        (lambda: power_of(-0.1, 6, 0.1), "gain must be 0 or greater"),
        (lambda: prospect(6, 0.1, methods=0), "methods must be at least 1"),
    ],
)
def test_bad_arguments_are_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
