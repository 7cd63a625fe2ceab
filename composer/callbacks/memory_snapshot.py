"""MemorySnapshot: record the CUDA memory history of some batches, to find what causes OOM."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from composer._forwarded_attributes import Forwarded
from composer._numbers import whole_number
from composer.callbacks._cuda_memory import WRITERS, has_cuda_memory, record_history, stop_recording, take_snapshot
from composer.callbacks._memory_files import TraceFiles
from composer.core.callback import Callback
from composer.core.time import Time, TimeUnit, ensure_time
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State
    from composer.core.timestamp import Timestamp

__all__ = ["MemorySnapshot"]

_ENDINGS = {".pickle": "snapshot.pickle", ".html": "trace_plot.html"}


class MemorySnapshot(Callback):
    """Records every CUDA memory allocation for some batches, once per run, and writes the history to two files.

    ``<filename>.pickle`` is for https://pytorch.org/memory_viz, ``<filename>.html`` opens in a browser. They show
    which memory was in use when, and which line of code allocated it. Recording slows down the recorded batches.

    Args:
        skip_batches: Number of batches to train before recording, as the first allocates what later ones reuse.
        interval: How long to record: epochs, or a time in epochs, iterations, batches, samples or tokens. Recording
            ends with the first batch that reaches it.
        max_entries: Maximum number of events to keep; the newest are kept.
        folder: Local folder of the files, with the placeholders of a run, such as ``{run_name}``.
        filename: Name of the files without extension, with the placeholders of a run and its time, such as
            ``{batch}``.
        remote_file_name: Folder at the loggers that store files; None does not upload.
        overwrite: Whether to replace files of an earlier run.

    Raises:
        ValueError: An argument is invalid.
        FileExistsError: When the trainer is created: a file exists and ``overwrite`` is False.

    Warns:
        NoEffectWarning: When the trainer is created: the run is not on a CUDA device, and nothing is recorded.

    >>> MemorySnapshot(skip_batches=10, interval="2ba").interval
    Time(2, TimeUnit.BATCH)
    """

    writes_output = True

    folder, filename = Forwarded("files"), Forwarded("files")
    remote_file_name, overwrite = Forwarded("files"), Forwarded("files")

    def __init__(
        self,
        skip_batches: int = 1,
        interval: int | str | Time = "3ba",
        max_entries: int = 100000,
        folder: str = "{run_name}/torch_traces",
        filename: str = "rank{rank}.{batch}.memory_snapshot",
        remote_file_name: str | None = "{run_name}/torch_memory_traces",
        overwrite: bool = False,
    ) -> None:
        self.skip_batches = whole_number("skip_batches", skip_batches)
        units = [unit for unit in TimeUnit if unit not in (TimeUnit.DURATION, TimeUnit.SECOND)]
        self.interval = ensure_time(interval, TimeUnit.EPOCH, "interval", units)
        if self.interval.value < 1:
            raise ValueError(f"interval must be positive, such as '3ba'; got {interval!r}.")
        self.max_entries = whole_number("max_entries", max_entries, minimum=1)
        self.files = TraceFiles(folder, filename, remote_file_name, overwrite)
        self._start: Timestamp | None = None
        self._enabled = False
        self._done = False

    @property
    def __remote_file_name__(self) -> str | None:
        """Folder to which files are uploaded."""
        return self.files.remote_file_name

    def init(self, state: State, logger: Logger) -> None:
        """Check that there is CUDA memory to record, and that the files do not exist."""
        self._start, self._done = None, False
        self._enabled = has_cuda_memory(state)
        if not self._enabled:
            message = f"MemorySnapshot records CUDA memory; this run is on {state.device.name} and records nothing."
            warnings.warn(message, NoEffectWarning, stacklevel=2)
            return
        self.files.raise_if_existing(state, _ENDINGS)

    def batch_start(self, state: State, logger: Logger) -> None:
        """Start recording after the batches to skip."""
        waiting = self._enabled and not self._done and self._start is None
        if waiting and state.timestamp.count(TimeUnit.BATCH) >= self.skip_batches:
            self._start = state.timestamp
            record_history(self, self.max_entries)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Write the files at the end of the interval."""
        if self._start is None:
            return
        unit = self.interval.unit
        if state.timestamp.count(unit) - self._start.count(unit) >= self.interval.value:
            self._write(state, logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Write the files at the end of the interval."""
        self.batch_end(state, logger)

    def close(self, state: State, logger: Logger) -> None:
        """Stop recording, also after an error."""
        self._stop()

    def _write(self, state: State, logger: Logger) -> None:
        snapshot = take_snapshot()
        self._stop()
        self._done = True
        paths = {ending: self.files.path(state, ending) for ending in _ENDINGS}
        for ending, path in paths.items():
            WRITERS[_ENDINGS[ending]](snapshot, path)
        self.files.upload(state, logger, paths.values())

    def _stop(self) -> None:
        if self._start is not None:
            self._start = None
            stop_recording(self)
