"""The interval of a mean: how often it holds the true mean, its laws, and BCa against values computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer._lazy import MissingConditionalImportError
from composer.statistics._special import special
from composer.statistics.bootstrap import Estimate, bca_ends, mean_interval, resample
from tests.statistics.measure import covered

VALUES = st.lists(st.floats(-3, 3).map(lambda value: round(value, 3)), min_size=2, max_size=12)


@pytest.mark.parametrize("pairs", [6, 8, 12])
def test_the_interval_holds_the_true_mean_in_95_of_100_cases(pairs: int) -> None:
    held = [covered(f"lognormal {spread}", pairs, 400, resamples=500) for spread in ("2 %", "10 %", "30 %")]
    # The standard deviation of the mean of the three is 0.6 %.
    assert 0.93 <= sum(held) / 3 <= 0.97


@pytest.mark.parametrize("noise", ["Student t(3)", "one in 10 disturbed"])
def test_heavy_tails_are_covered(noise: str) -> None:
    assert covered(noise, 6, 600, resamples=500) >= 0.92


def test_plain_bca_would_not_hold() -> None:
    # Without the stretching, six values give an interval of 87 %; this is why there is one.
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        values = np.sort(generator.normal(size=6))
        low, high = bca_ends(values.mean(), resample(values, "mean", 1000, 0), values - values.mean())
        held += low <= 0 <= high
    assert held / 400 < 0.9


@settings(max_examples=30)
@given(values=VALUES, factor=st.floats(0.01, 100), shift=st.floats(-10, 10))
def test_the_interval_follows_scale_and_shift(values: list[float], factor: float, shift: float) -> None:
    plain = mean_interval(values, resamples=200)
    moved = mean_interval([factor * value + shift for value in values], resamples=200)
    for end in ("value", "low", "high"):
        assert getattr(moved, end) == pytest.approx(factor * getattr(plain, end) + shift, rel=1e-6, abs=1e-6 * factor)


@settings(max_examples=30)
@given(values=VALUES, seed=st.integers(0, 100))
def test_negated_values_have_the_negated_interval_in_any_order(values: list[float], seed: int) -> None:
    plain = mean_interval(values, resamples=200, seed=seed)
    mirrored = mean_interval([-value for value in reversed(values)], resamples=200, seed=seed)
    assert mirrored.low == pytest.approx(-plain.high, abs=1e-9)
    assert mirrored.high == pytest.approx(-plain.low, abs=1e-9)
    assert plain.low <= plain.value <= plain.high


def test_bca_against_values_by_hand() -> None:
    # A uniform distribution on [0, 1], 40 % of it below the estimate: z0 = -0.25335, so that without acceleration the
    # ends are at Phi(2 z0 - 1.95996) and Phi(2 z0 + 1.95996).
    uniform = (np.arange(100_000) + 0.5) / 100_000
    low, high = bca_ends(0.4, uniform, np.array([-1.0, 1.0]))
    assert low == pytest.approx(0.006819, abs=2e-5)
    assert high == pytest.approx(0.926923, abs=2e-5)
    # Influences -1, -1, 2 have a = 6 / (6 * 6^1.5) = 0.06804: Phi(-1.95996 / 1.13336), Phi(1.95996 / 0.86664).
    low, high = bca_ends(0.5, uniform, np.array([-1.0, -1.0, 2.0]))
    assert low == pytest.approx(0.041876, abs=2e-5)
    assert high == pytest.approx(0.988135, abs=2e-5)


def test_equal_values_have_an_interval_without_width() -> None:
    estimate = mean_interval([0.1] * 6)
    assert estimate.low == pytest.approx(0.1)
    assert estimate.high == pytest.approx(0.1)


def test_a_single_value_has_no_interval() -> None:
    assert mean_interval([2.0]) == Estimate(2.0, -math.inf, math.inf)
    assert not mean_interval([2.0]).has_interval


def test_many_values_are_resampled_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(5.0)
    whole = resample(values, "median", 50, 0)
    monkeypatch.setattr("composer.statistics.bootstrap._CHUNK", 20)
    assert np.array_equal(np.sort(resample(values, "median", 50, 0)), np.sort(whole))


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ([], ValueError, "values must have at least one value"),
        ([1.0, math.nan], ValueError, r"values\[1\] must be finite, but got nan"),
        ([1.0, "2"], TypeError, r"values\[1\] must be a number, but got '2' of type str"),
        ([True], TypeError, r"values\[0\] must be a number"),
    ],
)
def test_bad_values_are_named(values: list[float], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        mean_interval(values)


def test_without_scipy_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.special", None)
    with pytest.raises(MissingConditionalImportError, match=r"composer-torch\[explore\]"):
        special.__wrapped__()
