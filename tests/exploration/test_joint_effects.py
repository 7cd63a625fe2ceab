from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.exploration.joint_effects import JointEffects
from composer.exploration.variant import TUNED_KINDS
from composer.statistics.paired import Ratio
from tests.exploration.simulation import method, placebos, tuning


@given(st.floats(0.1, 10.0))
def test_the_cost_of_a_step_says_less_the_further_it_is_from_that_of_the_baseline(speed: float) -> None:
    one = method("One")
    mean, deviation = JointEffects([one], {one: Ratio(speed, speed, speed)}).effect(one)
    assert mean == pytest.approx(math.log(speed) / 2 - 0.02)
    assert deviation == pytest.approx(math.hypot(0.2, math.log(speed) / 2))
    # That all of it is gained, or nothing, is possible.
    assert mean - 1.2 * deviation < 0 < mean + 1.2 * deviation or abs(math.log(speed)) < 0.05


@given(st.floats(0.1, 10.0))
def test_what_only_changes_the_speed_of_steps_is_expected_to_gain_it(speed: float) -> None:
    layout = method("Layout", speed_only=True)
    exact = {layout: Ratio(speed, speed, speed)}
    assert JointEffects([layout], exact).effect(layout) == pytest.approx((math.log(speed), 0.1))
    # The less that is known of it, the less it is expected to differ from the baseline.
    noise = 1.96 * 0.3
    noisy = {layout: Ratio(speed, speed * math.exp(-noise), speed * math.exp(noise))}
    expected = (math.log(speed) / 2, math.hypot(0.1, 0.3 / math.sqrt(2)))
    assert JointEffects([layout], noisy).effect(layout) == pytest.approx(expected)
    for unknown in ({}, {layout: Ratio(speed, 0.0, math.inf)}):  # there was no time to measure it, or hardly any
        assert JointEffects([layout], unknown).effect(layout) == pytest.approx((-0.02, 0.2))
    # A metric after equal time says little of how much a speed adds to it.
    other = method("Other")
    effects = JointEffects([layout, other], exact | {other: exact[layout]}, 0.3, speed_is_gain=False)
    assert effects.effect(layout) == effects.effect(other)


def test_a_method_with_fast_steps_that_learns_nothing_is_not_blamed_on_those_it_was_tried_with() -> None:
    resize, layout = method("Resize"), method("Layout")
    effects = JointEffects([resize, layout, *placebos(6)], {resize: Ratio(2.0, 1.9, 2.1), layout: Ratio(1.4, 1.3, 1.5)})
    for one in placebos(4):
        effects.add([resize, layout, one], -1.4, 0.2)
    effects.add([layout], 0.3, 0.2)
    assert effects.effect(resize)[0] < -0.8
    assert effects.effect(layout)[0] > 0.0
    assert layout in effects.best()
    assert resize not in effects.best()


def test_a_method_with_dear_steps_is_tried_as_well() -> None:
    warmup, bias = method("Warmup"), method("Bias")
    for order in range(8):
        others = placebos(10)
        factors = [*others[:order], bias, *others[order:], warmup, *tuning()]
        effects = JointEffects(factors, {warmup: Ratio(4.5, 4.0, 5.0), bias: Ratio(0.8, 0.7, 0.9)})
        for _ in range(12):
            effects.add([one for one in effects.propose() if one.kind not in TUNED_KINDS], 0.0, 0.2)
        assert effects.counts[bias] >= 1
