from __future__ import annotations

import sys
import types

import psutil
import pytest
import torch

from composer import Engine, State, dist
from composer._lazy import MissingConditionalImportError
from composer.callbacks import SystemMetricsMonitor
from composer.core import Event
from composer.loggers import InMemoryLogger
from tests.callbacks.cases import Case, run_with
from tests.common import labeled_data

GROUPS = ("cpu_percentage", "cpu_percentage_rank", "cpu_memory_*", "disk_memory_*", "network_*")
CASE = Case(
    make=lambda folder: SystemMetricsMonitor(batch_log_interval=2),
    logs=tuple(f"{extreme}_{name}" for extreme in ("min", "max") for name in GROUPS),
)


def engine_of(monitor, device="cpu") -> tuple[Engine, InMemoryLogger]:
    state, log = State(model=torch.nn.Linear(1, 1)), InMemoryLogger()
    state.device = types.SimpleNamespace(name=device, torch_device=torch.device(device))
    return Engine(state, callbacks=[monitor, log]), log


def values_of(monitor, device="cpu") -> dict[str, float]:
    engine, log = engine_of(monitor, device)
    engine.run_event(Event.INIT)
    engine.run_event(Event.BATCH_START)
    return log.most_recent_values


def test_host_metrics():
    values = values_of(SystemMetricsMonitor(log_all_data=True))
    assert values["cpu_memory_total_rank_0"] == psutil.virtual_memory().total
    assert values["disk_memory_total_rank_0"] == psutil.disk_usage("/").total
    assert values["network_bytes_sent_rank_0"] <= psutil.net_io_counters().bytes_sent
    assert 0 <= values["cpu_percentage_rank_0"] <= 100
    assert all(name.endswith("_rank_0") for name in values)


def test_a_host_without_a_network(monkeypatch):
    monkeypatch.setattr(psutil, "net_io_counters", lambda: None)
    values = values_of(SystemMetricsMonitor())
    assert "min_cpu_percentage" in values
    assert not any("network" in name for name in values)


@pytest.fixture
def gpu(monkeypatch):
    figures = {"utilization": 90, "memory_usage": 40, "temperature": 65, "power_draw": 350_000}
    for name, value in figures.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setitem(sys.modules, "pynvml", types.ModuleType("pynvml"))


def test_gpu_metrics(gpu):
    values = values_of(SystemMetricsMonitor(log_all_data=True), "cuda")
    found = {name: value for name, value in values.items() if name.startswith(("gpu", "memory"))}
    assert found == {
        "gpu_percentage_rank_0": 90,
        "memory_percentage_rank_0": 40,
        "gpu_temperature_C_rank_0": 65,
        "gpu_power_usage_W_rank_0": 350,
    }


def test_a_gpu_that_reports_less(gpu, monkeypatch):
    def fails(device):
        raise RuntimeError("Not Supported")

    monkeypatch.setattr(torch.cuda, "power_draw", fails)
    values = values_of(SystemMetricsMonitor(), "cuda")
    assert "max_gpu_temperature_C" in values
    assert "max_gpu_power_usage_W" not in values


def test_a_gpu_that_is_gone_is_an_error(gpu, monkeypatch):
    def fails(device):
        raise RuntimeError("GPU is lost")

    monkeypatch.setattr(torch.cuda, "utilization", fails)
    with pytest.raises(RuntimeError, match="GPU is lost"):
        values_of(SystemMetricsMonitor(), "cuda")


def test_minimum_and_maximum_over_ranks(monkeypatch):
    everyone = [{"cpu_percentage": 5.0, "x": 1}, {"cpu_percentage": 7.0}, {"cpu_percentage": 3.0, "x": 1}]
    monkeypatch.setattr(dist, "all_gather_object", lambda local: everyone)
    assert values_of(SystemMetricsMonitor()) == {
        "min_cpu_percentage": 3.0,
        "min_cpu_percentage_rank": 2,
        "max_cpu_percentage": 7.0,
        "max_cpu_percentage_rank": 1,
        "min_x": 1,
        "min_x_rank": 0,
        "max_x": 1,
        "max_x_rank": 0,
    }
    assert values_of(SystemMetricsMonitor(log_all_data=True)) == {
        "cpu_percentage_rank_0": 5.0,
        "cpu_percentage_rank_1": 7.0,
        "cpu_percentage_rank_2": 3.0,
        "x_rank_0": 1,
        "x_rank_2": 1,
    }


def test_in_training_evaluation_and_prediction():
    run = run_with(SystemMetricsMonitor(batch_log_interval=3), eval_dataloader=labeled_data(), max_duration="2ep")
    run.trainer.fit()
    # Batches 0, 3 and 6 of training, and after 4 and 8 of them 0 and 3 of the evaluation.
    assert run.steps("min_cpu_percentage") == [0, 3, 4, 4, 6, 8, 8]
    run.trainer.predict(labeled_data())
    assert run.steps("min_cpu_percentage")[7:] == [8, 8]


def test_missing_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    engine, _ = engine_of(SystemMetricsMonitor(), "cuda")
    with pytest.raises(MissingConditionalImportError, match=r"pynvml.*composer-torch\[system\]"):
        engine.run_event(Event.INIT)
    monkeypatch.setitem(sys.modules, "psutil", None)
    with pytest.raises(MissingConditionalImportError, match=r"psutil.*composer-torch\[system\]"):
        SystemMetricsMonitor()


def test_bad_interval():
    with pytest.raises(ValueError, match="batch_log_interval must be greater than 0"):
        SystemMetricsMonitor(batch_log_interval=0)


@pytest.mark.gpu
def test_on_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("figures of CUDA and ROCm only")
    run = run_with(SystemMetricsMonitor(batch_log_interval=1), device="gpu")
    run.trainer.fit()
    assert 0 <= run.values("max_gpu_percentage")[-1] <= 100
