"""merge_traces: one time axis, rows by process, clocks that differ."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from composer.profiler import merge_traces
from composer.profiler.trace_merging import MergedTrace, TraceFile, metadata_event
from tests.profiler.traces import events_of, named, notes_of

SECOND = 10**9
START = 1_800_000_000 * SECOND


def span(name: str, ts: float, pid: Any = 5, **more: Any) -> dict[str, Any]:
    return {"ph": "X", "name": name, "pid": pid, "tid": 6, "ts": ts, "dur": 2.5, **more}


def process(name: str, pid: Any = 5) -> dict[str, Any]:
    return {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 4.0, "args": {"name": name}}


def write(path: Path, events: list[dict[str, Any]], base: int = START, **more: Any) -> Path:
    """A trace as a list if it is of a loop, and otherwise an object, as PyTorch writes it."""
    notes = {"baseTimeNanoseconds": base, **more}
    as_list = [*(metadata_event(name, value) for name, value in notes.items()), *events]
    text = json.dumps(as_list if "clock_offset_ns" in more else {"traceEvents": events, **notes})
    if path.suffix == ".gz":
        with gzip.open(path, "wt") as file:
            file.write(text)
    else:
        path.write_text(text)
    return path


def about(rank: int, offset: int = 0) -> dict[str, Any]:
    return {"global_rank": rank, "clock_offset_ns": offset}


def start_ns(path: Path, name: str) -> int:
    """When the one span of a name begins, in nanoseconds since 1970."""
    [event] = named(events_of(path), name)
    return notes_of(path)["baseTimeNanoseconds"] + round(event["ts"] * 1000)


def rows(path: Path) -> dict[str, set[int]]:
    """The rows by name; the last name of a row counts."""
    names: dict[int, str] = {}
    for event in events_of(path):
        if event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
    return {name: {pid for pid, other in names.items() if other == name} for name in names.values()}


def test_one_time_axis(tmp_path) -> None:
    one = write(tmp_path / "1.json", [span("a", 10.0)])
    two = write(tmp_path / "2.json.gz", [span("b", 3 * 1e6 + 0.125)], START - 2 * SECOND)
    merge_traces(tmp_path / "m.json", one, two)
    assert start_ns(tmp_path / "m.json", "a") == START + 10_000
    assert start_ns(tmp_path / "m.json", "b") == START + SECOND + 125


def test_clocks_that_differ_are_set_right(tmp_path) -> None:
    """The trace of PyTorch knows its rank only; the clock is that of the loop's trace of the rank."""
    first = write(tmp_path / "1.json", [span("a", 0.0)], **about(0))
    second = write(tmp_path / "2.json", [span("b", 0.0)], START + 7000, **about(1, 5000))
    operators = write(tmp_path / "3.json", [span("c", 1.0)], START + 7000, composer={"rank": 1})
    merge_traces(tmp_path / "m.json", first, second, operators)
    assert start_ns(tmp_path / "m.json", "b") - start_ns(tmp_path / "m.json", "a") == 2000
    assert start_ns(tmp_path / "m.json", "c") - start_ns(tmp_path / "m.json", "a") == 3000


def test_each_process_has_rows_of_its_own(tmp_path) -> None:
    """Processes of different machines may have the same number, as may an accelerator."""
    files = []
    for rank in (0, 1):
        loop = [process("rank 0: loop"), span("loop", 5.0)]
        files.append(write(tmp_path / f"loop{rank}.json", loop, **about(rank)))
        torch = [process("python"), span("op", 5.0), process("gpu", 0), span("kernel", 6.0, 0), process("unused", 1)]
        files.append(write(tmp_path / f"torch{rank}.json", torch, distributedInfo={"rank": rank}))
    merge_traces(tmp_path / "m.json", *files)
    found = rows(tmp_path / "m.json")
    assert sorted(found) == [f"rank {rank}: {name}" for rank in (0, 1) for name in ("gpu", "loop", "python")]
    assert all(len(pids) == 1 for pids in found.values())
    events = events_of(tmp_path / "m.json")
    assert {event["pid"] for event in named(events, "kernel")} == found["rank 0: gpu"] | found["rank 1: gpu"]
    order = {e["pid"]: e["args"]["sort_index"] for e in events if e["name"] == "process_sort_index"}
    assert max(order[p] for n, ps in found.items() for p in ps if "rank 0" in n) < 1000
    assert min(order[p] for n, ps in found.items() for p in ps if "rank 1" in n) >= 1000


def test_windows_of_a_process_share_its_rows(tmp_path) -> None:
    merged = MergedTrace(tmp_path / "m.json")
    for number in (1, 2, 3):
        merged.append(
            TraceFile(write(tmp_path / f"{number}.json", [process("loop"), span(f"w{number}", 10.0 * number)]), 0)
        )
    assert rows(tmp_path / "m.json") == {"rank 0: loop": {1}}
    starts = [start_ns(tmp_path / "m.json", f"w{number}") for number in (1, 2, 3)]
    assert starts == [START + 10_000, START + 20_000, START + 30_000]


def test_what_belongs_to_no_process_is_named_by_its_word(tmp_path) -> None:
    merge_traces(tmp_path / "m.json", write(tmp_path / "1.json", [span("a", 1.0, "Spans"), span("b", 1.0, "")]))
    assert set(rows(tmp_path / "m.json")) == {"rank 0: Spans", "rank 0"}


def test_arrows_of_different_files_stay_apart(tmp_path) -> None:
    arrow = [{"ph": kind, "name": "ac2g", "pid": 5, "tid": 6, "ts": 1.0, "id": 3} for kind in "sf"]
    files = [write(tmp_path / f"{number}.json", arrow) for number in (1, 2)]
    merge_traces(tmp_path / "m.json", *files)
    ids = [event["id"] for event in named(events_of(tmp_path / "m.json"), "ac2g")]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_files_without_events_and_plain_lists(tmp_path) -> None:
    empty = write(tmp_path / "1.json", [])
    (tmp_path / "2.json").write_text(json.dumps([span("a", 10.0)]))
    merge_traces(tmp_path / "m.json", empty, tmp_path / "2.json", empty)
    # A list says nothing of when its times count from.
    assert json.loads((tmp_path / "m.json").read_text())[-1]["name"] == "a"
    merge_traces(tmp_path / "n.json", empty)
    assert events_of(tmp_path / "n.json") == []


def test_refuses_what_is_no_trace(tmp_path) -> None:
    with pytest.raises(ValueError, match="there is no trace to merge"):
        merge_traces(tmp_path / "m.json")
    (tmp_path / "1.json").write_text('{"a": 1}')
    with pytest.raises(ValueError, match=r"1\.json is not a trace in Chrome's JSON format"):
        merge_traces(tmp_path / "m.json", tmp_path / "1.json")
