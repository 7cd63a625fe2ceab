from __future__ import annotations

import gc
import weakref

import pytest
from torch import nn

from benchmarks import step_overhead
from benchmarks.step_timing import forget_garbage


class _Cycle:
    def __init__(self) -> None:
        self.me = self


def test_garbage_is_collected_and_the_rest_is_left_out_of_later_collections() -> None:
    kept = nn.Linear(1, 1)
    garbage = weakref.ref(_Cycle())
    forget_garbage()
    assert garbage() is None
    assert all(each is not kept for each in gc.get_objects())


@pytest.mark.parametrize("full", [False, True])
def test_no_full_collection_falls_into_the_timed_steps(full: bool, monkeypatch) -> None:
    events: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            events.append("collection")

    clock = step_overhead.CLOCKS["wall"]
    monkeypatch.setitem(step_overhead.CLOCKS, "wall", lambda: (events.append("clock"), clock())[1])
    gc.callbacks.append(note)
    try:
        step_overhead.time_steps("hand", ["full"] if full else ["bare"], repeats=1, steps=20, warmup=2)
    finally:
        gc.callbacks.remove(note)
    begin = events.index("clock")
    assert "collection" in events[:begin]
    assert events[begin : begin + 2] == ["clock", "clock"]
