"""Marker: spans, moments and curves, as context manager and decorator, and when they are recorded."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from torch import nn

from composer import State, Timestamp
from composer.profiler import Marker, TraceHandler


class Kept(TraceHandler):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, ...]] = []

    def process_duration_event(self, name, categories, is_start, timestamp, wall_clock_time_ns):
        self.records.append(("begin" if is_start else "end", name, categories, wall_clock_time_ns))

    def process_instant_event(self, name, categories, timestamp, wall_clock_time_ns):
        self.records.append(("instant", name, categories, wall_clock_time_ns))

    def process_counter_event(self, name, categories, timestamp, wall_clock_time_ns, values):
        self.records.append(("counter", name, values, timestamp.batch.value))

    @property
    def kinds(self) -> list[str]:
        return [record[0] for record in self.records]


def marker_of(handler: TraceHandler, on: Any = lambda state: True, start=False, finish=False) -> Marker:
    state = State(model=nn.Linear(1, 1))
    state.timestamp = Timestamp(batch=7)
    return Marker(state, on, [handler], "work", start, finish, ["mine"])


def test_a_span_has_a_begin_and_an_end() -> None:
    kept = Kept()
    marker = marker_of(kept)
    marker.start()
    marker.finish()
    (begin, name, categories, began), (end, *_, ended) = kept.records
    assert (begin, end, name, categories) == ("begin", "end", "work", ("mine",))
    assert began <= ended


def test_instants_at_the_ends_of_a_span() -> None:
    kept = Kept()
    with marker_of(kept, start=True):
        pass
    assert kept.kinds == ["begin", "instant", "end"]
    kept = Kept()
    with marker_of(kept, finish=True):
        pass
    assert kept.kinds == ["begin", "end", "instant"]


def test_a_decorator_returns_what_the_function_returns_and_knows_recursion() -> None:
    kept = Kept()

    @marker_of(kept)
    def factorial(n: int, *, base: int = 1) -> int:
        """The product."""
        return base if n == 0 else n * factorial(n - 1, base=base)

    assert factorial(3, base=2) == 12
    assert kept.kinds == ["begin"] * 4 + ["end"] * 4
    assert factorial.__name__ == "factorial"
    assert factorial.__doc__ == "The product."


def test_ends_where_the_block_fails() -> None:
    kept = Kept()
    with pytest.raises(ZeroDivisionError), marker_of(kept):
        _ = 1 / 0
    assert kept.kinds == ["begin", "end"]


def test_whether_it_records_is_decided_at_the_begin() -> None:
    kept, on = Kept(), [False]
    marker = marker_of(kept, lambda state: on[0])
    marker.start()
    on[0] = True
    marker.finish()
    assert kept.kinds == []
    marker.start()
    on[0] = False
    marker.finish()
    marker.instant()
    marker.counter({"a": 1.0})
    assert kept.kinds == ["begin", "end"]


def test_moments_and_curves() -> None:
    kept = Kept()
    marker = marker_of(kept)
    marker.instant()
    marker.counter({"a": 1.0, "b": 2.0})
    assert kept.records[0][:3] == ("instant", "work", ("mine",))
    assert kept.records[1] == ("counter", "work", {"a": 1.0, "b": 2.0}, 7)


def test_an_end_needs_a_begin_in_the_same_thread() -> None:
    marker = marker_of(Kept())
    with pytest.raises(RuntimeError, match=r"Marker\('work'\)\.finish\(\) was called without start\(\)"):
        marker.finish()
    marker.start()
    errors: list[Exception] = []

    def finish() -> None:
        try:
            marker.finish()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=finish)
    thread.start()
    thread.join()
    assert len(errors) == 1
    marker.finish()


def test_a_begin_needs_an_end_before_the_next_one() -> None:
    marker = marker_of(Kept())
    marker.start()
    with pytest.raises(RuntimeError, match=r"Marker\('work'\)\.start\(\) was called before finish\(\)"):
        marker.start()
    marker.finish()
    marker.start()
