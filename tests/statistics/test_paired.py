"""The interval of paired ratios: how often it holds the true ratio, and what it is insensitive to."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.statistics.paired import Ratio, paired_ratio

SAMPLES = 400


def times(
    choice: random.Random, rounds: int, ratio: float, noise: float, load: float
) -> tuple[list[float], list[float]]:
    """Paired times: another load in each round, which hits both, and noise of each."""
    before: list[float] = []
    after: list[float] = []
    for _ in range(rounds):
        common = math.exp(choice.gauss(0, load))
        before.append(common * ratio * math.exp(choice.gauss(0, noise)))
        after.append(common * math.exp(choice.gauss(0, noise)))
    return before, after


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10**6),
    rounds=st.integers(3, 30),
    ratio=st.floats(0.5, 4.0),
    noise=st.floats(0.002, 0.2),
    load=st.floats(0.0, 0.8),
)
def test_the_interval_holds_the_true_ratio_in_95_of_100_cases(
    seed: int, rounds: int, ratio: float, noise: float, load: float
) -> None:
    choice = random.Random(seed)
    found = [paired_ratio(*times(choice, rounds, ratio, noise, load)) for _ in range(SAMPLES)]
    held = sum(one.low <= ratio <= one.high for one in found) / SAMPLES
    assert 0.9 <= held <= 0.99  # four standard deviations of the 95 % are 4.4 %
    center = sum(math.log(one.value / ratio) for one in found) / SAMPLES
    assert abs(center) < 5 * noise * math.sqrt(2.2 / rounds / SAMPLES)  # no bias


def test_rounds_that_other_programs_disturbed_are_left_out() -> None:
    choice = random.Random(0)
    before, after = times(choice, 16, 1.5, 0.01, 0.0)
    after[3] *= 10
    before[9] *= 10
    ratio = paired_ratio(before, after)
    assert ratio.value == pytest.approx(1.5, rel=0.02)
    assert ratio.high / ratio.low < 1.05


def test_the_mean_of_the_steps_counts_not_their_median() -> None:
    # Every third block has an evaluation, with and without the change.
    before, after = [2.0, 2.0, 8.0] * 2, [1.0, 1.0, 7.0] * 2
    logs = [math.log(2), math.log(2), math.log(8 / 7)] * 2
    assert paired_ratio(before, after).value == pytest.approx(math.exp(sum(logs) / 6))


def test_equal_pairs_have_an_interval_without_width() -> None:
    assert paired_ratio([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == Ratio(*[pytest.approx(2.0)] * 3)


@pytest.mark.parametrize(("before", "after"), [([], []), ([1.0], [1.0]), ([1.0, 2.0], [1.0])])
def test_too_few_pairs_are_an_error(before: list[float], after: list[float]) -> None:
    with pytest.raises(ValueError, match="same number of blocks, at least 2"):
        paired_ratio(before, after)


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ([1.0, 0.0], "positive seconds, but has 0.0"),
        ([1.0, -2.0], "has -2.0"),
        ([1.0, math.nan], r"after\[1\] must be finite"),
    ],
)
def test_times_must_be_positive(after: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired_ratio([1.0, 2.0], after)
