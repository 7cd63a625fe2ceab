from __future__ import annotations

import gc
import json
import time
import weakref

import pytest
import torch

from composer import Algorithm, Callback, Engine, State
from composer.callbacks import CallbackTimer
from composer.callbacks.callback_timer import Cost
from tests.callbacks.cases import Case, run_with

CASE = Case(
    make=lambda folder: CallbackTimer(batch_log_interval=2),
    logs=("callback_time/CallbackTimer", "callback_time/InMemoryLogger", "callback_time/Logger", "table:callback_time"),
)


class Clock:
    """A clock that only advances when a handler works."""

    def __init__(self, monkeypatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def work(self, seconds: float) -> None:
        self.now += seconds


class Works(Callback):
    def __init__(self, clock, seconds):
        self.clock, self.seconds = clock, seconds

    def batch_end(self, state, logger):
        self.clock.work(self.seconds)


class WorksByEvent(Algorithm):
    def __init__(self, clock):
        self.clock = clock

    def match(self, event, state):
        return event.value == "batch_end"

    def apply(self, event, state, logger):
        self.clock.work(8.0)


class FiresAnother(Callback):
    def __init__(self, clock, engine_of):
        self.clock, self.engine_of = clock, engine_of

    def epoch_end(self, state, logger):
        self.clock.work(1.0)
        self.engine_of().run_event("batch_end")
        self.clock.work(2.0)


def state_of() -> State:
    return State(model=torch.nn.Linear(1, 1))


def test_measures_the_time_of_each_handler(monkeypatch):
    clock, timer = Clock(monkeypatch), CallbackTimer()
    callbacks = [timer, Works(clock, 1.0), Works(clock, 0.5)]
    engine = Engine(state_of(), algorithms=WorksByEvent(clock), callbacks=callbacks)
    for _ in range(3):
        engine.run_event("batch_end")
    assert timer.costs == {
        ("WorksByEvent", "batch_end"): Cost(3, 24.0, 8.0),
        ("CallbackTimer", "batch_end"): Cost(3, 0.0, 0.0),
        ("Works", "batch_end"): Cost(3, 3.0, 1.0),
        ("Works-2", "batch_end"): Cost(3, 1.5, 0.5),
    }


def test_time_in_nested_events_counts_for_their_handlers(monkeypatch):
    clock, timer = Clock(monkeypatch), CallbackTimer()
    engine = Engine(state_of(), callbacks=[FiresAnother(clock, lambda: engine), Works(clock, 10.0), timer])
    engine.run_event("epoch_end")
    assert timer.costs["FiresAnother", "epoch_end"] == Cost(1, 3.0, 3.0)
    assert timer.costs["Works", "batch_end"] == Cost(1, 10.0, 10.0)


def test_a_failing_handler_is_measured_too(monkeypatch):
    clock, timer = Clock(monkeypatch), CallbackTimer()

    class Fails(Callback):
        def batch_end(self, state, logger):
            clock.work(2.0)
            raise ValueError("broken")

    engine = Engine(state_of(), callbacks=[Fails(), timer])
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            engine.run_event("batch_end")
    assert timer.costs["Fails", "batch_end"] == Cost(2, 4.0, 2.0)


def test_logs_milliseconds_per_batch_since_the_last_point(monkeypatch):
    clock = Clock(monkeypatch)
    works = Works(clock, 0.001)

    class Slower(Callback):
        def epoch_end(self, state, logger):
            works.seconds = 0.002

    run = run_with(CallbackTimer(batch_log_interval=2), works, Slower(), max_duration="2ep")
    run.trainer.fit()
    # The timer stands first, so that a point at the end of a batch has the others' work of the batch before.
    assert run.steps("callback_time/Works") == [2, 4, 6, 8]
    assert run.values("callback_time/Works") == pytest.approx([0.5, 1.0, 1.5, 2.0])
    assert run.values("callback_time/CallbackTimer") == [0, 0, 0, 0]


def test_the_table_is_sorted_by_cost(monkeypatch):
    clock = Clock(monkeypatch)
    run = run_with(Works(clock, 0.25), CallbackTimer(), Works(clock, 0.5))
    run.trainer.fit()
    table = json.loads(run.log.tables["callback_time"])
    assert table["columns"] == ["name", "event", "calls", "total (s)", "mean (us)", "longest (us)"]
    assert table["data"][:2] == [
        ["Works-2", "batch_end", 4, 2.0, 5e5, 5e5],
        ["Works", "batch_end", 4, 1.0, 2.5e5, 2.5e5],
    ]


def test_a_new_run_starts_at_zero_and_releases_the_last():
    timer = CallbackTimer()
    for calls in (4, 8):
        run = run_with(timer, max_duration=f"{calls}ba")
        run.trainer.fit()
        assert timer.costs["InMemoryLogger", "init"].calls == 1
        assert timer.costs["CallbackTimer", "batch_end"].calls == calls
        model = weakref.ref(run.trainer.state.model)
        run.trainer.close()
        del run
        gc.collect()
        assert model() is None
    assert timer.costs["CallbackTimer", "batch_end"].calls == 8


def test_costs_of_a_listener_added_later(monkeypatch):
    timer = CallbackTimer()
    engine = Engine(state_of(), callbacks=timer)
    engine.run_event("batch_end")
    engine.state.callbacks.append(Works(Clock(monkeypatch), 0.0))
    engine.run_event("batch_end")
    assert [cost.calls for cost in timer.costs.values()] == [2, 1]


def test_mean_of_no_call():
    assert Cost().mean == 0


@pytest.mark.parametrize("interval", [0, -1])
def test_bad_interval(interval):
    with pytest.raises(ValueError, match=f"batch_log_interval must be greater than 0, but got {interval}"):
        CallbackTimer(batch_log_interval=interval)
