"""RunFileLogger: base class of loggers that write records to a file of the run: buffering, flushing and resumption."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from composer._numbers import whole_number
from composer.core.logger import LoggerDestination
from composer.core.run_log_file import RunFile
from composer.core.timestamp import Timestamp

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["RunFileLogger"]


class RunFileLogger(LoggerDestination):
    """Abstract base class: buffers log records, and writes them to a file when due and at the end of each loop.

    Subclasses define whether records are unwritten (:attr:`_has_unwritten`), how to write them (:meth:`_write`), and
    the position in the file (:meth:`_position`).

    Args:
        filename: Path with placeholders.
        remote_file_name: Name for loggers that store files; None does not upload.
        flush_interval: Number of batches between writes.
        overwrite: Replace a file of an earlier run.
    """

    def __init__(self, filename: str, remote_file_name: str | None, flush_interval: int, overwrite: bool) -> None:
        self._run_file = RunFile(filename, remote_file_name, overwrite)
        self.flush_interval = whole_number("flush_interval", flush_interval, minimum=1)
        self._state: State | None = None
        self._logger: Logger | None = None

    @property
    def __flush_interval__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.flush_interval

    @property
    @abstractmethod
    def _has_unwritten(self) -> bool:
        """Whether there are unwritten records."""

    @abstractmethod
    def _write(self, state: State) -> None:
        """Write buffered records to the file; called on ranks that write."""

    @abstractmethod
    def _position(self) -> dict[str, Any]:
        """Return the position in the file at which a resumed run continues."""

    @property
    def filename(self) -> str:
        """Path of the file, with placeholders until the run is known."""
        return self._run_file.name

    @property
    def __location__(self) -> str | None:
        """Path of the written file, if any."""
        return self._run_file.location

    @property
    def __logs_here__(self) -> bool:
        """Whether this rank writes the file."""
        return self._run_file.is_active

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Log metrics without a timestamp, at the current time."""
        now = Timestamp() if self._state is None else self._state.timestamp
        self.__receive__(metrics, int(now.batch) if step is None else step, now)

    def init(self, state: State, logger: Logger) -> None:
        """Remember the run."""
        self._state, self._logger = state, logger

    def fit_start(self, state: State, logger: Logger) -> None:
        """Open the file, and write records logged before; a trainer that only replays a step never does."""
        self._run_file.keeps_rest = False
        if self._run_file.is_active:
            self._write(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Write buffered records, if due."""
        if self._has_unwritten and self.__due__(state):
            self._write_and_upload(state, logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Write buffered records."""
        self._write_and_upload(state, logger)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Write buffered records."""
        self._write_and_upload(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Write buffered records."""
        self._write_and_upload(state, logger)

    def __discard__(self) -> None:
        """Write nothing, as on ranks that do not write."""
        self._run_file.is_active = False

    def __resume_complete__(self) -> None:
        """Continue the file at its end, unless training goes on."""
        self._run_file.keeps_rest = True

    def close(self, state: State, logger: Logger) -> None:
        """Write the remaining records."""
        try:
            self._write_and_upload(state, logger)
        finally:
            self._run_file.close()
            self._state = self._logger = None

    def state_dict(self) -> dict[str, Any]:
        """Return the file of the run and the position in it."""
        if self._state is None or self._logger is None or not self._run_file.is_active:
            return {}
        self._logger.flush()
        self._write(self._state)
        return self._run_file.state_dict(self._state, **self._position())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the file of the run at the saved position, unless its name has changed."""
        self._run_file.load_state_dict(state)

    def _write_now(self) -> None:
        """Write records that are logged outside of loops, where no event would write them for a while."""
        outside = self._logger is not None and not self._logger.deferred
        if self._run_file.path is not None and self._state is not None and outside:
            self._write(self._state)

    def _write_and_upload(self, state: State, logger: Logger) -> None:
        if self._run_file.is_active:
            self._write(state)
            self._run_file.upload(state, logger)
