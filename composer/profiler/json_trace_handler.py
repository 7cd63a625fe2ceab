"""``JSONTraceHandler``: write profiler traces in Chrome's JSON trace format, for Perfetto and Chrome."""

from __future__ import annotations

import json
import math
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from composer import dist
from composer._forwarded_attributes import Forwarded
from composer.core.name_placeholders import check_inside, check_remote_name, check_template, format_name
from composer.core.run_files import set_aside
from composer.profiler._output_files import WindowFiles
from composer.profiler._spans import EPOCH
from composer.profiler.trace_handler import TraceHandler
from composer.profiler.trace_merging import MergedTrace, TraceFile, metadata_event
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State
    from composer.core.timestamp import Timestamp

__all__ = ["JSONTraceHandler"]


class JSONTraceHandler(TraceHandler):
    """Writes traces in Chrome's JSON trace format, which https://ui.perfetto.dev opens.

    Each rank writes one file per window, with the spans of its threads. Rank 0 adds all of them, including the PyTorch
    profiler's, to one merged trace on a common time axis. Traces that rank 0 cannot read from its node are omitted with
    a warning; merge them later with :func:`.merge_traces`. Clock differences between nodes are corrected in the merged
    trace if they exceed the time that ranks wait for each other in a barrier.

    Times are in microseconds since the value of the event ``baseTimeNanoseconds``, the first in each file.

    Args:
        folder: Local folder; may contain run placeholders such as ``{run_name}``.
        filename: Name of the file of a window, which may also contain time placeholders such as ``{batch}``.
        remote_file_name: Its name at loggers that store files; None uploads nothing.
        merged_trace_filename: Name of the merged trace in the folder; None merges none.
        merged_trace_remote_file_name: Its name at loggers that store files; None uploads nothing.
        overwrite: Whether to overwrite files of an earlier run. If False, they are renamed from ``x.json`` to
            ``x.1.json``.
        num_traces_to_keep: Number of most recent files that each rank keeps; -1 keeps all, 0 keeps only uploaded ones.
            The merged trace contains the kept files, and at least the newest.

    Raises:
        ValueError: A name has an unknown placeholder, or the number is less than -1.

    >>> JSONTraceHandler("{runname}/traces")
    Traceback (most recent call last):
    ValueError: folder='{runname}/traces' has the unknown placeholder {runname}. Did you mean 'run_name'?
    """

    folder, filename = Forwarded("files"), Forwarded("files")
    remote_file_name, overwrite = Forwarded("files"), Forwarded("files")
    num_traces_to_keep = Forwarded("files", "num_to_keep")

    def __init__(
        self,
        folder: str = "{run_name}/traces",
        filename: str = "ep{epoch}-ba{batch}-rank{rank}.json",
        remote_file_name: str | None = "{run_name}/traces/ep{epoch}-ba{batch}-rank{rank}.json",
        merged_trace_filename: str | None = "merged_trace.json",
        merged_trace_remote_file_name: str | None = "{run_name}/traces/merged_trace.json",
        *,
        overwrite: bool = False,
        num_traces_to_keep: int = -1,
    ) -> None:
        self.files = WindowFiles(folder, filename, remote_file_name, overwrite, num_traces_to_keep)
        if merged_trace_filename is not None:
            template = check_template("merged_trace_filename", merged_trace_filename)
            merged_trace_filename = check_inside("merged_trace_filename", template)
        if merged_trace_remote_file_name is not None:
            name = check_template("merged_trace_remote_file_name", merged_trace_remote_file_name)
            merged_trace_remote_file_name = check_remote_name("merged_trace_remote_file_name", name)
        self.merged_trace_filename = merged_trace_filename
        self.merged_trace_remote_file_name = merged_trace_remote_file_name
        self._reset()

    @property
    def saved_traces(self) -> list[tuple[Timestamp, list[Path]]]:
        """The kept files, oldest first, each with the timestamp at which it was written."""
        return self.files.saved

    @property
    def __remote_file_name__(self) -> str | None:
        """The remote file name of uploads."""
        return self.files.remote_file_name

    def init(self, state: State, logger: Logger) -> None:
        """Prepare for a run and measure the clock offsets between ranks."""
        self._reset()
        self.files.check(logger)
        self._clock_offset_ns = _clock_offset_ns()

    def process_duration_event(
        self, name: str, categories: Sequence[str], is_start: bool, timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        """Record a span when it ends; for an epoch record both edges, as existing scripts expect."""
        if name == EPOCH:
            self._add(_Record("B" if is_start else "E", name, categories, timestamp, wall_clock_time_ns))
            return
        key = (threading.get_native_id(), name)
        if is_start:
            self._open.setdefault(key, []).append((wall_clock_time_ns, timestamp))
        elif self._open.get(key):
            began, timestamp = self._open[key].pop()
            self._add(_Record("X", name, categories, timestamp, began, wall_clock_time_ns - began))

    def process_instant_event(
        self, name: str, categories: Sequence[str], timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        """Record an instant event."""
        self._add(_Record("i", name, categories, timestamp, wall_clock_time_ns))

    def process_counter_event(
        self,
        name: str,
        categories: Sequence[str],
        timestamp: Timestamp,
        wall_clock_time_ns: int,
        values: dict[str, float],
    ) -> None:
        """Record counter values."""
        self._add(_Record("C", name, categories, timestamp, wall_clock_time_ns, values=_finite(values)))

    def process_chrome_json_trace_file(self, filepath: Path) -> None:
        """Remember the file for the merged trace."""
        self._other_traces.append(filepath.absolute())

    def save(self, state: State, logger: Logger) -> None:
        """Write the file of this rank and, on rank 0, the merged trace.

        Args:
            state: The state of the run.
            logger: Uploads files to the loggers that store files.
        """
        path = self.files.new(state)
        self._write(path, state)
        self.files.upload(state, logger, path)
        other_traces, self._other_traces = self._other_traces, []
        if self.merged_trace_filename is None:
            return
        rank = dist.get_global_rank()
        own_traces = [TraceFile(found, rank, self._clock_offset_ns) for found in (path, *other_traces)]
        all_traces = dist.all_gather_object(own_traces)
        if rank == 0:
            self._merge([trace for traces in all_traces for trace in traces], state, logger)
        if self.files.num_to_keep != -1:
            dist.barrier()  # no rank removes a file that rank 0 is still reading

    def clean_up(self) -> None:
        """Remove the oldest files beyond ``num_traces_to_keep``."""
        self.files.prune()

    def _reset(self) -> None:
        """Discard the records of an earlier run."""
        # Threads append at its end while the loop pops from its front.
        self._records: deque[_Record] = deque()
        self._open: dict[tuple[int, str], list[tuple[int, Timestamp]]] = {}
        self._threads: dict[int, str] = {}
        self._other_traces: list[Path] = []
        self._windows: deque[list[TraceFile]] = deque()
        self._merged: MergedTrace | None = None
        self._clock_offset_ns = 0

    def _add(self, record: _Record) -> None:
        thread = threading.get_native_id()
        if thread not in self._threads:
            self._threads[thread] = threading.current_thread().name
        self._records.append(record._replace(thread=thread))

    def _write(self, path: Path, state: State) -> None:
        records: list[_Record] = []
        while self._records:
            records.append(self._records.popleft())
        # Of two spans that start together, the longer one is the outer one.
        records.sort(key=lambda record: (record.began, -record.duration))
        base = records[0].began if records else time.time_ns()
        info = {
            "baseTimeNanoseconds": base,
            "run_name": state.run_name,
            "global_rank": dist.get_global_rank(),
            "clock_offset_ns": self._clock_offset_ns,
        }
        metadata = [metadata_event(name, value) for name, value in info.items()]
        events = [*metadata, *self._name_events(), *(record.event(base) for record in records)]
        with path.open("w") as file:
            file.write("[\n" + ",\n".join(map(json.dumps, events)) + "\n]\n")

    def _name_events(self) -> Iterator[dict[str, Any]]:
        process = os.getpid()
        name = f"rank {dist.get_global_rank()}: loop"
        yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
        for thread, name in list(self._threads.items()):
            yield {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}

    def _merge(self, traces: list[TraceFile], state: State, logger: Logger) -> None:
        """Add the traces of a window to the merged trace, or rewrite it if older windows are no longer kept."""
        readable = [trace for trace in traces if trace.path.exists()]
        if len(readable) < len(traces):
            missing = ", ".join(map(str, sorted({trace.rank for trace in traces if trace not in readable})))
            message = (
                f"{self.merged_trace_filename} lacks the traces of ranks {missing}, which are on other nodes. Copy the "
                f"files to one node and call composer.profiler.merge_traces."
            )
            warnings.warn(message, ComposerWarning, stacklevel=2)
        folder = Path(format_name(self.files.folder, state.run_name))
        path = folder / format_name(self.merged_trace_filename or "", state.run_name)
        if self._merged is None and path.exists() and not self.files.overwrite:
            set_aside(path)
        self._windows.append(readable)
        if self.files.num_to_keep != -1 and len(self._windows) > max(self.files.num_to_keep, 1):
            self._windows.popleft()
            readable = [trace for window in self._windows for trace in window if trace.path.exists()]
            self._merged = None
        if self._merged is None:
            self._merged = MergedTrace(path)
        for trace in readable:
            self._merged.append(trace)
        name = self.merged_trace_remote_file_name
        if name is not None and logger.has_file_upload_destination():
            logger.upload_file(format_name(name, state.run_name), path, overwrite=True)


class _Record(NamedTuple):
    """An event of a trace; times in nanoseconds."""

    phase: str
    name: str
    categories: Sequence[str]
    timestamp: Timestamp
    began: int
    duration: int = 0
    values: dict[str, float] | None = None
    thread: int = 0

    def event(self, base: int) -> dict[str, Any]:
        """Return the record as an event of Chrome's trace format.

        Args:
            base: Start of the time axis, in nanoseconds.
        """
        event: dict[str, Any] = {
            "ph": self.phase,
            "name": self.name,
            "cat": ",".join(self.categories),
            "pid": os.getpid(),
            "tid": self.thread,
            "ts": (self.began - base) / 1e3,
        }
        if self.phase == "X":
            event["dur"] = self.duration / 1e3
        elif self.phase == "i":
            event["s"] = "t"
        if self.values is not None:
            event["args"] = self.values
        else:
            time = self.timestamp
            event["args"] = {"epoch": time.epoch.value, "batch": time.batch.value}
        return event


def _finite(values: dict[str, float]) -> dict[str, float]:
    """Return the finite values, which JSON supports; the others are gaps in the counter."""
    return {name: number for name, value in values.items() if math.isfinite(number := float(value))}


def _clock_offset_ns() -> int:
    """Return how far the clock of this rank is ahead of rank 0's, in nanoseconds.

    Every rank reads its clock between the second and the third barrier: after all have reached the second, and before
    any has left the third. A difference that the time in the barriers could explain counts as zero.
    """
    if dist.get_world_size() == 1:
        return 0
    dist.barrier()
    before = time.time_ns()
    dist.barrier()
    middle = time.time_ns()
    dist.barrier()
    after = time.time_ns()
    offset = middle - dist.all_gather_object(middle)[0]
    return offset if abs(offset) > max(middle - before, after - middle) else 0
