"""Write down what CUDA memory was used for when there was not enough of it."""

from __future__ import annotations

import logging
import warnings
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from composer._forwarded_attributes import Forwarded
from composer._text import positive
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
    """Writes files about the CUDA memory when an allocation fails, before the error is raised.

    They are ``<filename>_snapshot.pickle`` for https://pytorch.org/memory_viz, ``<filename>_trace_plot.html`` and
    ``<filename>_segment_plot.html`` for a browser, and the flame graphs ``<filename>_segment_flamegraph.svg``, of what
    the allocator has reserved, and ``<filename>_memory_flamegraph.svg``, of what is in use, by the code that asked for
    it. What the allocator does is recorded all the time, which costs a few microseconds for each allocation. When
    memory runs out again, the files of the time before are replaced.

    A failure to write one of them is logged and hides neither the others nor the error.

    Args:
        max_entries: Number of events to keep, the newest.
        folder: Local folder of the files, with the placeholders of a run, such as ``{run_name}``.
        filename: Name of the files without ending, with the placeholders of a run and its time, such as ``{batch}``.
        remote_file_name: Folder at the loggers that keep files; None hands them none.
        overwrite: Whether files of an earlier run may be replaced.

    Raises:
        ValueError: An argument is impossible.
        FileExistsError: When the trainer is made: a file exists and ``overwrite`` is not set.

    Warns:
        NoEffectWarning: When the trainer is made: the run is not on a CUDA device, and nothing is observed.

    >>> OOMObserver(max_entries=1000).max_entries
    1000
    """

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
        self.max_entries = positive("max_entries", max_entries)
        self.files = TraceFiles(folder, filename, remote_file_name, overwrite)
        self._run: tuple[weakref.ref[State], weakref.ref[Logger]] | None = None
        self._attached = False

    @property
    def __remote_file_name__(self) -> str | None:
        """Where files are uploaded to."""
        return self.files.remote_file_name

    def init(self, state: State, logger: Logger) -> None:
        """Begin to record and to observe."""
        if not has_cuda_memory(state):
            message = f"OOMObserver observes CUDA memory; this run is on {state.device.name}, which it does not."
            warnings.warn(message, NoEffectWarning, stacklevel=2)
            return
        self.files.refuse_existing(state, [f"_{kind}" for kind in WRITERS])
        self._run = weakref.ref(state), weakref.ref(logger)
        record_history(self, self.max_entries)
        if not self._attached:
            self._attached = True
            _attach(self)

    def close(self, state: State, logger: Logger) -> None:
        """Observe no longer."""
        if self._run is not None:
            self._run = None
            stop_recording(self)

    def write(self, state: State, logger: Logger) -> list[Path]:
        """Write the files now; return those that could be written.

        Args:
            state: The state of the run.
            logger: Leads to the loggers that keep files.
        """
        snapshot = take_snapshot()
        written: list[Path] = []
        for kind, write in WRITERS.items():
            try:
                path = self.files.path(state, f"_{kind}")
                write(snapshot, path)
                written.append(path)
            except Exception:  # the memory of the host may be short as well; the error to be raised says more
                _log.exception("OOMObserver could not write %s.", kind)
        self.files.upload(state, logger, written)
        return written

    def on_out_of_memory(self) -> None:
        """Write the files, if the run is still there."""
        if self._run is None:
            return
        state, logger = self._run[0](), self._run[1]()
        if state is None or logger is None:
            return
        try:
            written = self.write(state, logger)
        except Exception:  # what is raised here would take the place of the error
            _log.exception("OOMObserver failed.")
        else:
            _log.error("Out of memory; see %s.", ", ".join(map(str, written)))


def _attach(observer: OOMObserver) -> None:
    """Have CUDA's allocator call an observer; it cannot be detached, so it must not be kept alive by this."""
    weak = weakref.ref(observer)

    def on_failure(device: int, allocated: int, device_total: int, device_free: int) -> None:
        alive = weak()
        if alive is not None:
            alive.on_out_of_memory()

    native: Any = torch._C  # builds without CUDA lack the function
    native._cuda_attach_out_of_memory_observer(on_failure)
