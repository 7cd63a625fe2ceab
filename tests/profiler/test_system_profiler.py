"""SystemProfiler: its curves, when they are drawn, and its thread."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import pytest

from composer._lazy import MissingConditionalImportError
from composer.profiler import Profiler, SystemProfiler, TraceHandler, cyclic_schedule
from composer.profiler.system_profiler import _Throughput
from tests.common import At
from tests.profiler.traces import NO_TORCH, profile

pytest.importorskip("psutil")

ALL = {"sys_prof_memory": True, "sys_prof_disk": True, "sys_prof_net": True}


class Curves(TraceHandler):
    def __init__(self) -> None:
        self.points: list[tuple[str, dict[str, float], int, str]] = []

    def process_counter_event(self, name, categories, timestamp, wall_clock_time_ns, values):
        self.points.append((name, values, timestamp.batch.value, threading.current_thread().name))


def run(schedule: Any = None, trainer: Any = None, **arguments: Any) -> Curves:
    curves = Curves()
    schedule = cyclic_schedule(warmup=1, active=2) if schedule is None else schedule
    profile(Profiler(schedule, curves, **{**NO_TORCH, **arguments}), **(trainer or {}))
    return curves


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "SystemProfiler"]


def test_every_window_has_a_point() -> None:
    schedule = cyclic_schedule(wait=1, warmup=0, active=1, repeat=0)
    curves = run(schedule, sys_prof_stats_thread_interval_seconds=1e-6)
    assert {batch for *_, batch, thread in curves.points if thread == "MainThread"} == {1, 3}
    curves = run(schedule, sys_prof_stats_thread_interval_seconds=3600)
    assert [batch for *_, batch, _ in curves.points] == [1]


def test_the_thread_draws_within_a_long_batch() -> None:
    slow = At("before_forward", lambda state: time.sleep(0.1))
    curves = run(trainer={"callbacks": slow}, sys_prof_stats_thread_interval_seconds=0.01)
    assert len([thread for *_, thread in curves.points if thread == "SystemProfiler"]) > 3
    assert {batch for *_, batch, _ in curves.points} <= {1, 2}  # nothing in the warm-up, nothing afterwards
    assert threads() == []


def test_figures() -> None:
    import psutil

    found = {name: values for name, values, *_ in run(**ALL).points}
    assert set(found) - {"disk", "network"} == {"cpu", "memory"}
    assert set(found["cpu"]) == {"machine (%)", "process (%)"}
    assert 0 <= found["cpu"]["machine (%)"] <= 100
    total = psutil.virtual_memory().total / 1e9
    assert 0 < found["memory"]["process (GB)"] < total
    assert 0 < found["memory"]["machine (GB)"] < total
    assert found["memory"]["swap (GB)"] >= 0


@pytest.mark.parametrize("chosen", ["memory", "disk", "net"])
def test_only_what_is_chosen(chosen) -> None:
    curves = run(sys_prof_cpu=False, **{f"sys_prof_{chosen}": True})
    assert {name for name, *_ in curves.points} <= {{"net": "network"}.get(chosen, chosen)}


def test_rates_are_since_the_last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([{"in": 0, "out": 10}, {"in": 3_000_000, "out": 10}, {"in": 4_000_000, "out": 20}])

    class Count:
        def __init__(self) -> None:
            self.__dict__.update(next(counts))

    times = iter([1.0, 3.0, 4.0])
    monkeypatch.setattr("composer.profiler.system_profiler.time.perf_counter", lambda: next(times))
    rates = _Throughput(Count, {"read": "in", "written": "out"})
    assert rates() == {"read (MB/s)": 1.5, "written (MB/s)": 0.0}
    assert rates() == {"read (MB/s)": 1.0, "written (MB/s)": 1e-5}


def test_machines_without_disk_or_network() -> None:
    rates = _Throughput(lambda: None, {"read": "read_bytes"})
    assert rates() == {}


def test_the_thread_ends_with_the_run() -> None:
    seen = At("fit_start", lambda state: threads())
    run(trainer={"callbacks": seen})
    assert seen.found == [["SystemProfiler"]]
    assert threads() == []


def test_needs_psutil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(MissingConditionalImportError, match=r"A profiler with sys_prof_cpu .*composer-torch\[system\]"):
        SystemProfiler()


@pytest.mark.parametrize("interval", [0, -1.0])
def test_refuses_impossible_intervals(interval) -> None:
    with pytest.raises(ValueError, match="stats_thread_interval_seconds"):
        SystemProfiler(stats_thread_interval_seconds=interval)
