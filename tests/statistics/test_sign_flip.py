"""The sign-flip test against enumerations by hand, its laws, and its random form against the exact one."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.statistics.sign_flip import SignFlipTest, sign_flip_test

DIFFERENCES = st.lists(st.integers(-8, 8).map(float), min_size=1, max_size=8)


def enumerated(values: list[float]) -> SignFlipTest:
    """The same by the definition, in exact arithmetic of integers."""
    observed = sum(values)
    sums = [
        sum(sign * value for sign, value in zip(signs, values, strict=True))
        for signs in itertools.product((1, -1), repeat=len(values))
    ]
    shares = [
        sum(total >= observed for total in sums),
        sum(total <= observed for total in sums),
        sum(abs(total) >= abs(observed) for total in sums),
    ]
    return SignFlipTest(*(share / len(sums) for share in shares), exact=True)


def test_by_hand() -> None:
    assert sign_flip_test([1.0, 2.0, 3.0]) == SignFlipTest(1 / 8, 1.0, 2 / 8, exact=True)
    # The sums of 2 and -1 are 1, 3, -3, -1.
    assert sign_flip_test([2.0, -1.0]) == SignFlipTest(2 / 4, 3 / 4, 1.0, exact=True)


@given(values=DIFFERENCES, scale=st.sampled_from([1.0, 0.1, 1e-9, 3e7]))
def test_the_exact_test_is_the_enumeration_at_any_scale(values: list[float], scale: float) -> None:
    assert sign_flip_test([scale * value for value in values]) == enumerated(values)


@given(values=DIFFERENCES)
def test_negated_differences_swap_the_sides(values: list[float]) -> None:
    found, mirrored = sign_flip_test(values), sign_flip_test([-value for value in values])
    assert (mirrored.greater, mirrored.less, mirrored.two_sided) == (found.less, found.greater, found.two_sided)


@given(values=DIFFERENCES, more=st.integers(0, 9), which=st.integers(0, 7))
def test_a_larger_difference_never_has_a_larger_p_value(values: list[float], more: int, which: int) -> None:
    larger = list(values)
    larger[which % len(values)] += more
    assert sign_flip_test(larger).greater <= sign_flip_test(values).greater


def test_the_random_form_agrees_with_the_enumeration() -> None:
    values = (np.random.default_rng(3).normal(size=17) + 0.7).tolist()
    found = sign_flip_test(values)
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate((sums + value, sums - value))
    truth = float(np.mean(sums >= sum(values) - 1e-9))
    assert not found.exact
    assert 0.01 < truth < 0.2
    assert found.greater == pytest.approx(truth, abs=4 * math.sqrt(truth / 100_000))


def test_the_random_form_is_never_zero() -> None:
    found = sign_flip_test([1.0] * 60)
    assert found.greater == 1 / 100_000
    assert found.two_sided == 1 / 100_000


def test_many_more_pairs_than_usual_are_no_problem() -> None:
    assert 0.1 < sign_flip_test(np.random.default_rng(1).normal(size=200).tolist()).two_sided <= 1


@pytest.mark.parametrize("values", [[], [math.inf]])
def test_bad_differences_are_an_error(values: list[float]) -> None:
    with pytest.raises(ValueError, match="differences"):
        sign_flip_test(values)
