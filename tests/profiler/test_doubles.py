"""Profiler: handlers that are test doubles, and need not be of the class TraceHandler."""

from __future__ import annotations

from typing import Any
from unittest.mock import MagicMock

from torch import nn

from composer import State
from composer.profiler import Profiler, ProfilerAction, TorchProfiler
from tests.common import trainer_of
from tests.profiler.traces import PLAIN


def test_takes_test_doubles() -> None:
    double = MagicMock()
    profiler = Profiler(lambda state: ProfilerAction.ACTIVE, [double], sys_prof_cpu=False)
    assert profiler.state is None
    state = State(model=nn.Linear(1, 1))
    profiler.bind_to_state(state)
    assert profiler.state is state
    assert double in state.callbacks
    assert isinstance(profiler._callbacks[-1], TorchProfiler)

    @(mark := profiler.marker("name", actions=list(ProfilerAction)))()
    def work() -> int:
        return 1

    assert work() == 1
    mark.instant()
    mark.counter({"a": 1})
    assert double.process_duration_event.call_count == 2
    assert double.process_instant_event.call_count == double.process_counter_event.call_count == 1


def test_a_double_needs_no_more_than_it_is_told() -> None:
    class Takes:
        def __init__(self) -> None:
            self.found: list[str] = []

        def run_event(self, event, state, logger):
            pass

        def close(self, state, logger):
            self.found.append("closed")

        def post_close(self):
            pass

        def process_duration_event(self, name, categories, is_start, timestamp, wall_clock_time_ns):
            self.found.append(name)

        process_instant_event = process_counter_event = process_chrome_json_trace_file = process_duration_event

    double: Any = Takes()
    trainer = trainer_of(profiler=Profiler(lambda state: ProfilerAction.ACTIVE_AND_SAVE, double, **PLAIN))
    trainer.fit()
    trainer.close()
    assert {"event/batch", "event/forward", "closed"} <= set(double.found)
