from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer import Engine, State
from composer.callbacks import RuntimeEstimator
from composer.core import Event
from composer.loggers import InMemoryLogger
from composer.warnings import ComposerWarning
from tests.callbacks.cases import Case, run_with
from tests.common import Unsized, classifier, labeled_data

NAME = "time/remaining_estimate"
CASE = Case(make=lambda folder: RuntimeEstimator(), logs=(NAME, f"hparam:{NAME}_unit"))


class Loop:
    """An engine with a clock and counters controlled by the test."""

    def __init__(self, max_duration: str | None, length: int | None = 10, **arguments) -> None:
        arguments.setdefault("skip_batches", 0)
        self.log = InMemoryLogger()
        self.callback = RuntimeEstimator(time_unit="seconds", **arguments)
        self.state = State(model=classifier(), max_duration=max_duration)
        self.state.train_phase.length = length
        self.engine = Engine(self.state, callbacks=[self.callback, self.log])
        self.engine.run_event(Event.INIT)
        self.engine.run_event(Event.FIT_START)

    def batch(self, seconds: float, samples: int = 1) -> float | None:
        """Advance by a batch; return the estimate after it, None if there is none."""
        self.engine.run_event(Event.BATCH_START)
        self.state.previous_timestamp = self.state.timestamp
        self.state.timestamp = self.state.timestamp.to_next_batch(samples, duration=seconds)
        self.engine.run_event(Event.BATCH_END)
        if self.log.most_recent_timestamps.get(NAME) != self.state.timestamp:
            return None
        return self.log.most_recent_values[NAME]

    def epoch(self) -> None:
        self.state.previous_timestamp = self.state.timestamp
        self.state.timestamp = self.state.timestamp.to_next_epoch()
        self.engine.run_event(Event.EPOCH_END)

    def evaluate(self, seconds: float, label: str = "eval") -> None:
        state = self.state
        state.eval_phase.timestamp = type(state.timestamp)(total_wct=seconds)
        state.eval_phase.label, state.phase = label, state.eval_phase
        self.engine.run_event(Event.EVAL_END)
        state.phase = state.train_phase


@given(st.integers(1, 50), st.integers(1, 50), st.floats(0.001, 100))
def test_an_even_pace_is_predicted_exactly(done, to_do, seconds):
    loop = Loop(f"{done + to_do}ba")
    for _ in range(done):
        estimate = loop.batch(seconds)
    # The clock of a timestamp counts microseconds.
    assert estimate == pytest.approx(to_do * seconds, rel=1e-2)


def test_the_first_batches_may_be_slow():
    loop = Loop("10ba", skip_batches=2)
    assert loop.batch(100.0) is None
    assert loop.batch(100.0) is None
    assert loop.batch(1.0) == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("duration", "expected"), [("100sp", 23.0), ("10ba", 8.0), ("2ep", 18.0), ("0sp", 0.0), ("1m", 58.0)]
)
def test_in_every_unit(duration, expected):
    loop = Loop(duration)
    loop.batch(1.0, samples=4)
    assert loop.batch(1.0, samples=4) == pytest.approx(expected)


def test_epochs_of_unknown_length():
    loop = Loop("3ep", length=None)
    assert [loop.batch(1.0) for _ in range(4)] == [None] * 4
    loop.epoch()
    assert [loop.batch(1.0) for _ in range(4)] == pytest.approx([7.0, 6.0, 5.0, 4.0])
    saved = loop.callback.state_dict()
    again = Loop("3ep", length=None)
    again.callback.load_state_dict(saved)
    assert again.batch(2.0) == pytest.approx(22.0)


def test_remaining_evaluations_are_counted():
    loop = Loop("4ep", length=2)
    estimates = []
    for _ in range(3):
        for _ in range(2):
            estimates.append(loop.batch(1.0))
        loop.epoch()
        loop.evaluate(10.0)
        loop.evaluate(5.0, "other")
    # No evaluation has been seen in the first epoch; 3 more of each remain in the second; 2 in the third.
    assert estimates == pytest.approx([7, 6, 5 + 45, 4 + 45, 3 + 30, 2 + 30])


def test_the_speed_is_measured_again_after_loading():
    loop = Loop("100ba")
    loop.state.timestamp = type(loop.state.timestamp)(batch=50, total_wct=5000)
    assert loop.batch(1.0) == pytest.approx(49.0)


def test_a_second_fit_estimates_to_its_own_end():
    loop = Loop("2ba")
    loop.batch(1.0)
    assert loop.batch(1.0) == 0.0
    loop.state.max_duration = "12ba"
    loop.engine.run_event(Event.FIT_START)
    assert loop.batch(2.0) == pytest.approx(18.0)


@pytest.mark.parametrize(("unit", "seconds"), [("seconds", 1), ("minutes", 60), ("hours", 3600), ("days", 86400)])
def test_units(unit, seconds):
    log = InMemoryLogger()
    state = State(model=torch.nn.Linear(1, 1), max_duration="2ba")
    engine = Engine(state, callbacks=[RuntimeEstimator(skip_batches=0, time_unit=unit), log])
    for event in ("init", "fit_start", "batch_start"):
        engine.run_event(event)
    state.timestamp = state.timestamp.to_next_batch(duration=900)
    engine.run_event("batch_end")
    assert log.most_recent_values == {NAME: pytest.approx(900 / seconds)}
    assert log.hyperparameters == {f"{NAME}_unit": unit}


def test_without_max_duration():
    with pytest.warns(ComposerWarning, match="max_duration is not set"):
        loop = Loop(None)
    assert loop.batch(1.0) is None


@pytest.mark.parametrize("data", [labeled_data(), Unsized(labeled_data())], ids=["sized", "unsized"])
def test_in_a_trainer(data):
    run = run_with(RuntimeEstimator(time_unit="seconds"), data=data, eval_dataloader=labeled_data(), max_duration="3ep")
    run.trainer.fit()
    estimates = run.values(NAME)
    assert run.steps(NAME)[-4:] == [9, 10, 11, 12]
    assert all(estimate > 0 for estimate in estimates[:-1])
    # Of 12 batches the last leaves the last evaluation.
    assert 0 < estimates[-1] < estimates[-4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"skip_batches": -1}, "skip_batches must be 0 or greater"),
        ({"time_unit": "hour"}, "time_unit must be one of .*Did you mean 'hours'"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        RuntimeEstimator(**arguments)
