"""TorchProfiler: the operators of PyTorch within the spans of the loop."""

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
# torch 2.10 opens the picture for writing only, and then reads it. (A TorchVersion compares as versions do.)
_CAN_PLOT_MEMORY = torch.__version__ >= "2.11"


class TorchProfiler(TraceHandler):
    """Runs PyTorch's profiler in the windows of a :class:`.Profiler`; made by its ``torch_prof`` arguments.

    Its traces have the operators on the host, the kernels on the accelerator and, as annotations around them, the spans
    of the profiler and ``ProfilerStep#{batch}`` for each batch. They open by themselves in https://ui.perfetto.dev and
    in tools made for PyTorch's traces, and are part of the merged trace of :class:`.JSONTraceHandler`.

    Args:
        folder: Local folder; may contain run placeholders such as ``{run_name}``.
        filename: Name of a window's trace, which may also contain time placeholders such as ``{batch}``.
        remote_file_name: Its name at loggers that store files; None uploads nothing.
        memory_filename: Name of a window's timeline of memory, by what it is used for: ``.html`` is a picture, for
            which matplotlib has to be installed and torch 2.11 or newer, ``.json`` and ``.json.gz`` are numbers. None
            writes none. For every single allocation on CUDA see :class:`.MemorySnapshot`.
        memory_remote_file_name: Its name at loggers that store files; None uploads nothing.
        overwrite: Whether to overwrite files of an earlier run. If False, they are renamed from ``x.json`` to ``x.1.json``.
        use_gzip: Whether to compress the traces, whose names then end in ``.gz``.
        record_shapes: Whether to record the shapes of inputs.
        profile_memory: Whether to record the allocations of memory.
        with_stack: Whether to record the lines of code.
        with_flops: Whether to estimate the operations of matrix products and convolutions.
        num_traces_to_keep: Number of traces that each process keeps, the newest; -1 is all, 0 keeps only what the
            loggers do.

    Attributes:
        profiler: PyTorch's profiler while a window lasts, None otherwise.

    Raises:
        ValueError: A name has an unknown placeholder, the number is less than -1, or there is to be a timeline of
            memory without ``record_shapes``, ``profile_memory`` and ``with_stack``, of which it is made; or a picture
            of it with torch 2.10, which fails to write it.

    >>> TorchProfiler(memory_filename="rank{rank}.{batch}.html", record_shapes=True)
    Traceback (most recent call last):
    ValueError: memory_filename='rank{rank}.{batch}.html' needs with_stack=True too, of which it is made.
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
                raise ValueError(f"memory_filename={memory_filename!r} needs {missing} too, of which it is made.")
            if not memory_filename.endswith(_MEMORY_ENDINGS):
                endings = ", ".join(_MEMORY_ENDINGS)
                raise ValueError(f"memory_filename={memory_filename!r} must end in one of {endings}.")
            if memory_filename.endswith(".html"):
                if not _CAN_PLOT_MEMORY:
                    raise ValueError(
                        f"memory_filename={memory_filename!r} cannot be a picture with torch {torch.__version__}, "
                        f"which fails to write it. Write .json.gz, or train with torch 2.11 or newer."
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
        """Name of a window's timeline of memory, with placeholders."""
        return None if self.memory_files is None else self.memory_files.filename

    @property
    def memory_remote_file_name(self) -> str | None:
        """Its name at the loggers that keep files, with placeholders."""
        return None if self.memory_files is None else self.memory_files.remote_file_name

    @property
    def saved_traces(self) -> list[tuple[Timestamp, list[Path]]]:
        """The traces that are kept, the oldest first, each with the training time at which it was written."""
        return self.files.saved

    @property
    def __remote_file_name__(self) -> str | None:
        """Where files are uploaded to."""
        return self.files.remote_file_name

    def init(self, state: State, logger: Logger) -> None:
        """Begin a run."""
        self._stop()
        for files in filter(None, (self.files, self.memory_files)):
            files.check(logger)

    def process_duration_event(
        self, name: str, categories: Sequence[str], is_start: bool, timestamp: Timestamp, wall_clock_time_ns: int
    ) -> None:
        """Put a span of the loop, or of a marker, around the operators in it."""
        key = (threading.get_native_id(), name)
        if is_start and self._started:
            span = record_function(name)
            span.__enter__()
            self._spans.setdefault(key, []).append(span)
        elif not is_start and self._spans.get(key):
            self._spans[key].pop().__exit__(None, None, None)

    def begin_batch(self, action: ProfilerAction, state: State) -> None:
        """Start or stop PyTorch's profiler.

        Args:
            action: What is done in this batch.
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
                # torch 2.10 says so of every profile; each has one cycle here.
                warnings.filterwarnings("ignore", message=".*clears events at the end of each cycle")
                profile.prepare_trace()
            self.profiler = profile  # only now, since stopping one that is not prepared ends the process
        if action in RECORDING:
            if not self._started:
                self.profiler.start_trace()
                self.profiler.add_metadata_json("composer", json.dumps({"rank": dist.get_global_rank()}))
                self._started = True
            self._step = record_function(f"ProfilerStep#{state.timestamp.batch.value}")
            self._step.__enter__()

    def save(self, state: State, logger: Logger) -> None:
        """Write the trace, and hand it to the handlers.

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
        """Stop PyTorch's profiler, also after an error."""
        self._stop()

    def _stop(self) -> torch.profiler.profile | None:
        """Stop PyTorch's profiler; return it if it has recorded."""
        self._end_step()
        profile, started = self.profiler, self._started
        self.profiler, self._started = None, False
        for spans in self._spans.values():
            while spans:
                spans.pop().__exit__(None, None, None)
        if profile is None:
            return None
        if not started:
            profile.start_trace()  # one that was prepared ends by no other way
        profile.stop_trace()
        return profile if started else None

    def _end_step(self) -> None:
        if self._step is not None:
            self._step.__exit__(None, None, None)
            self._step = None


def _zipped(name: str) -> str:
    return name if name.endswith(".gz") else f"{name}.gz"


def _export_memory(profile: torch.profiler.profile, path: Path, device: torch.device) -> None:
    # Without an index the timeline finds no tensor of an accelerator.
    name = "cpu" if device.type == "cpu" else f"{device.type}:{device.index or 0}"
    with warnings.catch_warnings():
        # Only PyTorch's own replacement sorts memory by use, and it does so for CUDA alone.
        warnings.filterwarnings("ignore", category=FutureWarning, message=".*export_memory_timeline")
        profile.export_memory_timeline(str(path), name)  # pyright: ignore[reportDeprecated]
