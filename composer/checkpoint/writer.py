"""Writing checkpoints, at once or behind the training."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from composer.checkpoint.save import write_file
from composer.checkpoint.snapshot import Snapshot
from composer.warnings import ComposerWarning

__all__ = ["CheckpointWriter"]


class CheckpointWriter:
    """Writes checkpoints in the order in which they come.

    Args:
        behind: Whether a thread writes while training goes on, which then waits for a copy in host memory only. One is
            written at a time: the next waits for the one before.
        on_failure: Whether a checkpoint that cannot be written ends the training ("raise") or is a warning ("warn").
            What was written before is there in any case.

    >>> writer = CheckpointWriter(behind=True)
    >>> writer.write({"state": {}}, tmp_path / "a.pt")
    >>> writer.close()
    >>> (tmp_path / "a.pt").exists()
    True
    """

    def __init__(self, *, behind: bool = False, on_failure: Literal["raise", "warn"] = "raise") -> None:
        self._behind = behind
        self._on_failure = on_failure
        self._snapshot = Snapshot()
        self._running: tuple[_Writing, _Job] | None = None

    def write(
        self,
        content: dict[str, Any],
        path: Path,
        then: Callable[[], object] = lambda: None,
        otherwise: Callable[[], object] = lambda: None,
    ) -> None:
        """Write a checkpoint.

        Args:
            content: What it holds; may change as soon as this returns.
            path: Where to.
            then: Called once it is on the disk, by the thread that calls this object.
            otherwise: Called in place of that if it could not be written.

        Raises:
            OSError: This one could not be written, or the one before if they are written behind the training.
        """
        job = _Job(path, then, otherwise)
        if not self._behind:
            self._attempt(lambda: write_file(content, path), job)
            return
        self.wait()
        writing = _Writing(self._snapshot.take(content), path)
        writing.start()
        self._running = writing, job

    def poll(self) -> None:
        """Tell of a failure, if the checkpoint in work has failed by now.

        Raises:
            OSError: It could not be written.
        """
        if self._running is not None and not self._running[0].is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait until the checkpoint in work is written.

        Raises:
            OSError: It could not be written.
        """
        if self._running is not None:
            (writing, job), self._running = self._running, None
            self._attempt(writing.result, job)

    def close(self) -> None:
        """Wait, and let go of the memory.

        Raises:
            OSError: The last checkpoint could not be written.
        """
        try:
            self.wait()
        finally:
            self._snapshot = Snapshot()

    def _attempt(self, write: Callable[[], object], job: _Job) -> None:
        try:
            write()
        except Exception as error:
            job.otherwise()
            self._tell(error, f"The checkpoint {str(job.path)!r} could not be written")
            return
        try:
            job.then()
        except Exception as error:
            self._tell(error, f"The checkpoint {str(job.path)!r} is written, but not what comes with it")

    def _tell(self, error: Exception, what: str) -> None:
        if self._on_failure == "raise":
            error.add_note(f"{what}; earlier ones are as they were.")
            raise error
        warnings.warn(f"{what} ({error}); earlier ones are as they were.", ComposerWarning, stacklevel=4)


class _Writing(threading.Thread):
    """Writes one checkpoint; the end of the process waits for it."""

    def __init__(self, content: dict[str, Any], path: Path) -> None:
        super().__init__(name="composer-checkpoint")
        self._content, self._path = content, path
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            write_file(self._content, self._path)
        except Exception as error:
            self._error = error

    def result(self) -> None:
        """Wait, and raise what has gone wrong."""
        self.join()
        if self._error is not None:
            raise self._error


@dataclass(frozen=True)
class _Job:
    path: Path
    then: Callable[[], object]
    otherwise: Callable[[], object]
