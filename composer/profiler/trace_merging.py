"""Traces of several processes and profilers as one, on one time axis."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

__all__ = ["MergedTrace", "TraceFile", "merge_traces", "metadata_event"]

_TAIL: Final = b"\n]\n"
# What a trace, which is a list of events, says of itself.
_METADATA_NAMES: Final = ("baseTimeNanoseconds", "run_name", "global_rank", "clock_offset_ns")
# Of the zero of a merged trace before the first event that it got, so that one that began earlier is not before zero.
_MARGIN_NS: Final = 3600 * 10**9


@dataclass(frozen=True)
class TraceFile:
    """A trace that goes into a merged one.

    Attributes:
        path: The file.
        rank: Of the process that it is about.
        clock_offset_ns: How much further the clock of that process's machine is than that of the first process.

    >>> TraceFile(Path("rank0.json")).rank
    0
    """

    path: Path
    rank: int = 0
    clock_offset_ns: int = 0


def merge_traces(target: str | Path, *paths: str | Path) -> None:
    """Merge traces into one, for those that no process could read together, such as those of several machines.

    Takes the files of :class:`.JSONTraceHandler` and :class:`.TorchProfiler`, which say which process they are of and
    how its clock differed, and the traces of PyTorch's profiler in general, one process a file.

    Args:
        target: The file to write.
        paths: The traces, in the order in which their processes are to be shown; compressed if they end in ``.gz``.

    Raises:
        ValueError: No trace is given, or a file holds none.

    >>> merge_traces("merged.json")
    Traceback (most recent call last):
    ValueError: paths: there is no trace to merge into 'merged.json'.
    """
    if not paths:
        raise ValueError(f"paths: there is no trace to merge into {str(target)!r}.")
    info = [_describe(path, number) for number, path in enumerate(map(Path, paths))]
    # Only the traces of the loop know how the clocks differed.
    offsets = {source.rank: source.clock_offset_ns for source in info if source.clock_offset_ns}
    merged = MergedTrace(Path(target))
    for source in info:
        merged.append(replace(source, clock_offset_ns=offsets.get(source.rank, 0)))


class MergedTrace:
    """A file to which traces are added, each in the time that its length takes.

    It is a list of events in Chrome's trace format; times count from its ``baseTimeNanoseconds``. Each process, and
    each accelerator that it used, has a row of its own, named after its rank.

    Args:
        path: The file; what is there is replaced.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     source = Path(folder, "source.json")
    ...     event = {"ph": "X", "name": "forward", "pid": 7, "tid": 7, "ts": 5.0, "dur": 2.0}
    ...     _ = source.write_text(json.dumps({"traceEvents": [event]}))
    ...     merged = MergedTrace(Path(folder, "merged.json"))
    ...     merged.append(TraceFile(source, rank=3))
    ...     events = json.loads(merged.path.read_text())
    >>> events[0]["name"], events[1]["args"], events[-1]["name"], events[-1]["dur"]
    ('baseTimeNanoseconds', {'name': 'rank 3'}, 'forward', 2.0)
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._base: int | None = None
        self._num_traces = 0
        self._rows: dict[tuple[int, bool, Any], int] = {}

    def append(self, source: TraceFile) -> None:
        """Add a trace.

        Args:
            part: The trace.

        Raises:
            ValueError: The file holds none.
        """
        trace = _read(source.path)
        events = sorted(_events_of(trace, source.path), key=lambda event: event.get("ts", 0.0))
        times = [event["ts"] for event in events if "ts" in event]
        base = int(trace.get("baseTimeNanoseconds", 0)) - source.clock_offset_ns
        if self._base is None:
            self._base = base + (int(times[0] * 1e3) if times else 0) - _MARGIN_NS
            text = "[\n" + json.dumps(metadata_event("baseTimeNanoseconds", self._base))
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_bytes(text.encode() + _TAIL)
        shift = (base - self._base) / 1e3
        lines = list(self._lines(events, source, shift, "clock_offset_ns" in trace))
        if lines:
            with self.path.open("r+b") as file:
                file.seek(-len(_TAIL), 2)
                file.write((",\n" + ",\n".join(lines)).encode() + _TAIL)
            self._num_traces += 1

    def _lines(self, events: list[dict[str, Any]], source: TraceFile, shift: float, is_loop: bool) -> Iterator[str]:
        """Yield events as they stand in the file."""
        shown = {event.get("pid") for event in events if event.get("ph") != "M"}
        named: set[Any] = set()
        for event in events:
            pid = event.get("pid")
            if pid not in shown:
                continue  # such as accelerators that other processes use
            known = len(self._rows)
            row = self._rows.setdefault((source.rank, is_loop, pid), known + 1)
            if row > known:
                # Profilers group what belongs to no process under a word.
                suffix = f": {pid}" if isinstance(pid, str) and pid else ""
                yield from _row(row, f"rank {source.rank}{suffix}", source.rank)
            event["pid"] = row
            if event.get("ph") == "M":
                if event.get("name") == "process_sort_index" or (event.get("name"), row, event.get("tid")) in named:
                    continue
                named.add((event.get("name"), row, event.get("tid")))
                if event.get("name") == "process_name":
                    event["args"] = {"name": f"rank {source.rank}: {_without_rank(event['args']['name'])}"}
                event.pop("ts", None)
            elif "ts" in event:
                event["ts"] = round(event["ts"] + shift, 3)
            if "id" in event:  # those of two files are not the same
                event["id"] = f"{self._num_traces}.{event['id']}"
            yield json.dumps(event)


def _describe(path: Path, number: int) -> TraceFile:
    """Return what a trace says of its process; one that says nothing is that of the process of its number."""
    trace = _read(path)
    info = trace.get("composer") or trace.get("distributedInfo") or {}
    return TraceFile(path, trace.get("global_rank", info.get("rank", number)), trace.get("clock_offset_ns", 0))


def metadata_event(name: str, value: Any) -> dict[str, Any]:
    """Return an event by which a trace says something of itself.

    Args:
        name: What it says.
        value: The value.

    >>> metadata_event("global_rank", 0)
    {'ph': 'M', 'name': 'global_rank', 'pid': 0, 'tid': 0, 'args': {'value': 0}}
    """
    return {"ph": "M", "name": name, "pid": 0, "tid": 0, "args": {"value": value}}


def _row(row: int, name: str, rank: int) -> Iterator[str]:
    """Yield the name and the place of a row; the rows of a process stand together."""
    for key, value in (("process_name", {"name": name}), ("process_sort_index", {"sort_index": rank * 1000 + row})):
        yield json.dumps({"ph": "M", "name": key, "pid": row, "tid": 0, "args": value})


def _without_rank(name: str) -> str:
    return name.partition(": ")[2] if name.startswith("rank ") else name


def _read(path: Path) -> dict[str, Any]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        trace = json.load(file)
    if isinstance(trace, dict):
        return trace
    metadata = {event["name"]: event["args"]["value"] for event in trace if _is_metadata(event)}
    return {**metadata, "traceEvents": [event for event in trace if not _is_metadata(event)]}


def _is_metadata(event: dict[str, Any]) -> bool:
    return event.get("ph") == "M" and event.get("name") in _METADATA_NAMES


def _events_of(trace: dict[str, Any], path: Path) -> Iterable[dict[str, Any]]:
    events = trace.get("traceEvents")
    if not isinstance(events, list):
        raise ValueError(f"{path} is no trace in Chrome's JSON format: it has no list 'traceEvents'.")
    return events
