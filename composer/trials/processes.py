"""Start the processes of a trial, wait for them in time, and leave none behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from composer.trials.isolation import ENVIRONMENT, environment
from composer.trials.trial import Outcome, Record, Trial
from composer.trials.worker import OUTCOME_FILE, PARENT, TRIAL_FILE

__all__ = ["Running"]

LOG_FILE = "log.txt"
# Environment variable with a value of its own for each trial that runs, by which its processes are found again.
_MARK = "COMPOSER_TRIAL_ID"
# Seconds between a request to end and the end by force.
_GRACE = 3.0


class Running:
    """A trial whose processes run.

    Args:
        trial: The trial.
        folder: Its folder, which exists and has no files of an earlier attempt.

    >>> running = Running(Trial("no", Target("script", "no.py"), "composer.trials.probe:Probe"), Path("folder"))
    >>> running.wait(60).error
    "FileNotFoundError: [Errno 2] No such file or directory: ..."
    """

    def __init__(self, trial: Trial, folder: Path) -> None:
        self.trial, self.folder = trial, folder
        (folder / TRIAL_FILE).write_text(json.dumps(trial.to_json()), encoding="utf-8")
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        worker = ["-m", "composer.trials.worker", str(folder.absolute())]
        launch = [] if trial.ranks == 1 else ["-m", "composer", "-n", str(trial.ranks)]
        with (folder / LOG_FILE).open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *launch, *worker],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**environment(trial.name, folder), _MARK: self._mark, PARENT: str(os.getpid())},
                start_new_session=True,  # Ctrl-C reaches the study only, which ends its trials
            )
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def poll(self) -> Record | None:
        """Return the record if the trial has ended, or has reached its time limit; None while it runs."""
        code = self._process.poll()
        if code is None and self.seconds < self.trial.time_limit:
            return None
        seconds = self.seconds
        self.end()
        return self._record(code, seconds)

    def wait(self, timeout: float) -> Record:
        """Return the record when the trial has ended.

        Args:
            timeout: Seconds to wait, in addition to the time limit of the trial.

        Raises:
            TimeoutError: The trial still runs.
        """
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            record = self.poll()
            if record is not None:
                return record
            time.sleep(0.05)
        raise TimeoutError(f"Trial {self.trial.name!r} still runs after {timeout} s.")

    def end(self) -> None:
        """End all processes of the trial, also those that have left its session."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE)
        self._signal(signal.SIGKILL)
        self._process.wait()
        for _ in range(10):  # a process may start another while it is looked for
            left = _marked(f"{_MARK}={self._mark}".encode())
            if not left:
                return
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)

    def _signal(self, signum: int) -> None:
        """Send a signal to the process group of the trial."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signum)

    def _record(self, code: int | None, seconds: float) -> Record:
        """Return the record of a trial that has ended.

        Args:
            code: Its exit code; None if it reached the time limit.
            seconds: How long it ran.
        """
        trial, folder = self.trial, str(self.folder)
        written = _read(self.folder / OUTCOME_FILE)
        if code is not None and written is not None and (written["outcome"] != "completed" or code == 0):
            written.pop("trained", None)
            return Record(trial.name, trial.key, seconds=seconds, folder=folder, **written)
        outcome: Outcome = "failed"
        if code is None:
            outcome, error = "timed_out", f"It did not end within {trial.time_limit:.0f} s."
        elif code == -signal.SIGKILL or code == 128 + signal.SIGKILL:
            outcome, error = "out_of_memory", "It was killed by SIGKILL, which the system sends when memory is exhausted."
        elif code < 0:
            outcome, error = "killed", f"It was ended by {signal.Signals(-code).name}."
        else:
            error = f"It exited with code {code} and wrote no outcome."
        return Record(trial.name, trial.key, outcome, seconds, error, _tail(self.folder / LOG_FILE), folder=folder)


def _read(path: Path) -> dict[str, Any] | None:
    """Return the outcome that a trial wrote, if it did."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _tail(path: Path, lines: int = 40) -> str:
    """Return the last lines of a log."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 64 * 1024))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:])


def _marked(mark: bytes) -> list[int]:
    """Return the processes whose environment has a mark; those of other systems than Linux are not found."""
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, ValueError):
            if mark in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found
