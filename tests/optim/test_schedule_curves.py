"""The shapes of schedules, against their laws."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts

from composer.optim import schedule_curves
from tests.optim.schedules import sgd

shares = st.floats(0, 1)
ends = st.floats(0, 1)

FALLING = {
    "linear": lambda fraction, end: schedule_curves.linear(fraction, 1.0, end),
    "cosine": schedule_curves.cosine,
    "polynomial": lambda fraction, end: schedule_curves.polynomial(fraction, 3, end),
    "one_minus_sqrt": schedule_curves.one_minus_sqrt,
}


@pytest.mark.parametrize("name", FALLING)
@given(one=shares, other=shares, end=ends)
def test_falls_from_one_to_the_end(name, one, other, end) -> None:
    curve = FALLING[name]
    assert curve(0.0, end) == pytest.approx(1)
    assert curve(1.0, end) == pytest.approx(end)
    early, late = sorted((one, other))
    assert curve(late, end) <= curve(early, end) + 1e-12


@given(fraction=shares)
def test_known_values(fraction) -> None:
    assert schedule_curves.cosine(fraction) == pytest.approx(math.cos(math.pi * fraction / 2) ** 2, abs=1e-12)
    assert schedule_curves.polynomial(fraction, 1, 0.3) == pytest.approx(schedule_curves.linear(fraction, 1.0, 0.3))
    assert (1 - schedule_curves.one_minus_sqrt(fraction)) ** 2 == pytest.approx(fraction, abs=1e-12)
    assert schedule_curves.linear(fraction, 0.2, 0.8) == pytest.approx(0.2 * (1 - fraction) + 0.8 * fraction)


@given(elapsed=st.floats(0, 1e6), timescale=st.floats(0.1, 1e6))
def test_inverse_square_root(elapsed, timescale) -> None:
    value = schedule_curves.inverse_square_root(elapsed, timescale)
    assert 1 / value**2 == pytest.approx(1 + elapsed / timescale)


@given(stairs=st.integers(0, 20), part=st.floats(0, 0.99), gamma=st.floats(0.1, 2))
def test_staircase_meets_the_exponential_where_stairs_begin(stairs, part, gamma) -> None:
    assert schedule_curves.staircase(stairs * 7, 7, gamma) == pytest.approx(
        schedule_curves.exponential(stairs * 7, 7, gamma)
    )
    assert schedule_curves.staircase((stairs + part) * 8, 8, gamma) == pytest.approx(gamma**stairs)


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_restarts_are_those_of_torch(factor) -> None:
    optimizer = sgd()
    reference, found = CosineAnnealingWarmRestarts(optimizer, 5, factor, eta_min=0.25), []
    for _ in range(60):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        reference.step()
    assert [schedule_curves.restarts(t, 5, factor, 0.25) for t in range(60)] == pytest.approx(found)


def test_restarts_cut_lengths_and_are_quick_where_they_repeat() -> None:
    lengths = [5, 7, 10, 15]  # times 1.5, cut
    begins = [sum(lengths[:k]) for k in range(4)]
    assert [schedule_curves.restarts(t, 5, 1.5) for t in begins] == [1.0] * 4
    assert all(schedule_curves.restarts(t - 1, 5, 1.5) < 0.2 for t in begins[1:])
    assert schedule_curves.restarts(1_000_000_000_001, 2, 1) == pytest.approx(0.5)
    with pytest.raises(ValueError, match="After a period of 1 the next would have length 0"):
        schedule_curves.restarts(15, 8, 0.5)  # 8 + 4 + 2 + 1
    assert schedule_curves.restarts(14, 8, 0.5) == 1.0


def test_curves_take_tensors_of_no_kind() -> None:
    assert all(isinstance(curve(0.5, 0.1), float) for curve in FALLING.values())
    assert not isinstance(schedule_curves.inverse_square_root(1, 1), torch.Tensor)
