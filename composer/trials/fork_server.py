"""A server that has imported torch and composer, and forks the processes of trials: they start in milliseconds.

Started as ``python -m composer.trials.fork_server MODULE ...``; it reads requests from stdin and writes responses to
stdout, a JSON line each. The server runs no tensor operation, so that it has neither threads nor an initialized
accelerator. If an imported module starts threads that it does not end before a fork, forks would not be safe: the
leaders of trials then start a Python for each rank.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from composer.trials import leader

__all__ = ["ForkServer", "Forked", "can_fork"]

# What most training programs import, directly or when a trainer is created.
_PRELOADED = (
    "composer.trainer",
    "composer.trials.worker",
    "torch._dynamo",  # imported by the first optimizer
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torchmetrics.classification",
)
# Seconds that the server has to import torch and the modules.
_START_LIMIT = 300.0
_ENDED = "The fork server of the trials has ended; its error is above."


def can_fork() -> bool:
    """Return whether processes can be forked after torch was imported: on Linux.

    >>> can_fork() == (sys.platform == "linux")
    True
    """
    return sys.platform == "linux"


class Forked:
    """A process that the server has forked; has the methods of ``subprocess.Popen`` that trials use.

    Args:
        server: The server.
        pid: Its process ID, also that of its process group; a later process can have the same.
        number: Which process that the server started it is, from 1.

    >>> server.start(Path("study/bf16"), os.environ, ranks=1, seconds=60.0).wait()  # doctest: +SKIP
    0
    """

    def __init__(self, server: ForkServer, pid: int, number: int) -> None:
        self._server, self.pid, self._number = server, pid, number

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._server.exit_code(self._number)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when the process has ended.

        Args:
            timeout: Seconds to wait; None for as long as it takes.

        Raises:
            subprocess.TimeoutExpired: The process still runs.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired("a forked trial", timeout or 0.0)
            time.sleep(0.01)
        return code


class ForkServer:
    """Starts the server, and asks it for processes.

    Args:
        modules: Modules to import, in addition to those that every trial needs.
        threads: Number of threads of OpenMP in the processes; 0 for the number that it chooses.

    Raises:
        RuntimeError: This system cannot fork.

    >>> with ForkServer() as server:  # doctest: +SKIP
    ...     records = Study(Path("study"), server=server).run(trials)
    """

    def __init__(self, modules: Sequence[str] = (), threads: int = 0) -> None:
        if not can_fork():
            raise RuntimeError(f"Processes cannot be forked safely on {sys.platform}.")
        # By the number of the request: in a long study, processes get the IDs of earlier ones.
        self._codes: dict[int, int] = {}
        self._started: dict[int, int] = {}
        self._requests = 0
        self._partial = b""  # the beginning of an answer
        self._process = subprocess.Popen(
            [sys.executable, "-m", "composer.trials.fork_server", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # OpenMP reads it when it is loaded, before a fork.
            env={**os.environ, "OMP_NUM_THREADS": str(threads)} if threads else None,
            start_new_session=True,  # Ctrl-C reaches the study only, which ends the server
        )

    @property
    def pid(self) -> int:
        """Process ID of the server."""
        return self._process.pid

    def __enter__(self) -> Self:
        """Return the server, which ends with the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the server and all that it has forked."""
        self.close()

    def close(self) -> None:
        """End the server and all that it has forked."""
        self._process.terminate()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()

    def start(self, folder: Path, environment: Mapping[str, str], ranks: int, seconds: float) -> Forked:
        """Fork the processes of a trial.

        Args:
            folder: Folder of the trial.
            environment: Its environment variables.
            ranks: Number of its processes.
            seconds: Its time limit.

        Raises:
            RuntimeError: The server has ended, or does not respond.
        """
        self._requests = number = self._requests + 1
        request: dict[str, Any] = {"number": number, "ranks": ranks, "seconds": seconds}
        request |= {"folder": str(folder.absolute()), "environment": dict(environment)}
        request["directory"] = str(Path.cwd())  # the study may have changed it since the server started
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{json.dumps(request)}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError(_ENDED) from None
        end = time.monotonic() + _START_LIMIT
        while number not in self._started:
            if not self._read(max(0.0, end - time.monotonic())):
                raise RuntimeError(_ENDED)
            if time.monotonic() > end:
                raise RuntimeError(f"The fork server of the trials did not respond within {_START_LIMIT:.0f} s.")
        return Forked(self, self._started.pop(number), number)

    def exit_code(self, number: int) -> int | None:
        """Return the exit code of a process that was forked, -9 if the server has ended; None while it runs.

        Args:
            number: Which process that was started, from 1.
        """
        if number not in self._codes and not self._read(0):
            return -signal.SIGKILL
        return self._codes.get(number)

    def _read(self, seconds: float) -> bool:
        """Read the answers that are there, or wait for one; return whether the server still runs."""
        assert self._process.stdout is not None
        pipe = self._process.stdout
        while not pipe.closed and select.select([pipe], [], [], seconds)[0]:
            data = os.read(pipe.fileno(), 1 << 16)
            if not data:
                return False
            *lines, self._partial = (self._partial + data).split(b"\n")
            for answer in map(json.loads, lines):
                if "pid" in answer:
                    self._started[answer["number"]] = answer["pid"]
                else:
                    self._codes[answer["number"]] = answer["code"]
            seconds = 0
        return not pipe.closed


class _Server:
    """The server process."""

    def __init__(self) -> None:
        # What modules print when they are imported must not be taken for an answer.
        self._requests, self._answers = os.dup(0), os.dup(1)
        with open(os.devnull, "rb") as null:  # noqa: PTH123 - not a path
            os.dup2(null.fileno(), 0)
        os.dup2(2, 1)
        self._fresh = False
        self._numbers: dict[int, int] = {}  # of the requests, by process ID

    def serve(self, modules: Sequence[str]) -> None:
        """Fork a leader for each request, until the study closes the pipe.

        Args:
            modules: Modules to import.
        """
        signal.signal(signal.SIGTERM, leader.terminate)
        leader.adopt_orphans()
        for module in (*_PRELOADED, *modules):
            with contextlib.suppress(Exception):  # saves time only: a trial that needs the module tells the error
                importlib.import_module(module)
        gc.collect()
        gc.freeze()  # so that collections in the forks do not copy the memory of what was imported
        self._fresh = _keeps_threads()
        buffer = b""
        while True:
            if select.select([self._requests], [], [], 0.02)[0]:
                data = os.read(self._requests, 1 << 16)
                if not data:
                    break
                buffer += data
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    request, server = json.loads(line), os.getpid()
                    pid = os.fork()
                    if pid == 0:
                        self._lead(request, server)
                    self._numbers[pid] = request["number"]
                    self._answer({"number": request["number"], "pid": pid})
            self._reap()
        leader.end_children()

    def _reap(self) -> None:
        """Report the exit codes of the leaders that have ended."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                number = self._numbers.pop(pid, None)
                if number is not None:  # else it is an orphan of a trial
                    self._answer({"number": number, "code": os.waitstatus_to_exitcode(status)})

    def _answer(self, answer: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self._answers, f"{json.dumps(answer)}\n".encode())

    def _lead(self, request: Mapping[str, Any], server: int) -> None:
        """Lead a trial; never returns."""
        code = 1
        try:
            os.setsid()
            os.close(self._requests)
            os.close(self._answers)
            folder, ranks = Path(request["folder"]), request["ranks"]
            log = os.open(folder / leader.LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a crash must not lose lines
            os.chdir(request["directory"])
            os.environ.clear()
            os.environ.update(request["environment"])
            begin = leader.spawned if self._fresh else _forked
            code = leader.lead(folder, ranks, request["seconds"], server, lambda rank: begin(folder, rank, ranks))
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)


def _keeps_threads() -> bool:
    """Whether there are threads that a fork would lose.

    Libraries that know of forks, such as the OpenBLAS of NumPy, end their threads before one, and start them again when
    they need them.
    """
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task")) > 1  # noqa: PTH208 - only their number


def _forked(folder: Path, rank: int, ranks: int) -> int:
    """Fork the process of a rank, and return its process ID."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.update(leader.rank_variables(rank, ranks))
        from composer.trials import worker

        code = worker.main(str(folder))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _Server().serve(sys.argv[1:])
