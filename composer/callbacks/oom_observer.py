"""OOMObserver: write CUDA memory snapshots and flame graphs when CUDA runs out of memory (OOM)."""

from __future__ import annotations

import logging
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from composer._forwarded_attributes import Forwarded
from composer._numbers import whole_number
from composer.callbacks._cuda_memory import WRITERS, has_cuda_memory, record_history, stop_recording, take_snapshot
from composer.callbacks._memory_files import TraceFiles
from composer.core.callback import Callback
from composer.warnings import NoEffectWarning

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["OOMObserver"]

_log = logging.getLogger(__name__)


class OOMObserver(Callback):
    """Writes CUDA memory reports when an allocation fails, before the out-of-memory (OOM) error is raised.

    The reports are ``<filename>_snapshot.pickle`` for https://pytorch.org/memory_viz, ``<filename>_trace_plot.html``
    and ``<filename>_segment_plot.html`` for a browser, and two flame graphs by the code that allocated the memory:
    ``<filename>_segment_flamegraph.svg`` of reserved memory and ``<filename>_memory_flamegraph.svg`` of memory in use.
    Allocator events are recorded all the time, which costs a few microseconds per allocation. If memory runs out
    again, the earlier files are replaced.

    A failure to write one file is logged and affects neither the other files nor the error.

    Args:
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
        NoEffectWarning: When the trainer is created: the run is not on a CUDA device, and nothing is observed.

    >>> OOMObserver(max_entries=1000).max_entries
    1000
    """

    writes_output = True

    folder, filename = Forwarded("files"), Forwarded("files")
    remote_file_name, overwrite = Forwarded("files"), Forwarded("files")

    def __init__(
        self,
        max_entries: int = 100000,
        folder: str = "{run_name}/torch_traces",
        filename: str = "rank{rank}_oom",
        remote_file_name: str | None = "{run_name}/oom_traces/rank{rank}_oom",
        overwrite: bool = False,
    ) -> None:
        self.max_entries = whole_number("max_entries", max_entries, minimum=1)
        self.files = TraceFiles(folder, filename, remote_file_name, overwrite)
        self._run: tuple[weakref.ref[State], weakref.ref[Logger]] | None = None
        self._attached = False

    @property
    def __remote_file_name__(self) -> str | None:
        """Folder to which files are uploaded."""
        return self.files.remote_file_name

    def init(self, state: State, logger: Logger) -> None:
        """Start recording and observing."""
        if not has_cuda_memory(state):
            message = f"OOMObserver observes CUDA memory; this run is on {state.device.name} and observes nothing."
            warnings.warn(message, NoEffectWarning, stacklevel=2)
            return
        self.files.raise_if_existing(state, [f"_{ending}" for ending in WRITERS])
        self._run = weakref.ref(state), weakref.ref(logger)
        record_history(self, self.max_entries)
        if not self._attached:
            self._attached = True
            _attach(self)

    def close(self, state: State, logger: Logger) -> None:
        """Stop observing."""
        if self._run is not None:
            self._run = None
            stop_recording(self)

    def write(self, state: State, logger: Logger) -> list[Path]:
        """Write the files now and return the paths of those that could be written.

        Args:
            state: The state of the run.
            logger: Uploads the files to the loggers that store files.
        """
        snapshot = take_snapshot()
        written: list[Path] = []
        for ending, write in WRITERS.items():
            try:
                path = self.files.path(state, f"_{ending}")
                write(snapshot, path)
                written.append(path)
            except Exception:  # host memory may be short as well; the out-of-memory error is more informative
                _log.exception("OOMObserver could not write %s.", ending)
        self.files.upload(state, logger, written)
        return written

    def on_out_of_memory(self) -> None:
        """Write the files, if the run still exists."""
        if self._run is None:
            return
        state, logger = self._run[0](), self._run[1]()
        if state is None or logger is None:
            return
        try:
            written = self.write(state, logger)
        except Exception:  # an exception raised here would replace the out-of-memory error
            _log.exception("OOMObserver failed.")
        else:
            _log.error("Out of memory; see %s.", ", ".join(map(str, written)))


def _attach(observer: OOMObserver) -> None:
    """Register an observer with CUDA's allocator. It cannot be unregistered, so only a weak reference is kept."""
    weak = weakref.ref(observer)

    def on_failure(device: int, allocated: int, device_total: int, device_free: int) -> None:
        alive = weak()
        if alive is not None:
            alive.on_out_of_memory()

    native: Any = torch._C  # builds without CUDA lack the function
    native._cuda_attach_out_of_memory_observer(on_failure)
