"""A server that has imported torch and composer, and forks the processes of trials: they start in milliseconds.

Started as ``python -m composer.trials.fork_server MODULE ...``; it reads requests from stdin and writes responses to
stdout, a JSON line each. Each trial has a leader, whose children are its ranks; the leader adopts what they leave
behind, and ends it. The server runs no tensor operation, so that it has neither threads nor an initialized accelerator.
"""

from __future__ import annotations

import contextlib
import ctypes
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
from types import FrameType, TracebackType
from typing import Any, Self

from composer.dist.rendezvous.loopback import get_free_tcp_port

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
# Seconds that the other ranks have after one has failed.
_GRACE = 3.0
_PR_SET_CHILD_SUBREAPER = 36


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
        pid: Its process ID, also that of its process group.
    """

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid

    def poll(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs."""
        return self._server.exit_code(self.pid)

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

    Raises:
        RuntimeError: This system cannot fork.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        if not can_fork():
            raise RuntimeError(f"Processes cannot be forked safely on {sys.platform}.")
        self._codes: dict[int, int] = {}
        self._started: dict[str, int] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "composer.trials.fork_server", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process ID of the server."""
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
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._process.wait()

    def start(self, folder: Path, environment: Mapping[str, str], ranks: int) -> Forked:
        """Fork the processes of a trial.

        Args:
            folder: Folder of the trial.
            environment: Its environment variables.
            ranks: Number of its processes.

        Raises:
            RuntimeError: The server has ended.
        """
        request = {"folder": str(folder.absolute()), "environment": dict(environment), "ranks": ranks}
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{json.dumps(request)}\n".encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError("The server of the trials has ended; see its error above.") from None
        while request["folder"] not in self._started:
            self._read(wait=True)
        return Forked(self, self._started.pop(str(request["folder"])))

    def exit_code(self, pid: int) -> int | None:
        """Return the exit code of a process that was forked; None while it runs.

        Args:
            pid: Its process ID.
        """
        self._read(wait=False)
        return self._codes.get(pid)

    def _read(self, *, wait: bool) -> None:
        """Read the answers that are there, or wait for one."""
        assert self._process.stdout is not None
        while select.select([self._process.stdout], [], [], None if wait else 0)[0]:
            line = self._process.stdout.readline()
            if not line:
                raise RuntimeError("The server of the trials has ended; see its error above.")
            answer = json.loads(line)
            if "folder" in answer:
                self._started[answer["folder"]] = answer["pid"]
            else:
                self._codes[answer["pid"]] = answer["code"]
            wait = False


def _serve(modules: Sequence[str]) -> None:
    """Fork a leader for each request, until stdin ends."""
    for module in (*_PRELOADED, *modules):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # so that collections in the forks do not copy the memory of what was imported
    _adopt()
    buffer = b""
    while True:
        if select.select([0], [], [], 0.02)[0]:
            data = os.read(0, 1 << 16)
            if not data:
                break
            buffer += data
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                request = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    _lead(request)
                _answer({"folder": request["folder"], "pid": pid})
        _reap()
    _end_children()


def _reap() -> None:
    """Tell the exit codes of the leaders that have ended."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with contextlib.suppress(BrokenPipeError):
                _answer({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _answer(answer: Mapping[str, Any]) -> None:
    os.write(1, f"{json.dumps(answer)}\n".encode())


def _lead(request: Mapping[str, Any]) -> None:
    """Run the ranks of a trial; never returns."""
    code = 1
    try:
        os.setsid()
        _adopt()
        signal.signal(signal.SIGTERM, _on_terminate)
        folder = request["folder"]
        log = os.open(f"{folder}/log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.clear()
        os.environ.update(request["environment"])
        code = _run_ranks(folder, request["ranks"])
    except BaseException:
        traceback.print_exc()
    finally:
        _end_children()
        os._exit(code)


def _run_ranks(folder: str, ranks: int) -> int:
    """Fork the ranks of a trial, wait for them, and return the first exit code that is not 0."""
    port = get_free_tcp_port() if ranks > 1 else 0
    running: set[int] = set()
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            _work(folder, rank, ranks, port)
        running.add(pid)
    failed, deadline = 0, float("inf")
    while running and time.monotonic() < deadline:
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.remove(pid)
                failed = failed or os.waitstatus_to_exitcode(status)
        if failed and deadline == float("inf"):
            deadline = time.monotonic() + _GRACE  # the others may report the error of this one
        time.sleep(0.01)
    return failed


def _work(folder: str, rank: int, ranks: int, port: int) -> None:
    """Be a rank of a trial; never returns."""
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if ranks > 1:
            names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "NODE_RANK": 0}
            os.environ.update({name: str(value) for name, value in names.items()})
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        from composer.trials import worker

        code = worker.main(folder)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _adopt() -> None:
    """Become the parent of descendants whose parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _on_terminate(signum: int, frame: FrameType | None) -> None:
    """End all descendants, and this process."""
    _end_children()
    os._exit(128 + signum)


def _end_children() -> None:
    """Kill the children of this process, and the children that these leave, until there are none."""
    while True:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        if not children:
            return
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(pid), 0)


if __name__ == "__main__":
    _serve(sys.argv[1:])
