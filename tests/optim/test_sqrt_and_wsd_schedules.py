"""The schedules of large runs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.optim.scheduler import InverseSquareRootScheduler, OneMinusSqrtScheduler, WarmupStableDecayScheduler
from composer.warnings import ComposerWarning
from tests.optim.schedules import rates, state_of

COOLDOWNS = {
    "linear": lambda s: 1 - s,
    "sqrt": lambda s: 1 - math.sqrt(s),
    "cosine": lambda s: (1 + math.cos(math.pi * s)) / 2,
}


def test_one_minus_sqrt() -> None:
    found = rates(OneMinusSqrtScheduler(alpha_f=0.1), state_of("20ba"), 20)
    assert found == pytest.approx([0.1 + 0.9 * (1 - math.sqrt(k / 20)) for k in range(20)])


@given(warmup=st.integers(1, 50), total=st.integers(51, 200))
def test_inverse_square_root_is_that_of_the_first_transformers(warmup, total) -> None:
    found = InverseSquareRootScheduler(f"{warmup}ba").preview(f"{total}ba")
    assert found[1:] == pytest.approx([min(k / warmup, math.sqrt(warmup / k)) for k in range(1, total + 1)])
    assert found[0] == 0


def test_inverse_square_root_with_a_timescale() -> None:
    found = InverseSquareRootScheduler("0ba", timescale="10ba").preview("30ba")
    assert found == pytest.approx([math.sqrt(10 / (10 + k)) for k in range(31)])
    late = InverseSquareRootScheduler("5ba", timescale="10ba").preview("35ba")
    assert late[5:] == pytest.approx(found)
    scaled = InverseSquareRootScheduler("10ba", scale_warmup=True).preview("20ba", ssr=0.5)
    assert scaled == InverseSquareRootScheduler("5ba").preview("20ba")


def test_inverse_square_root_needs_a_timescale() -> None:
    with pytest.raises(ValueError, match="timescale is required with t_warmup='0ba'"):
        InverseSquareRootScheduler("0ba")
    with pytest.raises(ValueError, match=r"t_warmup='2ba' is counted in 'ba' and timescale='5tok' in 'tok'"):
        InverseSquareRootScheduler("2ba", timescale="5tok").preview("9ba")
    with pytest.raises(ValueError, match="timescale is less than one batch"):
        InverseSquareRootScheduler("0ba", timescale="0.1dur").preview("9ba")


@pytest.mark.parametrize("decay", COOLDOWNS)
def test_warmup_stable_decay(decay) -> None:
    schedule = WarmupStableDecayScheduler("4ba", "0.25dur", decay, alpha_f=0.1)
    shape = COOLDOWNS[decay]
    expected = [k / 4 for k in range(4)] + [1.0] * 11 + [0.1 + 0.9 * shape(k / 5) for k in range(5)]
    assert rates(schedule, state_of("20ba"), 20) == pytest.approx(expected)
    assert schedule.preview("20ba")[-1] == pytest.approx(0.1)


def test_it_can_be_branched_from_any_checkpoint_of_the_stable_phase() -> None:
    schedule = WarmupStableDecayScheduler("4ba", "6ba")
    long = schedule.preview("100ba")
    for branch in (4, 20, 60):
        short = schedule.preview(f"{branch + 6}ba")
        assert short[: branch + 1] == long[: branch + 1]
        assert short[branch:] == long[94:]


@pytest.mark.parametrize("t_max", ["1dur", "30ba"])
def test_the_cooldown_is_counted_back_from_the_end(t_max) -> None:
    found = WarmupStableDecayScheduler("0ba", "10ba", "linear", t_max=t_max).preview("30ba")
    assert found == pytest.approx([1.0] * 20 + [1 - k / 10 for k in range(11)])


def test_ratios() -> None:
    schedule = WarmupStableDecayScheduler("4ba", "8ba", "linear", scale_warmup=True)
    assert schedule.preview("10ba", ssr=0.5) == WarmupStableDecayScheduler("2ba", "4ba", "linear").preview("10ba")
    assert WarmupStableDecayScheduler("4ba", "8ba").preview("10ba", ssr=0.5)[:4] == [0, 0.25, 0.5, 0.75]


def test_what_does_not_fit() -> None:
    with pytest.warns(ComposerWarning, match=r"t_warmup='2ba' \(2ba\) and t_decay='10ba' \(10ba\) are together"):
        found = WarmupStableDecayScheduler("2ba", "10ba", "linear").preview("6ba")
    assert found == pytest.approx([0, 0.5, 1, 0.75, 0.5, 0.25, 0])
    assert len(WarmupStableDecayScheduler("5ba", "0.5dur").preview("10ba")) == 11
    with pytest.raises(ValueError, match=r"'ba', t_decay='5tok' in 'tok' and t_max='1.0dur' in 'ba' in this run"):
        WarmupStableDecayScheduler("6ba", "5tok").preview("10ba")
    with pytest.raises(ValueError, match=r"decay must be one of 'linear', 'sqrt', 'cosine', but got 'cosin'"):
        WarmupStableDecayScheduler("6ba", decay="cosin")
    with pytest.warns(ComposerWarning, match="longer than the run of 10ba|are together longer"):
        assert WarmupStableDecayScheduler("20ba").preview("10ba") == pytest.approx([k / 20 for k in range(11)])
