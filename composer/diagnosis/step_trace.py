"""The probe that records the PyTorch profiler's trace of some steps of the unchanged run."""

from __future__ import annotations

import dataclasses
import gzip
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer._output_file import output_file
from composer.diagnosis.recorder import DoctorProbe
from composer.profiler import Profiler, ProfilerAction
from composer.trials.probe import Finished
from composer.trials.trial import Record

if TYPE_CHECKING:
    from composer.core.state import State
    from composer.trainer import Trainer

__all__ = ["TRACED_STEPS", "StepTrace", "TraceRecorder", "copy_trace", "trace_file"]

TRACED_STEPS = 3
# Steps before them: caches and workers warm up, and then the profiler, whose start distorts times.
_SKIPPED, _WARMUP = 3, 1
# All ranks record, so that they keep step; the trace of rank 0 is kept.
_NAME = "rank{rank}.trace.json"
# The start of a file, in bytes, which tells a trace from others.
_HEAD = 4096


@dataclass(frozen=True)
class StepTrace:
    """A trace that was recorded.

    Args:
        path: The file; empty if there is none.
        steps: Number of steps in it.
        error: Why there is none.

    >>> StepTrace("slow.trace.json").to_json()
    {'path': 'slow.trace.json', 'steps': 3, 'error': ''}
    """

    path: str
    steps: int = TRACED_STEPS
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return what is known of it in JSON types."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """A line that names the file, or says why there is none."""
        if self.error:
            return f"The profiler's trace could not be recorded: {self.error}"
        return f"The profiler's trace of {self.steps} further steps, for https://ui.perfetto.dev: {self.path}"


class TraceRecorder(DoctorProbe):
    """Records the trace of some steps: stages, methods, callbacks and loggers by name, operators and kernels.

    It has a process of its own: the profiler slows down what it records, so these steps are not measured.

    Args:
        folder: Folder of the trial, with the traces.
        changed: See :class:`.DoctorProbe`.
        edits: See :class:`.DoctorProbe`.

    >>> Trial("trace", target, "composer.diagnosis.step_trace:TraceRecorder")  # doctest: +SKIP
    """

    def init(self, arguments: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the trainer with the profiler."""
        restored = super().init(arguments, given)
        restored["profiler"] = Profiler(
            _Once(),
            [],
            sys_prof_cpu=False,
            torch_prof_folder=str(self.folder).replace("{", "{{").replace("}", "}}"),
            torch_prof_filename=_NAME,
            torch_prof_remote_file_name=None,
            torch_prof_record_shapes=True,
            torch_prof_profile_memory=False,
            torch_prof_with_flops=False,
        )
        return restored

    def begin(self, trainer: Trainer) -> None:
        """Let only the ``fit`` that is meant be recorded."""
        profiler = trainer.state.profiler
        assert profiler is not None and isinstance(profiler.schedule, _Once)
        profiler.schedule.is_active = True

    def result(self) -> Mapping[str, Any]:
        """Return the number of steps in the trace."""
        return {"steps": TRACED_STEPS}


class _Once:
    """The schedule of the profiler: one window, at whose end the trial ends."""

    def __init__(self) -> None:
        self.is_active = False
        self._first: int | None = None

    def __call__(self, state: State) -> ProfilerAction:
        if not self.is_active:
            return ProfilerAction.SKIP
        batch = int(state.timestamp.batch)
        if self._first is None:
            self._first = batch
        position = batch - self._first - _SKIPPED
        if position < 0:
            return ProfilerAction.SKIP
        if position < _WARMUP:
            return ProfilerAction.WARMUP
        if position >= _WARMUP + TRACED_STEPS:
            raise Finished
        is_last = position == _WARMUP + TRACED_STEPS - 1
        return ProfilerAction.ACTIVE_AND_SAVE if is_last else ProfilerAction.ACTIVE


def trace_file(name: str, path: str | Path) -> Path:
    """Return the path of a trace to write, before anything is measured.

    Args:
        name: Name of the argument.
        path: Its value.

    Raises:
        FileExistsError: The file exists, and is not a trace of the PyTorch profiler.
        FileNotFoundError: Its folder does not exist.
        ValueError: It is a folder.

    >>> trace_file("trace", "no/such/folder/trace.json")
    Traceback (most recent call last):
    FileNotFoundError: trace='no/such/folder/trace.json': there is no folder 'no/such/folder'. Create it first.
    """
    return output_file(name, path, _is_trace, "a trace of the PyTorch profiler")


def _is_trace(path: Path) -> bool:
    """Return whether a file begins as the profiler's traces do."""
    if not path.is_file():
        return False
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return b'"schemaVersion"' in file.read(_HEAD)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        return False


def copy_trace(record: Record, path: Path) -> StepTrace:
    """Copy the trace of a trial to where the user wants it.

    Args:
        record: The record of a trial with a :class:`TraceRecorder`.
        path: The file; compressed if its name ends in ``.gz``.

    >>> copy_trace(Record("trace", "0f", "failed", 1.0, error="no data"), Path("x.json")).error
    'no data'
    """
    if not record.is_completed:
        return StepTrace("", error=record.error)
    source = record.path / _NAME.format(rank=0)
    try:
        if path.suffix == ".gz":
            with source.open("rb") as plain, gzip.open(path, "wb") as packed:
                shutil.copyfileobj(plain, packed)
        else:
            shutil.copyfile(source, path)
    except OSError as error:
        return StepTrace("", error=str(error))
    return StepTrace(str(path), record.result["steps"])
