"""What the clock of a step costs."""

from __future__ import annotations

import time

import pytest

from composer.diagnosis.clock_cost import seconds_per_change
from composer.diagnosis.step_clock import StepClock
from tests.diagnosis.test_step_timer import split


def test_a_slower_clock_costs_more(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = seconds_per_change()
    advance = StepClock._advance

    def slow(self: StepClock) -> None:
        end = time.perf_counter() + 1e-4
        while time.perf_counter() < end:
            pass
        advance(self)

    monkeypatch.setattr(StepClock, "_advance", slow)
    assert seconds_per_change() > max(0.9e-4, 5 * fast)  # a computer that does other things takes longer


def test_parts_and_the_cost_of_the_clock_are_the_wall_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: list[StepClock] = []
    init = StepClock.__init__

    def noted(self: StepClock) -> None:
        init(self)
        self.cost = 2e-6
        clocks.append(self)

    monkeypatch.setattr(StepClock, "__init__", noted)
    excesses: list[float] = []
    for _ in range(10):  # another program may interrupt this one between the two clocks, but not each time
        parts, wall = split(steps=6)
        left_out = sum(clocks[-1].costs[-6:]) / 6
        assert 20e-6 < left_out < 100e-6  # of about 22 changes
        excesses.append(abs(sum(parts.values()) + left_out - wall) / wall)
    assert min(excesses) < 0.02
