"""A gloo process group for distributed tests, reused between tests, since starting processes takes seconds.

Where the system can, ranks are forks of two servers that have imported what most ranks need: rank 0 is of one, the
others are of the other. Two, because the hash of a string is another one in each process that a launcher starts: ranks
that go through a set in its order do not agree there, so the first and the others must not agree here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from composer import rng
from tests import apart, leaked_processes, older_torch, on_device

# Processes of the suite share two cores: this much is for one that hangs, not for one that is slow.
_LIMIT = 300.0

_servers: list[Any] = []


class RanksError(AssertionError):
    """A process failed, or did not come back; the text has each one's traceback."""


class Ranks:
    """Runs functions on multiple ranks, with a process group and the launcher's environment variables.

    Args:
        size: Number of processes.
        grace: Seconds that the others have after one has failed.
    """

    def __init__(self, size: int, grace: float = 10.0) -> None:
        self.size, self.grace = size, grace
        self._workers: list[tuple[Any, Connection]] = []
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = _LIMIT) -> list[Any]:
        """Return what a function returns in each process.

        Args:
            function: At the top of a test module; called with the arguments in each process.
            args: Picklable.
            timeout: Seconds until all are ended, with their stacks.

        Raises:
            RanksError: It raised in one of them, or one did not come back.
        """
        if not self._workers:
            self._start()
        for _, connection in self._workers:
            connection.send((function, args))
        answers = self._answers(time.monotonic() + timeout)
        failures = [text for ok, text in answers if not ok]
        if failures:
            # Who knows in what state the others are; the next run starts new ones.
            self._stop()
            raise RanksError("\n".join(failures))
        return [value for _, value in answers]

    def _answers(self, end: float) -> list[tuple[bool, Any]]:
        """What each process says; those that wait for one that failed would wait for ever, and get some seconds."""
        answers: dict[int, tuple[bool, Any]] = {}
        waited = {connection: rank for rank, (_, connection) in enumerate(self._workers)}
        while waited:
            ready = multiprocessing.connection.wait(list(waited), max(end - time.monotonic(), 0))
            for connection in ready:
                rank = waited.pop(connection)
                try:
                    answers[rank] = connection.recv()
                except (EOFError, OSError):
                    self._workers[rank][0].join(10)
                    answers[rank] = False, f"rank {rank} ended with {self._workers[rank][0].exitcode}."
                if not answers[rank][0]:
                    end = min(end, time.monotonic() + self.grace)
            if not ready:
                for rank in waited.values():
                    os.kill(self._workers[rank][0].pid, signal.SIGABRT)  # faulthandler prints its stacks
                    answers[rank] = False, f"rank {rank} did not come back; its stacks are on stderr."
                break
        return [answers[rank] for rank in range(self.size)]

    def close(self) -> None:
        """End the processes."""
        self._stop()
        self._folder.cleanup()

    def _stop(self) -> None:
        for process, connection in self._workers:
            connection.close()
            process.kill()
        for process, _ in self._workers:
            process.join()
        self._workers = []

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver" if _is_served() else "spawn")
        store = Path(self._folder.name, f"store-{time.monotonic_ns()}")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, self.size, str(store), theirs), daemon=True)
            with _server(rank):
                process.start()
            leaked_processes.kept.add(process.pid)
            theirs.close()
            self._workers.append((process, ours))


def _is_served() -> bool:
    """Not on a GPU, which a fork cannot use once its server has as much as counted them."""
    return "forkserver" in multiprocessing.get_all_start_methods() and on_device.device().type != "cuda"


def _server(rank: int) -> contextlib.AbstractContextManager[Any]:
    """Let a process that is started in this context be a fork of a rank's server, which ends with this process."""
    if not _is_served():
        return contextlib.nullcontext()
    from multiprocessing import forkserver

    if not _servers:
        _servers.extend(forkserver.ForkServer() for _ in range(2))
        for server in _servers:
            server.set_forkserver_preload(["tests.rank_imports"])
    # A server that loaders or other tests use is not changed.
    return mock.patch.object(forkserver, "connect_to_new_process", _servers[min(rank, 1)].connect_to_new_process)


def _serve(rank: int, size: int, store: str, connection: Connection) -> None:
    faulthandler.enable()
    gc.freeze()  # as the tests' own process does
    apart.make_importable()
    names = {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in names.items()})
    if "torchmetrics" in sys.modules:
        from torchmetrics.utilities.prints import rank_zero_only

        rank_zero_only.rank = rank  # which was read when it was imported
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=_LIMIT)
    )
    while True:
        try:
            function, args = connection.recv()
        except EOFError:  # the suite has ended, however it did
            return
        rng.seed_all(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                older_torch.ignore()
                answer: tuple[bool, Any] = True, function(*args)
        except BaseException:
            answer = False, f"rank {rank}:\n{traceback.format_exc()}"
        connection.send(answer)


def given(size: int) -> Iterator[Ranks]:
    """Give processes and end them; the body of a fixture.

    Args:
        size: Number of processes.
    """
    ranks = Ranks(size)
    yield ranks
    ranks.close()
