"""``TorchProfiler``: run ``torch.profiler`` in the profiler's windows, for operators, kernels and memory timelines."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.autograd.profiler import record_function

from composer import dist
from composer._forwarded_attributes import Forwarded
from composer._lazy import import_extra
from composer.profiler._output_files import WindowFiles
from composer.profiler.schedule import RECORDING, ProfilerAction
from composer.profiler.trace_handler import TraceHandler

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State
    from composer.core.timestamp import Timestamp

__all__ = ["TorchProfiler"]

_MEMORY_ENDINGS = (".html", ".json", ".json.gz")
# torch 2.10 opens the HTML file for writing only and then reads it. (TorchVersion compares as a version.)
_CAN_PLOT_MEMORY = torch.__version__ >= "2.11"


class TorchProfiler(TraceHandler):
    """Runs the PyTorch profiler in the windows of a :class:`.Profiler`; created by its ``torch_prof`` arguments.

    Its traces hold the operators on the host, the kernels on the accelerator and, as annotations around them, the spans
    of the profiler and ``ProfilerStep#{batch}`` for each batch. They can be opened in https://ui.perfetto.dev and in
    tools for PyTorch traces, and are included in the merged trace of :class:`.JSONTraceHandler`.

    Args:
        folder: Local folder; may contain run placeholders such as ``{run_name}``.
        filename: Name of the trace of a window, which may also contain time placeholders such as ``{batch}``.
        remote_file_name: Its name at loggers that store files; None uploads nothing.
        memory_filename: Name of the memory timeline of a window, by category: ``.html`` is a plot, which requires
            matplotlib and torch 2.11 or newer; ``.json`` and ``.json.gz`` hold the numbers. None writes none. For
            individual allocations on CUDA see :class:`.MemorySnapshot`.
        memory_remote_file_name: Its name at loggers that store files; None uploads nothing.
        overwrite: Whether to overwrite files of an earlier run. If False, they are renamed from ``x.json`` to
            ``x.1.json``.
        use_gzip: Whether to compress the traces; their names then end in ``.gz``.
        record_shapes: Whether to record input shapes.
        profile_memory: Whether to record memory allocations.
        with_stack: Whether to record source locations.
        with_flops: Whether to estimate the FLOPs of matrix products and convolutions.
        num_traces_to_keep: Number of most recent traces that each rank keeps; -1 keeps all, 0 keeps only uploaded
            ones.

    Attributes:
        profiler: The PyTorch profiler during a window, otherwise None.

    Raises:
        ValueError: A name has an unknown placeholder; ``num_traces_to_keep`` is less than -1; ``memory_filename`` is
            given without ``record_shapes``, ``profile_memory`` and ``with_stack``; or it ends in ``.html`` with torch
            2.10, which fails to write the plot.

    >>> TorchProfiler(memory_filename="rank{rank}.{batch}.html", record_shapes=True)
    Traceback (most recent call last):
    ValueError: memory_filename='rank{rank}.{batch}.html' requires with_stack=True.
    """

    folder, filename = Forwarded("files"), Forwarded("files")
    remote_file_name, overwrite = Forwarded("files"), Forwarded("files")
    num_traces_to_keep = Forwarded("files", "num_to_keep")

    def __init__(
        self,
        folder: str = "{run_name}/torch_traces",
        filename: str = "rank{rank}.{batch}.pt.trace.json",
        remote_file_name: str | None = "{run_name}/torch_traces/rank{rank}.{batch}.pt.trace.json",
        memory_filename: str | None = None,
        memory_remote_file_name: str | None = "{run_name}/torch_memory_traces/rank{rank}.{batch}.pt.memory_trace.html",
        overwrite: bool = False,
        use_gzip: bool = False,
        record_shapes: bool = False,
        profile_memory: bool = True,
        with_stack: bool = False,
        with_flops: bool = True,
        num_traces_to_keep: int = -1,
    ) -> None:
        if use_gzip:
            filename, remote_file_name = _zipped(filename), remote_file_name and _zipped(remote_file_name)
        self.files = WindowFiles(folder, filename, remote_file_name, overwrite, num_traces_to_keep)
        self.memory_files: WindowFiles | None = None
        if memory_filename is not None:
            needed = {"record_shapes": record_shapes, "profile_memory": profile_memory, "with_stack": with_stack}
            missing = " and ".join(f"{name}=True" for name, enabled in needed.items() if not enabled)
            if missing:
                raise ValueError(f"memory_filename={memory_filename!r} requires {missing}.")
            if not memory_filename.endswith(_MEMORY_ENDINGS):
                endings = ", ".join(_MEMORY_ENDINGS)
                raise ValueError(f"memory_filename={memory_filename!r} must end in one of {endings}.")
            if memory_filename.endswith(".html"):
                if not _CAN_PLOT_MEMORY:
                    raise ValueError(
                        f"memory_filename={memory_filename!r} cannot be an HTML plot with torch {torch.__version__}, "
                        f"which fails to write it. Use .json.gz, or torch 2.11 or newer."
                    )
                import_extra("matplotlib", "examples", f"memory_filename={memory_filename!r}")
            self.memory_files = WindowFiles(
                folder, memory_filename, memory_remote_file_name, overwrite, num_traces_to_keep, prefix="memory_"
            )
        self.record_shapes = record_shapes
        self.profile_memory = profile_memory
        self.with_stack = with_stack
        self.with_flops = with_flops
        self.profiler: torch.profiler.profile | None = None
        self._started = False
        self._step: record_function | None = None
        self._spans: dict[tuple[int, str], list[record_function]] = {}

    @property
    def memory_filename(self) -> str | None:
        """Name of the memory timeline of a window, with placeholders."""
        return None if self.memory_files is None else self.memory_files.filename

    @property
    def memory_remote_file_name(self) -> str | None:
        """Its name at loggers that store files, with placeholders."""
        return None if self.memory_files is None else self.memory_files.remote_file_name

    @property
    def saved_traces(self) -> list[tuple[Timestamp, list[Path]]]:
        """The kept traces, oldest first, each with the timestamp at which it was written."""
        return self.files.saved

    @property
    def __remote_file_name__(self) -> str | None:
        """The remote file name of uploads."""
        return self.files.remote_file_name

    def init(self, state: State, logger: Logger) -> None:
        """Prepare for a run: stop a running profiler and check the file names."""
        self._stop()
        for files in filter(None, (self.files, self.memory_files)):
            files.check(logger)

    def process_duration_event(
        self, name: str, categories: Sequence[str], is_start: bool, timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        """Annotate the operators within a span of the loop or of a marker."""
        key = (threading.get_native_id(), name)
        if is_start and self._started:
            span = record_function(name)
            span.__enter__()
            self._spans.setdefault(key, []).append(span)
        elif not is_start and self._spans.get(key):
            self._spans[key].pop().__exit__(None, None, None)

    def begin_batch(self, action: ProfilerAction, state: State) -> None:
        """Start or stop the PyTorch profiler.

        Args:
            action: The action of this batch.
            state: The state of the run.
        """
        self._end_step()
        if action is ProfilerAction.SKIP:
            self._stop()
            return
        if self.profiler is None:
            profile = torch.profiler.profile(
                record_shapes=self.record_shapes,
                profile_memory=self.profile_memory,
                with_stack=self.with_stack,
                with_flops=self.with_flops,
            )
            with warnings.catch_warnings():
                # torch 2.10 warns for every profile; here each has only one cycle.
                warnings.filterwarnings("ignore", message=".*clears events at the end of each cycle")
                profile.prepare_trace()
            self.profiler = profile  # set only now: stopping an unprepared profiler crashes the process
        if action in RECORDING:
            if not self._started:
                self.profiler.start_trace()
                self.profiler.add_metadata_json("composer", json.dumps({"rank": dist.get_global_rank()}))
                self._started = True
            self._step = record_function(f"ProfilerStep#{state.timestamp.batch.value}")
            self._step.__enter__()

    def save(self, state: State, logger: Logger) -> None:
        """Write the trace, and pass it to the handlers.

        Args:
            state: The state of the run.
            logger: Uploads files to the loggers that store files.
        """
        profile = self._stop()
        if profile is None:
            return
        path = self.files.new(state)
        profile.export_chrome_trace(str(path))
        self.files.upload(state, logger, path)
        state.profiler.record_chrome_json_trace_file(path)
        if self.memory_files is not None:
            path = self.memory_files.new(state)
            _export_memory(profile, path, state.device.torch_device)
            self.memory_files.upload(state, logger, path)

    def clean_up(self) -> None:
        """Remove the oldest files beyond ``num_traces_to_keep``."""
        for files in filter(None, (self.files, self.memory_files)):
            files.prune()

    def close(self, state: State, logger: Logger) -> None:
        """Stop the PyTorch profiler, also after an error."""
        self._stop()

    def _stop(self) -> torch.profiler.profile | None:
        """Stop the PyTorch profiler; return it if it has recorded."""
        self._end_step()
        profile, started = self.profiler, self._started
        self.profiler, self._started = None, False
        for spans in self._spans.values():
            while spans:
                spans.pop().__exit__(None, None, None)
        if profile is None:
            return None
        if not started:
            profile.start_trace()  # the only way to end a prepared profiler
        profile.stop_trace()
        return profile if started else None

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None


def _zipped(name: str) -> str:
    return name if name.endswith(".gz") else f"{name}.gz"


def _export_memory(profile: torch.profiler.profile, path: Path, device: torch.device) -> None:
    # Without a device index the timeline finds no tensors on an accelerator.
    name = "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"
    with warnings.catch_warnings():
        # Deprecated, but the replacement in PyTorch categorizes memory only on CUDA.
        warnings.filterwarnings("ignore", category=FutureWarning, message=".*export_memory_timeline")
        profile.export_memory_timeline(str(path), name)  # pyright: ignore[reportDeprecated]
