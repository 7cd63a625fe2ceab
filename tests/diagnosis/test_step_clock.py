"""The clock of a step: parts without overlaps or gaps."""

from __future__ import annotations

import pytest

from composer.diagnosis.step_clock import StepClock


class Ticks:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def ticks() -> Ticks:
    return Ticks()


def test_a_part_within_another_stops_it(ticks: Ticks) -> None:
    clock = StepClock(ticks)
    for part, now in (("forward", 1.0), ("method", 3.0)):
        ticks.now = now
        clock.enter(part)
    ticks.now = 7.0
    clock.leave()
    assert clock.part == "forward"
    ticks.now = 8.0
    clock.end_step()
    assert clock.steps == [{"rest": 1.0, "forward": 3.0, "method": 4.0}]


def test_a_part_goes_on_in_the_next_step(ticks: Ticks) -> None:
    clock = StepClock(ticks)
    clock.enter("data")
    ticks.now = 1.0
    clock.end_step()
    ticks.now = 3.0
    clock.end_step()
    assert clock.steps[1] == {"data": 2.0}


def test_leaving_more_than_was_entered_is_harmless(ticks: Ticks) -> None:
    clock = StepClock(ticks)
    clock.leave()
    clock.leave()
    assert clock.part == "rest"


def test_a_part_takes_the_place_of_another(ticks: Ticks) -> None:
    clock = StepClock(ticks)
    clock.enter("forward")
    ticks.now = 2.0
    clock.switch("loss")
    ticks.now = 3.0
    clock.leave()
    clock.end_step()
    assert clock.steps == [{"rest": 0.0, "forward": 2.0, "loss": 1.0}]


def test_restarting_forgets_the_time_since_the_last_step(ticks: Ticks) -> None:
    clock = StepClock(ticks)
    clock.enter("forward")
    ticks.now = 5.0
    clock.restart()
    ticks.now = 6.0
    clock.end_step()
    assert clock.steps == [{"rest": 1.0}]


def test_leaving_all_parts_keeps_their_time(ticks: Ticks) -> None:
    clock = StepClock(ticks)
    clock.enter("forward")
    clock.enter("method")
    ticks.now = 2.0
    clock.leave_all()
    assert clock.part == "rest"
    clock.end_step()
    assert clock.steps == [{"rest": 0.0, "forward": 0.0, "method": 2.0}]


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        (2.0, {"rest": 0.0, "backward": 2.0, "communication": 3.0}),
        (-1.0, {"rest": 0.0, "backward": 0.0, "communication": 5.0}),  # time that is counted is not counted again
        (9.0, {"rest": 0.0, "backward": 5.0, "communication": 0.0}),
    ],
)
def test_the_end_of_a_part_is_that_of_another(ticks: Ticks, since: float, expected: dict[str, float]) -> None:
    clock = StepClock(ticks)
    clock.enter("backward")
    ticks.now = 5.0
    clock.split("communication", since)
    clock.leave()
    clock.end_step()
    assert clock.steps == [expected]


def test_the_cost_of_the_clock_is_left_out() -> None:
    """Each look at the time takes a second: parts have their own seconds only, whatever the number of changes."""
    now = [0.0]

    def slow() -> float:
        now[0] += 0.5
        read = now[0]
        now[0] += 0.5
        return read

    clock = StepClock(slow)
    clock.cost = 1.0
    now[0] += 0.5
    clock.restart()
    for _ in range(100):
        clock.enter("forward")
        now[0] += 0.25
        clock.enter("method")
        clock.leave()
        clock.leave()
    clock.end_step()
    assert clock.steps == [{"rest": 0.0, "forward": 25.0, "method": 0.0}]
    assert clock.costs == [401.0]  # 400 changes, and the end of the step
    clock.end_step()
    assert clock.steps[-1] == {"rest": 0.0}
    assert clock.costs[-1] == 1.0
