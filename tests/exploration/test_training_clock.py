"""The clock of a run: what counts as training, and what as its start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.exploration.training_clock import TrainingClock


def clock_of(laps: list[float], evaluate_after: int = 0) -> TrainingClock:
    """A clock of steps, with an evaluation of an hour after one of them."""
    now = [0.0]
    clock = TrainingClock(lambda: now[0])
    clock.resume()
    for number, lap in enumerate(laps, 1):
        now[0] += lap
        clock.end_step()
        if number == evaluate_after:
            clock.pause()
            now[0] += 3600
            clock.note(number, number * 8, 0.5)
            clock.resume()
    return clock


def test_evaluations_do_not_count_and_the_start_is_apart() -> None:
    clock = clock_of([10.0, 3.0, *([1.0] * 18)], evaluate_after=15)
    assert clock.startup == 11
    assert clock.seconds == 20
    assert [(one.seconds, one.batch, one.samples) for one in clock.evaluations] == [(15, 15, 120)]


@pytest.mark.parametrize("after", [1, 2, 3, 12])
def test_an_evaluation_in_the_first_steps_is_between_them(after: int) -> None:
    clock = clock_of([10.0, *([1.0] * 19)], evaluate_after=after)
    assert 0 < clock.evaluations[0].seconds <= after + 5


@given(st.lists(st.floats(1e-3, 10), min_size=1, max_size=40), st.integers(1, 40))
def test_a_clock_goes_on_as_if_it_had_not_stopped(laps: list[float], at: int) -> None:
    """Seconds and start add up to the time of all steps, however often a run is continued."""
    at = min(at, len(laps))
    first = clock_of(laps[:at], evaluate_after=at)
    assert first.seconds + first.startup == pytest.approx(sum(laps[:at]))
    second = clock_of(laps[at:], evaluate_after=1)
    before = second.to_json()
    second.go_on(first.to_json())
    assert second.seconds == pytest.approx(first.seconds + before["seconds"])
    assert second.startup == pytest.approx(first.startup + before["startup"])
    assert [one.seconds for one in second.evaluations] == sorted(one.seconds for one in second.evaluations)
    assert second.evaluations[: len(first.evaluations)] == first.evaluations
