"""FileLogger: write everything that is logged, and captured stdout and stderr, to a text file."""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, TextIO

from composer._forwarded_attributes import Forwarded
from composer._numbers import whole_number
from composer._secrets.masking import mask_text
from composer.core.hooks import replaces
from composer.core.logger import LoggerDestination
from composer.core.run_log_file import RunFile
from composer.loggers._capture import Capture
from composer.loggers._format import format_log_data_value
from composer.loggers._values import to_json

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["FileLogger"]


class FileLogger(LoggerDestination):
    """Writes metrics, hyperparameters, tables, traces and everything the process prints to a text file.

    The lines begin with ``[metric][batch=N]:``, ``[hyperparameter]:``, ``[table]:``, ``[trace]:``, ``[stdout]:`` and
    ``[stderr]:``. If a loop fails, the file contains the traceback, whether it was printed or the exception was caught.
    Metrics stay on their device for up to ``flush_interval`` batches, so their lines may follow lines that were
    printed later; ``batch`` is when they were logged.

    An existing file of an earlier run with the same name is moved to ``name.1.txt``; a resumed run continues its file.

    Args:
        filename: Path of the file; may contain ``{run_name}``, ``{rank}``, ``{local_rank}``, ``{node_rank}``,
            ``{world_size}`` and ``{local_world_size}``. If it is the same for all ranks, only rank 0 writes.
        remote_file_name: Name, with the same placeholders, under which loggers that store files receive it; None does
            not upload it.
        capture_stdout: Capture what is printed to stdout, from ``INIT`` until the run is closed.
        capture_stderr: Capture what is printed to stderr.
        buffer_size: Size of the write buffer in bytes; 1 is line buffering.
        log_traces: Write algorithm traces, one line each time an algorithm acts.
        flush_interval: Number of batches between two flushes, in which metrics are written, and the file is synced to
            disk and uploaded; it is also flushed after each epoch and evaluation.
        overwrite: Replace a file of an earlier run instead of moving it.

    Raises:
        TypeError: A name is not a string, or a numeric argument is not a number.
        ValueError: A name has an unknown placeholder, or a number is not positive.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from composer import Engine, Logger, State
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = FileLogger(folder + "/{run_name}.txt")
    ...     state = State(torch.nn.Linear(1, 1), run_name="night", callbacks=[file])
    ...     logger = Logger(state, file)
    ...     engine = Engine(state, logger)
    ...     _ = engine.run_event("init")
    ...     logger.log_metrics({"loss/train/total": 0.25})
    ...     engine.close()
    ...     print(Path(folder, "night.txt").read_text(), end="")
    [metric][batch=0]: loss/train/total: 0.2500
    """

    filename_format, overwrite = Forwarded("_run_file", "filename"), Forwarded("_run_file")
    remote_file_name_format = Forwarded("_run_file", "remote_file_name")

    def __init__(
        self,
        filename: str = "{run_name}/logs-rank{rank}.txt",
        remote_file_name: str | None = None,
        *,
        capture_stdout: bool = True,
        capture_stderr: bool = True,
        buffer_size: int = 1,
        log_traces: bool = True,
        flush_interval: int = 100,
        overwrite: bool = False,
    ) -> None:
        self._run_file = RunFile(filename, remote_file_name, overwrite)
        self.buffer_size = whole_number("buffer_size", buffer_size, minimum=1)
        self.should_log_traces = log_traces
        self.flush_interval = whole_number("flush_interval", flush_interval, minimum=1)
        capture = {"stdout": capture_stdout, "stderr": capture_stderr}
        self._capture = Capture([name for name in capture if capture[name]], self._print)
        self.file: TextIO | None = None
        self._early: list[str] = []  # lines logged before the file is open
        self._traces: list[dict[str, Any]] = []  # not written yet
        self._error: OSError | None = None
        self._crash: tuple[str, str] | None = None  # first line of the error message, and the traceback
        self._lock = threading.RLock()  # for printing from any thread
        self._state: State | None = None

    @property
    def __flush_interval__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.flush_interval

    @property
    def __remote_file_name__(self) -> str | None:
        """Name under which the file is uploaded."""
        return self.remote_file_name

    @property
    def filename(self) -> str:
        """Path of the file, with placeholders until the run is known."""
        return self._run_file.name

    @property
    def __location__(self) -> str | None:
        """Path of the written file, if any."""
        return self._run_file.location

    @property
    def remote_file_name(self) -> str | None:
        """Name, with placeholders, under which loggers that store files receive the file."""
        return self._run_file.remote_file_name

    @property
    def __logs_here__(self) -> bool:
        """Whether this rank writes the file."""
        return self._run_file.is_active

    @property
    def __keeps_traces__(self) -> bool:
        """Whether to write algorithm traces."""
        return self.should_log_traces or replaces(self, FileLogger, "log_traces")

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Write a line for each metric."""
        for name, value in metrics.items():
            self.write(f"[metric][batch={step}]: ", f"{name}: {format_log_data_value(value)}")

    def log_hyperparameters(self, hyperparameters: dict[str, Any]) -> None:
        """Write a line for each hyperparameter."""
        for name, value in hyperparameters.items():
            self.write("[hyperparameter]: ", f"{name}: {format_log_data_value(value)}")

    def log_table(
        self, columns: list[str], rows: list[list[Any]], name: str = "Table", step: int | None = None
    ) -> None:
        """Write a table as JSON, on one line."""
        table = json.dumps({"columns": columns, "data": to_json(rows)}, ensure_ascii=False)
        self.write("[table]: ", f"{name}: {table}")

    def log_traces(self, traces: dict[str, Any]) -> None:
        """Buffer algorithm traces, with ``log_traces``; they are written together before the next other line."""
        if self.should_log_traces and self._run_file.is_active:
            self._traces.append(traces)

    def write(self, prefix: str, s: str) -> None:
        """Write custom text.

        Args:
            prefix: Prefix of each line.
            s: One or more lines.

        Raises:
            OSError: The file could not be written, such as on a full disk.
        """
        if not self._run_file.is_active:
            return
        # Empty lines get no prefix, so that no line ends in a space.
        lines = s.splitlines() or [""]
        text = "".join(f"{prefix}{line}".rstrip() + "\n" if line.strip() else "\n" for line in lines)
        with self._lock:
            self._write_traces()
            self._put(text)

    def init(self, state: State, logger: Logger) -> None:
        """Start capturing what is printed."""
        self._listen(state)

    def fit_start(self, state: State, logger: Logger) -> None:
        """Open the file; capture again, if an exception ended it."""
        self._listen(state)
        self._flush(state, logger)

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Flush the file."""
        self._listen(state)
        self._flush(state, logger)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Flush the file, if due."""
        self._listen(state)  # a progress display may have replaced the streams
        if self.__due__(state):
            self._flush(state, logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Flush the file."""
        self._flush(state, logger)

    def eval_start(self, state: State, logger: Logger) -> None:
        """Flush the file."""
        self._listen(state)
        self._flush(state, logger)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Flush the file."""
        self._flush(state, logger)

    def predict_start(self, state: State, logger: Logger) -> None:
        """Capture again, if an exception ended it."""
        self._listen(state)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Flush the file."""
        self._flush(state, logger)

    def __suspend__(self) -> None:
        """Keep the traceback of the exception that leaves the loop, in case it is not printed before the close."""
        error = sys.exception()
        if isinstance(error, Exception):
            text = mask_text("".join(traceback.format_exception(error)))
            self._crash = (traceback.format_exception_only(error)[0].splitlines()[0].rstrip(), text)
        if self.file is not None:
            self.file.flush()

    def __discard__(self) -> None:
        """Write nothing, as on ranks that do not write."""
        self._run_file.is_active = False
        self._capture.detach()

    def close(self, state: State, logger: Logger) -> None:
        """Restore the streams, and close the file."""
        self._capture.detach()
        try:
            self._write_crash()
            self._flush(state, logger)
        finally:
            file, self.file, self._state = self.file, None, None
            self._run_file.close()
            if file is not None:
                file.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the file of this run."""
        return {} if self._state is None else self._run_file.state_dict(self._state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the file of the run, unless its name has changed."""
        self._run_file.load_state_dict(state)

    def _listen(self, state: State) -> None:
        if self._run_file.is_active:
            self._state = state
            self._write_crash()
            self._capture.attach()

    def _print(self, stream: str, line: str) -> None:
        """Write a captured line."""
        if self._crash is not None and stream == "stderr" and line.startswith(self._crash[0]):
            self._crash = None  # the interpreter has printed the traceback
        try:
            self.write(f"[{stream}]: ", line)
        except OSError as error:  # must not be raised from print; raised at the next flush
            self._error = error

    def _write_crash(self) -> None:
        """Write the traceback of a failed loop, if it was not printed."""
        crash, self._crash = self._crash, None
        if crash is not None:
            self.write("[stderr]: ", crash[1])

    def _write_traces(self) -> None:
        """Write buffered traces together, as writing each line would take longer than the step."""
        traces, self._traces = self._traces, []
        lines = [f"[trace]: {key}: {format_log_data_value(value)}\n" for one in traces for key, value in one.items()]
        if lines:
            self._put("".join(lines))

    def _put(self, text: str) -> None:
        if self.file is None:
            self._early.append(text)
        else:
            self.file.write(text)

    def _flush(self, state: State, logger: Logger) -> None:
        """Write everything to disk, and upload the file."""
        if not self._run_file.is_active:
            return
        with self._lock:
            if self.file is None:
                self.file = self._open(state)
            self._write_traces()
            self.file.flush()
            os.fsync(self.file.fileno())
        self._run_file.upload(state, logger)
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _open(self, state: State) -> TextIO:
        """Open the file, and write the lines logged before."""
        self._run_file.open(state)
        path = self._run_file.path
        assert path is not None
        file = path.open("a", buffering=self.buffer_size, encoding="utf-8", errors="backslashreplace")
        early, self._early = self._early, []
        file.writelines(early)
        return file
