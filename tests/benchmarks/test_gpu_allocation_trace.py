"""Allocations of a run on a GPU, from entries as torch lists them, and their comparison with an estimate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.environment import ROOT
from benchmarks.estimate_memory import CONFIGURATIONS, logged
from benchmarks.gpu import allocation_trace, estimates
from benchmarks.gpu.allocation_trace import Trace, differences, read, recorded, write
from benchmarks.gpu.options import Options
from composer.memory.allocations import Allocation, AllocationLog

MIB = 2**20


def entry(action: str, addr: int, size: int = 0, *, stream: int = 0, frames: Any = ()) -> dict[str, Any]:
    return {"action": action, "addr": addr, "size": size, "stream": stream, "frames": frames, "time_us": 1}


def frame(filename: str, line: int, name: str) -> dict[str, Any]:
    return {"filename": filename, "line": line, "name": name}


def as_trace(log: AllocationLog) -> Trace:
    """What torch would list of the allocations of an estimate; no address is used twice at a time."""
    entries = [
        entry("alloc" if begins else "free_requested", index, log.allocations[index].nbytes)
        for index, begins in log.events
    ]
    return Trace.of(entries)


def test_entries_of_torch() -> None:
    torch_frame = frame("/opt/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", 1, "forward")
    own = frame(str(ROOT / "benchmarks" / "estimate_models.py"), 20, "forward")
    program = frame("/some/where/project/train.py", 7, "<module>")
    trace = Trace.of(
        [
            entry("free_requested", 1, 64),  # of what was there before
            entry("segment_alloc", 4096, 2 * MIB),
            entry(
                "alloc", 4096, 1000, stream=7, frames=[frame("??", 0, "operator new"), torch_frame, own, own, program]
            ),
            entry("alloc", 8192, 24, stream=9),
            entry("free_requested", 4096, 1000, stream=7),
            entry("free_completed", 4096, 1000, stream=7),
            entry("alloc", 4096, 500, stream=7, frames=[program]),  # at the same address
            entry("snapshot", 0),
        ]
    )
    assert (trace.sizes, trace.streams, trace.events) == ([1000, 24, 500], [0, 1, 0], [1, 2, -1, 3])
    assert trace.peak() == (1024, 1)
    assert list(trace.live(3)) == [1, 2]
    assert trace.frames[0] == "benchmarks/estimate_models.py:20 forward < benchmarks/estimate_models.py:20 forward"
    assert "backward" in trace.frames[1]
    assert trace.frames[2] == "project/train.py:7 <module>"
    assert not any("/some/where" in each or str(ROOT) in each for each in trace.frames)


sizes = st.lists(st.integers(1, 3), min_size=1, max_size=8)


@given(measured=sizes, estimated=sizes)
def test_the_differences_of_all_sizes_are_that_of_the_peaks(measured: list[int], estimated: list[int]) -> None:
    trace = as_trace(AllocationLog([Allocation(size) for size in measured], [(i, True) for i in range(len(measured))]))
    log = AllocationLog([Allocation(size) for size in estimated], [(i, True) for i in range(len(estimated))])
    head, *rest = differences(trace, log, most=10)
    assert head.endswith(f", {sum(measured) - sum(estimated):+,}")
    assert sum(int(line.split()[0].replace(",", "")) for line in rest) == sum(measured) - sum(estimated)
    assert all(int(line.split()[0].replace(",", "")) for line in rest)


def test_a_real_estimate_differs_by_what_is_added(tmp_path: Path) -> None:
    """The log of a model as a trace has no difference; a tensor that only the trace has is found, with its frame."""
    arguments = estimates.scaled_arguments(next(each for each in CONFIGURATIONS if each.model == "mlp"), 1)
    result, log = logged(lambda: arguments("cpu"), cuda=True)
    trace = as_trace(log)
    assert trace.peak()[0] == result["peak"]
    assert len(differences(trace, log)) == 1
    trace.sizes.append(5 * MIB)
    trace.streams.append(0)
    trace.frames.append("train.py:3 mask")
    trace.origins.append(len(trace.frames) - 1)
    trace.events.insert(0, len(trace.sizes))
    write(tmp_path / "new" / "trace.json.gz", {"mlp": trace})
    assert (tmp_path / "new" / "trace.json.gz").stat().st_size < 50_000
    again = read(tmp_path / "new" / "trace.json.gz")["mlp"]
    assert again == trace
    head, line = differences(again, log)
    assert head.endswith(f" {5 * MIB:+,}") and line.strip().startswith(f"{5 * MIB:+,} bytes  1 * ")
    assert line.endswith("train.py:3 mask")
    # What the estimate has in addition is named by its role and module.
    missing = as_trace(log)
    largest = max(range(len(missing.sizes)), key=lambda index: missing.sizes[index])
    missing.events = [each for each in missing.events if abs(each) != largest + 1]
    assert any(line.split()[0].startswith("-") and "parameters" in line for line in differences(missing, log))


def test_the_second_run_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a pretended allocator: what is there before, the workspaces and what remains are told apart."""
    state = {"allocated": 0, "peak": 0, "workspaces": 0, "runs": 0, "history": None}
    recording: list[object] = []

    def train() -> None:
        state["runs"] += 1
        recording.append(state["history"])
        if state["runs"] == 1:
            state["workspaces"] = 64
            state["allocated"] += 64
        state["peak"] = state["allocated"] + 1000
        state["allocated"] += 3  # a leak

    def clear() -> None:
        state["allocated"] -= state["workspaces"]
        state["workspaces"] = 0

    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: state.update(peak=state["allocated"]))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: state["allocated"])
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: state["peak"])
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda: 4096)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(
        torch.cuda,
        "memory_stats",
        lambda: {
            f"requested_bytes.all.{key}": value - 2
            for key, value in (("current", state["allocated"]), ("peak", state["peak"]))
        },
    )
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", clear, raising=False)
    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", lambda enabled, **_: state.update(history=enabled))
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"device_traces": [[entry("alloc", 1, 1000)]]})
    trace = recorded(train)
    assert recording == [None, "all"] and state["history"] is None
    assert trace.sizes == [1000]
    assert trace.statistics == {
        "allocated": 1000,
        "requested": 1000,
        "reserved": 4096,
        "workspaces of cuBLAS": 64,
        "left afterwards": 6,
    }


def test_the_file_lies_beside_the_results_and_is_named(tmp_path: Path) -> None:
    trace = Trace([1], [0], [0], ["a"], [1])
    options = Options("cpu", True, 1, 1.0, folder=tmp_path)
    (note,) = estimates.keep({"one": trace}, "limits", options)
    (file,) = tmp_path.iterdir()
    assert f"`{file.name}`" in note and file.name.startswith("allocations-") and file.name.endswith("-limits.json.gz")
    assert read(file) == {"one": trace}
    assert estimates.keep({}, "limits", options) == []
    assert estimates.keep({"one": trace}, "limits", Options("cpu", True, 1, 1.0)) == []


def test_the_command_compares_with_today_s_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(
        tmp_path / "a.json.gz",
        {CONFIGURATIONS[0].label: Trace([7 * MIB], [0], [0], ["a.py:1 f"], [1], {"allocated": 9})},
    )
    monkeypatch.setattr(estimates, "TIMES", 1)
    monkeypatch.setattr("sys.argv", ["allocation_trace", str(tmp_path / "a.json.gz"), "--most", "3"])
    allocation_trace.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [CONFIGURATIONS[0].label, "  allocated: 9"]
    assert any("peak: 7,340,032 bytes measured" in line for line in lines)
    assert len(lines) == 8
