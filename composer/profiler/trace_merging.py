"""Merge the traces of several ranks and profilers into one trace on a common time axis (``merge_traces``)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

__all__ = ["MergedTrace", "TraceFile", "merge_traces", "metadata_event"]

_TAIL: Final = b"\n]\n"
# Names of the metadata events of a trace.
_METADATA_NAMES: Final = ("baseTimeNanoseconds", "run_name", "global_rank", "clock_offset_ns")
# The time axis of a merged trace starts this long before the first event, because files that are added later may hold
# earlier events.
_MARGIN_NS: Final = 3600 * 10**9


@dataclass(frozen=True)
class TraceFile:
    """A trace file to merge.

    Attributes:
        path: The file.
        rank: The rank that wrote it.
        clock_offset_ns: How far the clock of that rank is ahead of rank 0's, in nanoseconds.

    >>> TraceFile(Path("rank0.json")).rank
    0
    """

    path: Path
    rank: int = 0
    clock_offset_ns: int = 0


def merge_traces(target: str | Path, *paths: str | Path) -> None:
    """Merge trace files into one, for example files from several nodes.

    It accepts the files of :class:`.JSONTraceHandler` and :class:`.TorchProfiler`, which store their rank and clock
    offset, and other traces of the PyTorch profiler with one rank per file.

    Args:
        target: The file to write.
        paths: The trace files, in the order of their ranks; compressed if they end in ``.gz``.

    Raises:
        ValueError: No file is given, or a file is not a trace.

    >>> merge_traces("merged.json")
    Traceback (most recent call last):
    ValueError: paths: there is no trace to merge into 'merged.json'.
    """
    if not paths:
        raise ValueError(f"paths: there is no trace to merge into {str(target)!r}.")
    info = [_describe(path, number) for number, path in enumerate(map(Path, paths))]
    # Only the traces of the loop store the clock offset.
    offsets = {source.rank: source.clock_offset_ns for source in info if source.clock_offset_ns}
    merged = MergedTrace(Path(target))
    for source in info:
        merged.append(replace(source, clock_offset_ns=offsets.get(source.rank, 0)))


class MergedTrace:
    """A trace file to which other traces are appended, without rereading it.

    It is a list of events in Chrome's trace format; times count from its ``baseTimeNanoseconds``. Each rank, and each
    accelerator that it used, has a separate row, named after its rank.

    Args:
        path: The file; an existing one is overwritten.

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
        """Append a trace.

        Args:
            part: The trace.

        Raises:
            ValueError: The file is not a trace.
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
        """Yield the lines of the merged file for the events of a trace."""
        shown = {event.get("pid") for event in events if event.get("ph") != "M"}
        named: set[Any] = set()
        for event in events:
            pid = event.get("pid")
            if pid not in shown:
                continue  # such as accelerators used by other processes
            known = len(self._rows)
            row = self._rows.setdefault((source.rank, is_loop, pid), known + 1)
            if row > known:
                # Profilers use a word as pid for events that belong to no process.
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
            if "id" in event:  # ids are unique only within a file
                event["id"] = f"{self._num_traces}.{event['id']}"
            yield json.dumps(event)


def _describe(path: Path, number: int) -> TraceFile:
    """Return the rank and clock offset that a trace stores; the rank defaults to the index of the file."""
    trace = _read(path)
    info = trace.get("composer") or trace.get("distributedInfo") or {}
    return TraceFile(path, trace.get("global_rank", info.get("rank", number)), trace.get("clock_offset_ns", 0))


def metadata_event(name: str, value: Any) -> dict[str, Any]:
    """Return a metadata event of a trace.

    Args:
        name: Name of the metadata.
        value: The value.

    >>> metadata_event("global_rank", 0)
    {'ph': 'M', 'name': 'global_rank', 'pid': 0, 'tid': 0, 'args': {'value': 0}}
    """
    return {"ph": "M", "name": name, "pid": 0, "tid": 0, "args": {"value": value}}


def _row(row: int, name: str, rank: int) -> Iterator[str]:
    """Yield the name and sort index of a row; the rows of a rank are adjacent."""
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
        raise ValueError(f"{path} is not a trace in Chrome's JSON format: it has no list 'traceEvents'.")
    return events
