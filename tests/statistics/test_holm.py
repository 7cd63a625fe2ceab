"""Holm's adjusted p-values by hand and by its laws; when a method pays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.statistics.holm import Decision, decide, holm_adjusted
from composer.statistics.paired import Ratio

P_VALUES = st.lists(st.floats(0, 1), max_size=12)


def test_by_hand() -> None:
    # In order 0.01, 0.02, 0.03, 0.5: times 4, 3, 2, 1, and the running maximum.
    assert holm_adjusted([0.03, 0.01, 0.5, 0.02]) == pytest.approx([0.06, 0.04, 0.5, 0.06])
    assert holm_adjusted([0.9, 0.8]) == [1.0, 1.0]
    assert holm_adjusted([]) == []


@given(p_values=P_VALUES)
def test_adjusted_values_keep_the_order_and_lie_between_the_value_and_bonferronis(p_values: list[float]) -> None:
    adjusted = holm_adjusted(p_values)
    for one, after in zip(p_values, adjusted, strict=True):
        assert one <= after <= min(1.0, len(p_values) * one) or after == pytest.approx(len(p_values) * one)
    order = np.argsort(p_values, kind="stable")
    assert all(np.diff(np.array(adjusted)[order]) >= 0)


@given(p_values=P_VALUES, which=st.integers(0, 11), less=st.floats(0, 1))
def test_a_smaller_p_value_never_raises_any(p_values: list[float], which: int, less: float) -> None:
    if p_values:
        smaller = list(p_values)
        smaller[which % len(p_values)] *= less
        assert all(one <= two for one, two in zip(holm_adjusted(smaller), holm_adjusted(p_values), strict=True))


def test_false_rejections_among_all_tests_are_at_most_alpha() -> None:
    generator = np.random.default_rng(0)
    # Eight tests without effect, whose p-values depend on each other, and two with a strong one.
    rejected = 0
    for _ in range(2000):
        common = generator.random()
        placebos = np.where(generator.random(8) < 0.5, common, generator.random(8))
        rejected += min(holm_adjusted([*placebos.tolist(), 1e-6, 1e-5])[:8]) <= 0.05
    assert 0.01 < rejected / 2000 <= 0.05


@pytest.mark.parametrize("p_values", [[0.1, 1.5], [-0.1], [float("nan")]])
def test_what_is_no_p_value_is_an_error(p_values: list[float]) -> None:
    with pytest.raises(ValueError, match=r"p_values\[\d\] must be between 0 and 1"):
        holm_adjusted(p_values)


@pytest.mark.parametrize(
    ("ratio", "p_value", "more_reached", "expected"),
    [
        (Ratio(1.3, 1.2, 1.4), 0.01, 0, Decision.PAYS),
        (Ratio(1.3, 1.2, 1.4), 0.06, 0, Decision.UNDECIDED),  # not significant among all methods
        (Ratio(1.3, 0.99, 1.6), 0.01, 0, Decision.UNDECIDED),
        (Ratio(1.02, 1.01, 1.05), 0.01, 0, Decision.UNDECIDED),  # there is a gain, but hardly one of interest
        (Ratio(1.01, 1.005, 1.02), 0.01, 0, Decision.DOES_NOT),  # certainly too small
        (Ratio(0.9, 0.8, 1.0), 0.99, 0, Decision.DOES_NOT),
        (Ratio(0.9, 0.7, 1.1), 0.99, 0, Decision.UNDECIDED),
        (Ratio(1.3, 1.2, 1.4), 0.01, -1, Decision.UNDECIDED),  # faster where it gets there, which it does less often
        (Ratio(0.9, 0.8, 1.0), 0.99, 1, Decision.UNDECIDED),  # it gets there more often: faster than the ratio says
        (None, 1.0, 0, Decision.UNDECIDED),
    ],
)
def test_decisions(ratio: Ratio | None, p_value: float, more_reached: int, expected: Decision) -> None:
    assert decide(ratio, p_value, more_reached=more_reached) == expected


def test_the_smallest_effect_of_interest_and_alpha_are_choices() -> None:
    assert decide(Ratio(1.08, 1.05, 1.09), 0.01, smallest_effect=0.1) == Decision.DOES_NOT
    assert decide(Ratio(1.3, 1.2, 1.4), 0.01, alpha=0.001) == Decision.UNDECIDED


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="alpha must be between 0 and 1"):
        decide(None, 0.5, alpha=1.0)
    with pytest.raises(ValueError, match="smallest_effect must be 0 or greater"):
        decide(None, 0.5, smallest_effect=-0.1)
