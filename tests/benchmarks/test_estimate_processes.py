"""The comparison of the estimated memory of ranks with that of gloo processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import estimate_processes
from benchmarks.estimate_memory import OPTIMIZERS, Configuration
from benchmarks.estimate_models import MODELS
from benchmarks.estimate_processes import CONFIGURATIONS, Peaks, Sharded, measure
from benchmarks.torch_allocations import can_preload


def test_configurations() -> None:
    assert len({each.label for each in CONFIGURATIONS}) == len(CONFIGURATIONS) == 27
    assert {each.strategy for each in CONFIGURATIONS} == {"ddp", "fsdp", "hsdp", "tp"}
    assert {each.configuration.model for each in CONFIGURATIONS} <= set(MODELS)
    assert {each.configuration.optimizer for each in CONFIGURATIONS} <= set(OPTIMIZERS)


def test_the_report_tells_what_runs_without_pauses_need(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = {"peak": 101, "stage": "", "module": ""}
    found = {"ddp": Peaks(100, 100), "fsdp": Peaks(100, 112)}
    monkeypatch.setattr(estimate_processes, "compare", lambda each: (found[each.strategy], estimate))
    report = measure([Sharded(name, Configuration("mlp")) for name in found])
    assert [row[-1] for row in report.rows] == ["+1.00", "+1.00"]
    assert "the peak of 1 of 2 configurations" in str(report.notes) and "at most 12.0 % (fsdp 2" in str(report.notes)


@pytest.mark.slow
@pytest.mark.skipif(not can_preload(), reason="needs Linux and g++")
@pytest.mark.parametrize("label", ["fsdp 2: mlp, sgd", "tp 2: mlp, sgd"])
def test_estimates(label: str) -> None:
    # In a process of its own, since this one may have started a server of forked processes.
    command = [sys.executable, "-m", "benchmarks.estimate_processes", "--only", label]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (error,) = (line.split()[0] for line in done.stdout.splitlines() if f"  {label}" in line and "MiB" in line)
    assert -0.5 < float(error) < 3
