"""Dump the Python stacks of DataLoader workers, also while they hang in system calls or native code."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TextIO

from torch.utils.data import DataLoader

__all__ = ["WorkerStacks", "process_state"]

# On platforms that have such signals; Windows has none.
_SIGNAL: Final = getattr(signal, "SIGUSR2", None) if hasattr(faulthandler, "register") else None
_TICK: Final = 0.25
_TIMEOUT: Final = 2.0

_kept_open: list[TextIO] = []


class WorkerStacks:
    """Makes DataLoader workers write their stacks to a file on request.

    Each worker is prepared when it starts, before the loader's own ``worker_init_fn``. A background thread in the
    worker checks for requests a few times a second, and responds also while other threads sleep or wait for a lock or
    a system call. It cannot while native code holds the GIL: then the worker is sent a signal for which
    ``faulthandler`` is registered, whose handler does not need the GIL. That is only the fallback, because it reads
    frames without synchronization, and occasionally crashes a process with a segmentation fault if they change
    meanwhile; while the GIL is held, none does.

    >>> stacks = WorkerStacks()
    >>> stacks.prepare(DataLoader([1, 2]))  # has no workers
    >>> stacks.dump([])
    {}
    >>> stacks.close()
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="composer-worker-stacks-"))
        self._prepared: list[tuple[DataLoader[Any], _Prepare]] = []

    def prepare(self, loader: object) -> None:
        """Prepare the workers that a loader starts from now on; does nothing without workers or for other loaders.

        Args:
            loader: The loader.
        """
        if not isinstance(loader, DataLoader) or loader.num_workers == 0:
            return
        if not isinstance(loader.worker_init_fn, _Prepare):
            prepare = loader.worker_init_fn = _Prepare(self._folder, loader.worker_init_fn)
            self._prepared.append((loader, prepare))

    def dump(self, pids: Iterable[int]) -> dict[int, str]:
        """Return the stacks of workers by process id, without those that were not prepared or do not respond.

        Args:
            pids: Process ids of the workers.
        """
        prepared = [pid for pid in pids if _Files(self._folder, pid).faults.exists()]
        stacks = _collect(prepared, self._request, self._response)
        if _SIGNAL is not None:
            missing = [pid for pid in prepared if pid not in stacks]
            sizes = {pid: _Files(self._folder, pid).faults.stat().st_size for pid in missing}
            stacks |= _collect(missing, self._signal, lambda pid: self._written(pid, sizes[pid]))
        return stacks

    def _request(self, pid: int) -> None:
        files = _Files(self._folder, pid)
        files.response.unlink(missing_ok=True)
        files.request.touch()

    def _response(self, pid: int) -> str:
        response = _Files(self._folder, pid).response
        return response.read_text(errors="replace") if response.exists() else ""

    def _signal(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _SIGNAL or 0)

    def _written(self, pid: int, size: int) -> str:
        file = _Files(self._folder, pid).faults
        text = file.read_text(errors="replace")[size:]
        if text:
            time.sleep(_TICK)  # until it is completely written
            text = file.read_text(errors="replace")[size:]
        return text

    def close(self) -> None:
        """Restore the loaders' own functions, and remove the files; running workers respond no longer."""
        for loader, prepare in self._prepared:
            if loader.worker_init_fn is prepare:
                loader.worker_init_fn = prepare.inner
        self._prepared = []
        shutil.rmtree(self._folder, ignore_errors=True)


class _Files:
    """The files of one worker: the request, its response, and the output of the signal handler."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.request, self.response, self.faults = (
            folder / f"{pid}.{ending}" for ending in ("request", "response", "faults")
        )


def _collect(pids: Iterable[int], request: Callable[[int], None], response: Callable[[int], str]) -> dict[int, str]:
    """Send requests to all workers, then wait until each has responded or the timeout."""
    waiting = list(pids)
    for pid in waiting:
        request(pid)
    stacks: dict[int, str] = {}
    deadline = time.monotonic() + _TIMEOUT
    while len(stacks) < len(waiting) and time.monotonic() < deadline:
        time.sleep(_TICK / 5)
        stacks |= {pid: text.strip() for pid in waiting if pid not in stacks and (text := response(pid))}
    return stacks


class _Prepare:
    """Prepares a worker, then calls the loader's own function; picklable, for spawned workers."""

    def __init__(self, folder: Path, inner: Callable[[int], None] | None) -> None:
        self.folder = folder
        self.inner = inner

    def __call__(self, worker: int) -> None:
        files = _Files(self.folder, os.getpid())
        # The folder is gone if the loader outlived the run that it was prepared for.
        with contextlib.suppress(OSError):
            file = files.faults.open("w")  # for as long as the worker lives
            _kept_open.append(file)
            if _SIGNAL is not None:
                faulthandler.register(_SIGNAL, file=file, all_threads=True)
            threading.Thread(target=_serve_requests, args=(files,), name="worker-stacks", daemon=True).start()
        if self.inner is not None:
            self.inner(worker)


def _serve_requests(files: _Files) -> None:
    """Write the stacks of the other threads on each request, until the folder is gone."""
    with contextlib.suppress(OSError):
        while files.faults.exists():
            if files.request.exists():
                files.request.unlink()
                partial = files.response.with_suffix(".part")
                partial.write_text(_stacks_of_others())
                partial.replace(files.response)
            time.sleep(_TICK)


def _stacks_of_others() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames = sys._current_frames()
    del frames[threading.get_ident()]
    return "\n".join(
        f"Thread {names.get(ident, ident)} (most recent call last):\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in frames.items()
    )


def process_state(pid: int) -> str:
    """Return the state of a process as the system reports it, such as "S (sleeping)"; empty if unknown.

    Args:
        pid: Its process id.

    >>> process_state(-1)
    ''
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("State:"):
                return line.removeprefix("State:").strip()
    return ""
