"""What the loggers that write metrics to a file of their own have in common: when they write, and how they resume."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any

from composer._text import positive
from composer.core.logger import LoggerDestination
from composer.core.timestamp import Timestamp
from composer.loggers._run_file import RunFile

if TYPE_CHECKING:
    from composer.core.logger import Logger
    from composer.core.state import State

__all__ = ["RunFileLogger"]


class RunFileLogger(LoggerDestination):
    """Abstract: gathers what is logged, and writes it to a file when it is due and at the end of everything.

    A logger says what it gathers (:attr:`_has_more`), how it is written (:meth:`_write`), and where in the file it is
    (:meth:`_place`).

    Args:
        filename: Path with placeholders.
        remote_file_name: Name for the destinations that keep files; None is not at all.
        flush_interval: Number of batches between writes.
        overwrite: Whether a file of an earlier run may be replaced.
    """

    def __init__(self, filename: str, remote_file_name: str | None, flush_interval: int, overwrite: bool) -> None:
        self._run_file = RunFile(filename, remote_file_name, overwrite)
        self.flush_interval = positive("flush_interval", flush_interval)
        self._state: State | None = None
        self._logger: Logger | None = None

    @property
    def __flush_interval__(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.flush_interval

    @property
    @abstractmethod
    def _has_more(self) -> bool:
        """Whether the file lacks anything."""

    @abstractmethod
    def _write(self, state: State) -> None:
        """Bring the file up to date; called in processes that have one."""

    @abstractmethod
    def _place(self) -> dict[str, Any]:
        """Where in the file a resumed run goes on."""

    @property
    def filename(self) -> str:
        """Path of the file; with its placeholders as long as the run is unknown."""
        return self._run_file.name

    @property
    def __location__(self) -> str | None:
        """Path of the file that was written, if there is one."""
        return self._run_file.location

    @property
    def __logs_here__(self) -> bool:
        """Whether this process writes."""
        return self._run_file.is_ours

    def log_metrics(self, metrics: dict[str, Any], step: int | None = None) -> None:
        """Take metrics that come without a time of logging; it is now."""
        now = Timestamp() if self._state is None else self._state.timestamp
        self.__receive__(metrics, int(now.batch) if step is None else step, now)

    def init(self, state: State, logger: Logger) -> None:
        """Remember the run."""
        self._state, self._logger = state, logger

    def after_load(self, state: State, logger: Logger) -> None:
        """Write what came before, now that it is known whether the run goes on with a file."""
        if self._run_file.is_ours:
            self._write(state)

    def batch_end(self, state: State, logger: Logger) -> None:
        """Write what has come, if it is time."""
        if self._has_more and self.__due__(state):
            self._write_and_upload(state, logger)

    def epoch_end(self, state: State, logger: Logger) -> None:
        """Write what has come."""
        self._write_and_upload(state, logger)

    def eval_end(self, state: State, logger: Logger) -> None:
        """Write what has come."""
        self._write_and_upload(state, logger)

    def fit_end(self, state: State, logger: Logger) -> None:
        """Write what has come."""
        self._write_and_upload(state, logger)

    def close(self, state: State, logger: Logger) -> None:
        """Write the rest."""
        try:
            self._write_and_upload(state, logger)
        finally:
            self._run_file.close()
            self._state = self._logger = None

    def state_dict(self) -> dict[str, Any]:
        """Return which file belongs to the run, and how much of it."""
        if self._state is None or self._logger is None or not self._run_file.is_ours:
            return {}
        self._logger.flush()
        self._write(self._state)
        return self._run_file.state_dict(self._state, **self._place())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the file of the run where it was, unless it has another name now."""
        self._run_file.load_state_dict(state)

    def _write_now(self) -> None:
        """Write what came between loops, where nothing else would come for a while."""
        between = self._logger is not None and not self._logger.deferred
        if self._run_file.path is not None and self._state is not None and between:
            self._write(self._state)

    def _write_and_upload(self, state: State, logger: Logger) -> None:
        if self._run_file.is_ours:
            self._write(state)
            self._run_file.upload(state, logger)
