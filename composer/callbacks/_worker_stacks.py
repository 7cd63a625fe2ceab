"""The Python stacks of the worker processes of a data loader, whatever they are doing."""

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

# Where the platform has such signals; Windows has none.
_SIGNAL: Final = getattr(signal, "SIGUSR2", None) if hasattr(faulthandler, "register") else None
_TICK: Final = 0.25
_PATIENCE: Final = 2.0

_kept_open: list[TextIO] = []


class WorkerStacks:
    """Has the workers of loaders write their stacks to a file when they are asked to.

    Each worker is prepared when it starts, before the loader's own ``worker_init_fn``. A thread of its own looks a few
    times a second whether it is asked, and answers also while the others sleep, or wait for a lock or for the system.
    It can't while native code holds the interpreter: then the worker gets a signal, for which ``faulthandler`` is
    registered, whose handler needs nothing of the interpreter. It is no more than the second resort since it reads
    frames as it finds them, and ends a process by a segmentation fault now and then where they change meanwhile; while
    the interpreter is held none does.

    >>> stacks = WorkerStacks()
    >>> stacks.prepare(DataLoader([1, 2]))  # which has no workers
    >>> stacks.dump([])
    {}
    >>> stacks.close()
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="composer-worker-stacks-"))
        self._prepared: list[tuple[DataLoader[Any], _Prepare]] = []

    def prepare(self, loader: object) -> None:
        """Prepare the workers that a loader starts from now on; for other than torch's, and without workers, nothing.

        Args:
            loader: The loader.
        """
        if not isinstance(loader, DataLoader) or loader.num_workers == 0:
            return
        if not isinstance(loader.worker_init_fn, _Prepare):
            prepare = loader.worker_init_fn = _Prepare(self._folder, loader.worker_init_fn)
            self._prepared.append((loader, prepare))

    def dump(self, pids: Iterable[int]) -> dict[int, str]:
        """Ask workers for the stacks of their threads; those that were not prepared, or do not react, are left out.

        Args:
            pids: Process ids of the workers.
        """
        prepared = [pid for pid in pids if _Files(self._folder, pid).signalled.exists()]
        stacks = _collected(prepared, self._ask, self._answer)
        if _SIGNAL is not None:
            silent = [pid for pid in prepared if pid not in stacks]
            sizes = {pid: _Files(self._folder, pid).signalled.stat().st_size for pid in silent}
            stacks |= _collected(silent, self._signal, lambda pid: self._written(pid, sizes[pid]))
        return stacks

    def _ask(self, pid: int) -> None:
        files = _Files(self._folder, pid)
        files.answer.unlink(missing_ok=True)
        files.asked.touch()

    def _answer(self, pid: int) -> str:
        answer = _Files(self._folder, pid).answer
        return answer.read_text(errors="replace") if answer.exists() else ""

    def _signal(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _SIGNAL or 0)

    def _written(self, pid: int, size: int) -> str:
        file = _Files(self._folder, pid).signalled
        text = file.read_text(errors="replace")[size:]
        if text:
            time.sleep(_TICK)  # until it is written whole
            text = file.read_text(errors="replace")[size:]
        return text

    def close(self) -> None:
        """Give the loaders their own functions back, and remove the files; running workers answer no longer."""
        for loader, prepare in self._prepared:
            if loader.worker_init_fn is prepare:
                loader.worker_init_fn = prepare.inner
        self._prepared = []
        shutil.rmtree(self._folder, ignore_errors=True)


class _Files:
    """The files of one worker: it was asked, its answer, and what the handler of the signal writes."""

    def __init__(self, folder: Path, pid: int) -> None:
        self.asked, self.answer, self.signalled = (
            folder / f"{pid}.{kind}" for kind in ("asked", "answer", "signalled")
        )


def _collected(pids: Iterable[int], ask: Callable[[int], None], answer: Callable[[int], str]) -> dict[int, str]:
    """Ask all, then wait until each has answered, or no longer."""
    waiting = list(pids)
    for pid in waiting:
        ask(pid)
    stacks: dict[int, str] = {}
    deadline = time.monotonic() + _PATIENCE
    while len(stacks) < len(waiting) and time.monotonic() < deadline:
        time.sleep(_TICK / 5)
        stacks |= {pid: text.strip() for pid in waiting if pid not in stacks and (text := answer(pid))}
    return stacks


class _Prepare:
    """Prepares a worker, then calls the loader's own function; can be pickled, for workers that are spawned."""

    def __init__(self, folder: Path, inner: Callable[[int], None] | None) -> None:
        self.folder = folder
        self.inner = inner

    def __call__(self, worker: int) -> None:
        files = _Files(self.folder, os.getpid())
        # The folder is gone where the loader outlived the training that it was prepared for.
        with contextlib.suppress(OSError):
            file = files.signalled.open("w")  # for as long as the worker lives
            _kept_open.append(file)
            if _SIGNAL is not None:
                faulthandler.register(_SIGNAL, file=file, all_threads=True)
            threading.Thread(target=_answer_when_asked, args=(files,), name="worker-stacks", daemon=True).start()
        if self.inner is not None:
            self.inner(worker)


def _answer_when_asked(files: _Files) -> None:
    """Write the stacks of the other threads whenever they are asked for, until the folder is gone."""
    with contextlib.suppress(OSError):
        while files.signalled.exists():
            if files.asked.exists():
                files.asked.unlink()
                whole = files.answer.with_suffix(".part")
                whole.write_text(_stacks_of_others())
                whole.replace(files.answer)
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
    """Return what the system says a process does, such as "S (sleeping)", or nothing where it does not say.

    Args:
        pid: Its id.

    >>> process_state(-1)
    ''
    """
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("State:"):
                return line.removeprefix("State:").strip()
    return ""
