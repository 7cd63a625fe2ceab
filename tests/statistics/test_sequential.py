"""The group-sequential test: how many placebos it accepts, by enumeration and by simulation, and its power."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.statistics.sequential import LookAction, SequentialTest, spent_alpha
from tests.statistics.measure import raced


@settings(max_examples=15)
@given(
    sizes=st.lists(st.integers(0, 6), min_size=7, max_size=7),
    alpha=st.sampled_from([0.05, 0.2, 0.3]),
    spending=st.sampled_from(["pocock", "obrien-fleming"]),
)
def test_of_all_combinations_of_signs_at_most_alpha_are_accepted(sizes: list[int], alpha: float, spending: str) -> None:
    # Given the sizes, a placebo has each combination of signs with the same probability, so this is a proof for them.
    test = SequentialTest(looks=(3, 5, 7), alpha=alpha, spending=spending, futility=0.0)
    accepted = 0
    for signs in itertools.product((1, -1), repeat=7):
        logs = [sign * size for sign, size in zip(signs, sizes, strict=True)]
        # The last look repeats the earlier ones, and says whether any accepted.
        accepted += test.look(logs).action == LookAction.ACCEPT
    assert accepted <= alpha * 2**7


@pytest.mark.parametrize("spending", ["pocock", "obrien-fleming"])
def test_of_placebos_at_most_alpha_are_accepted_over_all_looks(spending: str) -> None:
    generator = np.random.default_rng(0)
    test = SequentialTest(looks=(6, 8, 10), spending=spending)
    logs = 0.1 * generator.normal(size=(4000, 10))
    share = sum(test.look(one.tolist()).action == LookAction.ACCEPT for one in logs) / 4000
    assert 0.035 <= share <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / 4000)


def test_looking_without_correction_would_accept_more() -> None:
    generator = np.random.default_rng(0)
    tests = [SequentialTest(looks=(number,)) for number in (6, 8, 10)]
    accepted = 0
    for logs in generator.normal(size=(500, 10)):
        accepted += any(test.look(logs[: test.looks[0]].tolist()).action == LookAction.ACCEPT for test in tests)
    assert accepted / 500 > 0.07


@pytest.mark.parametrize(
    ("gain", "spread", "least", "most_pairs"),
    [(0.1, 0.05, 0.99, 7.5), (0.1, 0.15, 0.5, 10.5), (0.3, 0.05, 1.0, 6.0), (0.3, 0.15, 0.99, 7.5)],
)
def test_power(gain: float, spread: float, least: float, most_pairs: float) -> None:
    share, pairs = raced(SequentialTest(), gain, spread, experiments=200)
    assert share >= least
    assert pairs <= most_pairs


def test_most_placebos_stop_early() -> None:
    share, pairs = raced(SequentialTest(), 0.0, 0.1, experiments=300)
    assert share <= 0.08
    assert pairs < 8.5


def test_the_first_look_by_hand() -> None:
    # Half of alpha(t) = 0.05 log(1 + (e - 1) / 2) = 0.031 is one of 64 combinations of signs: all positive.
    test = SequentialTest(looks=(6, 12))
    assert test.look([0.1, 0.2, 0.3, 0.1, 0.2, 0.1]).action == LookAction.ACCEPT
    assert test.look([0.1, 0.2, 0.3, 0.1, 0.2, -0.1]).action == LookAction.CONTINUE
    assert test.look([0.1, 0.2, 0.3, 0.1, 0.2, 0.1]).p_value == 1 / 64
    # O'Brien and Fleming's 0.0056 is less than 1/64.
    careful = SequentialTest(looks=(6, 12), spending="obrien-fleming")
    assert careful.look([0.1, 0.2, 0.3, 0.1, 0.2, 0.1]).action == LookAction.CONTINUE


def test_what_was_accepted_stays_accepted() -> None:
    test = SequentialTest(looks=(6, 8))
    logs = [0.1, 0.2, 0.3, 0.1, 0.2, 0.1]
    assert test.look(logs).action == LookAction.ACCEPT
    assert test.look([*logs, -1.0, -1.0]).action == LookAction.ACCEPT


def test_more_pairs_than_are_enumerated() -> None:
    generator = np.random.default_rng(0)
    test = SequentialTest(looks=(6, 12, 18), seed=3)
    assert test.look((0.2 + 0.1 * generator.normal(size=18)).tolist()).action == LookAction.ACCEPT
    assert test.look((-0.2 + 0.1 * generator.normal(size=18)).tolist()).action == LookAction.STOP
    # Enumerated and random combinations give almost the same p-value.
    logs = (0.03 + 0.1 * generator.normal(size=12)).tolist()
    exact = SequentialTest(looks=(6, 12)).look(logs).p_value
    assert test.look(logs).p_value == pytest.approx(exact, abs=0.005)


def test_pairs_that_tell_nothing_are_not_accepted() -> None:
    assert SequentialTest(looks=(6, 8)).look([0.0] * 8).action == LookAction.STOP


@pytest.mark.parametrize("spending", ["pocock", "obrien-fleming"])
def test_spending_grows_to_alpha(spending: str) -> None:
    spent = [spent_alpha(step / 20, 0.05, spending) for step in range(21)]
    assert spent[0] == 0.0
    assert all(one <= two for one, two in itertools.pairwise(spent))
    assert spent[-1] == pytest.approx(0.05)


def test_spending_by_hand() -> None:
    # Lan and DeMets: 2 - 2 Phi(1.95996 / sqrt(0.5)) = 2 - 2 Phi(2.77181), and 0.05 log(1 + 0.85914).
    assert spent_alpha(0.5, 0.05, "obrien-fleming") == pytest.approx(0.005575, abs=2e-6)
    assert spent_alpha(0.5, 0.05, "pocock") == pytest.approx(0.031006, abs=2e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"looks": (6, 6)}, "looks must be ascending"),
        ({"looks": ()}, "looks must be ascending"),
        ({"looks": (1, 6)}, "looks must be at least 2, but got 1"),
        ({"alpha": 0.0}, "alpha must be between 0 and 1"),
        ({"spending": "pocok"}, "Did you mean 'pocock'"),
        ({"futility": 2.0}, "futility must be between 0 and 1"),
    ],
)
def test_bad_plans_are_an_error(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SequentialTest(**arguments)


def test_a_look_that_was_not_planned_is_an_error() -> None:
    with pytest.raises(ValueError, match="the number of logs must be one of 6, 8, 10, 12, but got 7"):
        SequentialTest().look([0.1] * 7)
