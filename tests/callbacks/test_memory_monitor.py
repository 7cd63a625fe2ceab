from __future__ import annotations

import types

import pytest
import torch

from composer import Engine, State, dist
from composer.callbacks import MemoryMonitor, memory_monitor
from composer.core import Event
from composer.loggers import InMemoryLogger
from composer.warnings import ComposerWarning
from tests.callbacks.cases import Case, run_with

HOST = ("memory/current_resident_mem", "memory/peak_resident_mem")
CASE = Case(
    make=lambda folder: MemoryMonitor(dist_aggregate_batch_interval=2),
    logs=(*HOST, *(f"{name}_{statistic}" for name in HOST for statistic in ("avg", "min", "max"))),
)

# Some statistics of a GPU's allocator; some values differ so that mixed-up names are detected.
STATS = {
    "allocated_bytes.all.current": 1_234_567_890,
    "active_bytes.all.current": 2_000_000_000,
    "inactive_split_bytes.all.current": 30_000,
    "reserved_bytes.all.current": 4_000_000_000,
    "allocated_bytes.all.peak": 5_000_000_000,
    "active_bytes.all.peak": 6_000_000_000,
    "inactive_split_bytes.all.peak": 7_000_000_000,
    "reserved_bytes.all.peak": 123_456_789_012,
    "num_alloc_retries": 9,
    "num_ooms": 10,
    "allocated_bytes.small_pool.peak": 11_000_000_000,
}


def engine_on(device_type: str, monitor: MemoryMonitor) -> tuple[Engine, InMemoryLogger]:
    state = State(model=torch.nn.Linear(1, 1))
    state.device = types.SimpleNamespace(
        name=device_type, torch_device=torch.device(device_type, 0), tensor_to_device=lambda tensor: tensor
    )
    log = InMemoryLogger()
    return Engine(state, callbacks=[monitor, log]), log


@pytest.fixture
def allocator(monkeypatch):
    monkeypatch.setattr(torch.accelerator, "memory_stats", lambda device: STATS)


def test_allocator_statistics(allocator):
    engine, log = engine_on("cuda", MemoryMonitor())
    engine.run_event(Event.INIT)
    engine.run_event(Event.AFTER_TRAIN_BATCH)
    assert log.most_recent_values == {
        "memory/current_allocated_mem": 1.2346,
        "memory/current_active_mem": 2.0,
        "memory/current_inactive_mem": 3e-5,
        "memory/current_reserved_mem": 4.0,
        "memory/peak_allocated_mem": 5.0,
        "memory/peak_active_mem": 6.0,
        "memory/peak_inactive_mem": 7.0,
        "memory/peak_reserved_mem": 123.46,
        "memory/alloc_retries": 9,
    }


def test_custom_memory_keys(allocator):
    keys = {"allocated_bytes.small_pool.peak": "small", "num_ooms": "failures"}
    engine, log = engine_on("cuda", MemoryMonitor(memory_keys=keys))
    engine.run_event(Event.AFTER_TRAIN_BATCH)
    assert log.most_recent_values == {"memory/small": 11.0, "memory/failures": 10}


def test_unknown_memory_key(allocator):
    engine, _ = engine_on("cuda", MemoryMonitor(memory_keys={"num_oom": "failures"}))
    with pytest.raises(ValueError, match=r"memory_keys has 'num_oom', .* Did you mean 'num_ooms'\?"):
        engine.run_event(Event.AFTER_TRAIN_BATCH)


def test_mps_statistics(monkeypatch):
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 1_000_000_000)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 2_000_000_000)
    engine, log = engine_on("mps", MemoryMonitor())
    engine.run_event(Event.AFTER_TRAIN_BATCH)
    assert log.most_recent_values == {"memory/current_allocated_mem": 1.0, "memory/current_reserved_mem": 2.0}


def test_process_memory():
    engine, log = engine_on("cpu", MemoryMonitor())
    engine.run_event(Event.AFTER_TRAIN_BATCH)
    before = log.most_recent_values
    held = torch.ones(75_000_000)  # 0.3 GB, written to, so that it is in memory
    engine.run_event(Event.AFTER_TRAIN_BATCH)
    current, peak = (log.most_recent_values[name] for name in HOST)
    assert current - before[HOST[0]] == pytest.approx(held.nbytes / 1e9, rel=0.1)
    assert peak >= current


def test_without_proc(monkeypatch, tmp_path):
    here = memory_monitor._process_memory()
    monkeypatch.setattr(memory_monitor, "_STATM", str(tmp_path / "statm"))
    pytest.importorskip("psutil")
    there = memory_monitor._process_memory()
    assert there.keys() == here.keys()
    assert there["resident_bytes.current"] == pytest.approx(here["resident_bytes.current"], rel=0.1)


@pytest.mark.parametrize("device_type", ["cpu", "xla"])
def test_memory_keys_have_no_effect_without_an_accelerator(device_type):
    engine, log = engine_on(device_type, MemoryMonitor(memory_keys={"num_ooms": "failures"}))
    with pytest.warns(ComposerWarning, match=f"{device_type} has none; MemoryMonitor logs the memory of the process"):
        engine.run_event(Event.INIT)
    engine.run_event(Event.AFTER_TRAIN_BATCH)
    assert set(log.data) == set(HOST)


def test_intervals():
    run = run_with(MemoryMonitor(dist_aggregate_batch_interval=3, batch_log_interval=2), max_duration="2ep")
    run.trainer.fit()
    assert run.steps(HOST[0]) == [0, 2, 4, 6]
    assert run.steps(f"{HOST[0]}_avg") == [0, 3, 6]


def test_over_all_ranks(allocator, monkeypatch):
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(dist, "all_gather", lambda values: [values, values + 1, values + 5])
    monitor = MemoryMonitor({"num_ooms": "failures", "num_alloc_retries": "retries"}, dist_aggregate_batch_interval=1)
    engine, log = engine_on("cuda", monitor)
    engine.run_event(Event.AFTER_TRAIN_BATCH)
    assert log.most_recent_values == {
        "memory/failures": 10,
        "memory/retries": 9,
        "memory/failures_avg": 12.0,
        "memory/failures_min": 10.0,
        "memory/failures_max": 15.0,
        "memory/retries_avg": 11.0,
        "memory/retries_min": 9.0,
        "memory/retries_max": 14.0,
    }


@pytest.mark.parametrize("argument", ["dist_aggregate_batch_interval", "batch_log_interval"])
def test_bad_arguments(argument):
    with pytest.raises(ValueError, match=f"{argument} must be greater than 0, but got 0"):
        MemoryMonitor(**{argument: 0})


@pytest.mark.gpu
def test_on_an_accelerator():
    run = run_with(MemoryMonitor(), device=torch.accelerator.current_accelerator().type)
    run.trainer.fit()
    current, peak = run.values("memory/current_allocated_mem"), run.values("memory/peak_allocated_mem")
    assert all(0 < low <= high for low, high in zip(current, peak, strict=True))
