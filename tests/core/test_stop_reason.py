"""The stop reason: the caller that ended a run, and when the state keeps it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer import Algorithm, Callback, Engine
from composer.core import State
from composer.core.stop_reason import Stop, caller_of_stop


def made(*callbacks: Callback, algorithms: Any = ()) -> State:
    return State(torch.nn.Linear(1, 1), max_duration="9ep", callbacks=callbacks, algorithms=algorithms)


def stop_run(state: State) -> None:
    state.stop_training(reason="a helper says so")


class ByHelper(Callback):
    def epoch_end(this, state, logger):  # noqa: N805
        stop_run(state)


class ByEvent(Callback):
    def run_event(self, event, state, logger):
        if event == "epoch_end":
            [stop_run(each) for each in (state,)]


class ByMatch(Algorithm):
    def match(self, event, state):
        return event == "epoch_end"

    def apply(self, event, state, logger):
        (lambda: stop_run(state))()


@pytest.mark.parametrize("kind", [ByHelper, ByEvent, ByMatch])
def test_the_caller_is_found_through_helpers(kind) -> None:
    one = kind()
    state = made(algorithms=one) if isinstance(one, Algorithm) else made(Callback(), one)
    Engine(state).run_event("epoch_end")
    assert state.stop == Stop(kind.__name__, "a helper says so")
    assert state.finished


def test_other_callers_are_the_script() -> None:
    state = made()
    ByHelper().epoch_end(state, None)
    assert str(state.stop) == "stopped by the script: a helper says so"
    assert caller_of_stop(state) == "the script"
    assert str(Stop("Mine")) == "stopped by Mine"


def test_first_reason_is_kept_and_cleared_after_the_run() -> None:
    state = made()
    state.stop_training(reason="first")
    state.stop_training(reason="second")
    assert state.stop is not None
    assert state.stop.reason == "first"
    state = made()
    state.max_duration = "0ba"
    state.stop_training()
    assert state.stop is None


def test_setting_max_duration_stops_or_revokes_a_stop() -> None:
    state = made()
    state.max_duration = 0
    assert state.stop is None  # nothing runs
    state.max_duration, state.is_fitting = "9ep", True
    state.max_duration = 0
    assert str(state.stop) == "stopped by the script: max_duration was set"
    state.max_duration = "3ep"
    assert state.stop is None
