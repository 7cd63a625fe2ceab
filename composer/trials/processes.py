"""Start the processes of a trial, wait for them in time, and leave none behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from composer.dist.rendezvous.loopback import LOOPBACK, get_free_tcp_port
from composer.trials.fork_server import Forked, ForkServer
from composer.trials.isolation import environment
from composer.trials.leader import LOG_FILE
from composer.trials.stack_dump import waiting_at
from composer.trials.temporary_folder import temporary_folder
from composer.trials.trial import Outcome, Record, Trial
from composer.trials.worker import FAILURE_FILE, RESULT_FILE, TEMPORARY, TRIAL_FILE

__all__ = ["Running"]

# Environment variable with a value of its own for each trial that runs, by which its processes are found again.
_MARK = "COMPOSER_TRIAL_ID"
# Seconds between a request to end and the end by force.
_GRACE = 3.0


class Running:
    """A trial whose processes run.

    Args:
        trial: The trial.
        folder: Its folder, which exists and has no files of an earlier attempt.
        server: Forks the processes, unless the trial must start fresh; None starts a Python for each.

    >>> from composer.trials import Target
    >>> trial = Trial("bf16", Target("script", "train.py"), "composer.trials.probe:Probe")
    >>> Running(trial, Path("study", "bf16")).wait(60).outcome  # doctest: +SKIP
    'completed'
    """

    def __init__(self, trial: Trial, folder: Path, server: ForkServer | None = None) -> None:
        self.trial, self.folder = trial, folder
        description = {"key": trial.key, "trial": trial.to_json(), "path": sys.path}
        (folder / TRIAL_FILE).write_text(json.dumps(description), encoding="utf-8")
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self._stack = contextlib.ExitStack()
        temporary = self._stack.enter_context(temporary_folder())
        given = {**environment(trial.name, folder), _MARK: self._mark, TEMPORARY: str(temporary)}
        if trial.threads:
            given["OMP_NUM_THREADS"] = str(trial.threads)
        if trial.hash_seed is not None:
            given["PYTHONHASHSEED"] = str(trial.hash_seed)
        if trial.ranks > 1:
            given |= {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(get_free_tcp_port())}
        self._process: subprocess.Popen[bytes] | Forked = (
            _started(trial, folder, given)
            if server is None or trial.fresh
            else server.start(folder, given, trial.ranks, trial.time_limit)
        )
        self.started = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    @property
    def group(self) -> int:
        """Process group of the trial, of its leader, ranks and data workers."""
        return self._process.pid

    def poll(self) -> Record | None:
        """Return the record if the trial has ended, or has reached its time limit; None while it runs."""
        code = self._process.poll()
        seconds = self.seconds
        if code is None and seconds < self.trial.time_limit:
            return None
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
        """End all processes of the trial, also those that have left its session, and remove their temporary folder."""
        with self._stack:
            self._end_processes()

    def _end_processes(self) -> None:
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
        outcome: Outcome = "failed"
        failure, result = _read(self.folder / FAILURE_FILE), _read(self.folder / RESULT_FILE)
        signum = None if code is None else -code if code < 0 else code - 128 if code > 128 else None
        if code is None:
            outcome, error = "timed_out", f"It did not end within {trial.time_limit:g} s"
            place = waiting_at(self.folder / LOG_FILE)
            error += f": shortly before, it was in {place}." if place else "."
        elif signum is not None and (failure is None or failure["outcome"] != "out_of_memory"):
            # The other ranks fail because of the one that a signal ended.
            outcome, error = _of_signal(signum)
        elif failure is not None:
            return Record(trial.name, trial.key, seconds=seconds, folder=folder, **failure)
        elif code == 0 and result is not None:
            return Record(trial.name, trial.key, "completed", seconds, folder=folder, **result)
        else:
            error = f"It exited with code {code} before Trainer.fit returned."
        return Record(trial.name, trial.key, outcome, seconds, error, _tail(self.folder / LOG_FILE), folder=folder)


def _of_signal(number: int) -> tuple[Outcome, str]:
    """Return the outcome of a trial whose process was ended by a signal, and why."""
    if number == signal.SIGKILL:
        return "out_of_memory", "It was killed by SIGKILL, which the system sends when memory is exhausted."
    try:
        return "killed", f"It was ended by {signal.Signals(number).name}."
    except ValueError:
        return "failed", f"It exited with code {128 + number} before Trainer.fit returned."


def _started(trial: Trial, folder: Path, given: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the leader of a trial whose processes have a Python of their own.

    Args:
        trial: The trial.
        folder: Its folder.
        given: The environment variables.
    """
    words = [str(folder.absolute()), str(trial.ranks), str(trial.time_limit), str(os.getpid())]
    with (folder / LOG_FILE).open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "composer.trials.leader", *words],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=given,
            start_new_session=True,  # Ctrl-C reaches the study only, which ends its trials
        )


def _read(path: Path) -> dict[str, Any] | None:
    """Return the outcome that a trial wrote, if it did."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def _tail(path: Path, lines: int = 40) -> str:
    """Return the last lines of a log."""
    if not path.exists():
        return ""
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
