"""The Python stacks of the worker processes of a data loader, whatever they are doing."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, TextIO

from torch.utils.data import DataLoader

__all__ = ["WorkerStacks", "process_state"]

# Where the platform has such signals; Windows has none.
_SIGNAL: Final = getattr(signal, "SIGUSR2", None) if hasattr(faulthandler, "register") else None
_PATIENCE: Final = 2.0

_kept_open: list[TextIO] = []


class WorkerStacks:
    """Has the workers of loaders write their stacks to a file when they are asked to.

    Each worker registers ``faulthandler`` on a signal when it starts, before the loader's own ``worker_init_fn``. That
    handler runs in C and needs nothing of the interpreter, so it also tells what a worker does that hangs: in a sleep,
    on a lock, in a system call.

    >>> stacks = WorkerStacks()
    >>> stacks.prepare(DataLoader([1, 2]))  # which has no workers
    >>> stacks.dump([])
    {}
    >>> stacks.close()
    """

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="composer-worker-stacks-")
        self._prepared: list[tuple[DataLoader[Any], _Prepare]] = []

    def prepare(self, loader: object) -> None:
        """Prepare the workers that a loader starts from now on; for other than torch's, and without workers, nothing.

        Args:
            loader: The loader.
        """
        if not isinstance(loader, DataLoader) or loader.num_workers == 0 or _SIGNAL is None:
            return
        if not isinstance(loader.worker_init_fn, _Prepare):
            prepare = loader.worker_init_fn = _Prepare(self._folder, loader.worker_init_fn)
            self._prepared.append((loader, prepare))

    def dump(self, pids: Iterable[int]) -> dict[int, str]:
        """Ask workers for the stacks of their threads; those that were not prepared, or do not react, are left out.

        Args:
            pids: Process ids of the workers.
        """
        files = {pid: Path(self._folder, f"{pid}.txt") for pid in pids}
        asked: dict[int, tuple[Path, int]] = {}
        for pid, file in files.items():
            # A worker without the file is not prepared, and the signal would end it.
            with contextlib.suppress(OSError):
                size = file.stat().st_size
                os.kill(pid, _SIGNAL or 0)
                asked[pid] = (file, size)
        stacks: dict[int, str] = {}
        deadline = time.monotonic() + _PATIENCE
        while len(stacks) < len(asked) and time.monotonic() < deadline:
            time.sleep(0.05)
            for pid, (file, size) in asked.items():
                text = file.read_text(errors="replace")[size:]
                if text and stacks.get(pid) == text:
                    continue
                if text:
                    time.sleep(0.05)  # until it is written whole
                    stacks[pid] = file.read_text(errors="replace")[size:].strip()
        return stacks

    def close(self) -> None:
        """Give the loaders their own functions back, and remove the files; running workers stay prepared."""
        for loader, prepare in self._prepared:
            if loader.worker_init_fn is prepare:
                loader.worker_init_fn = prepare.inner
        self._prepared = []
        shutil.rmtree(self._folder, ignore_errors=True)


class _Prepare:
    """Prepares a worker, then calls the loader's own function; can be pickled, for workers that are spawned."""

    def __init__(self, folder: str, inner: Callable[[int], None] | None) -> None:
        self.folder = folder
        self.inner = inner

    def __call__(self, worker: int) -> None:
        # The folder is gone where the loader outlived the training that it was prepared for.
        with contextlib.suppress(OSError):
            file = Path(self.folder, f"{os.getpid()}.txt").open("w")  # noqa: SIM115 -- for as long as the worker lives
            _kept_open.append(file)
            faulthandler.register(_SIGNAL or 0, file=file, all_threads=True)
        if self.inner is not None:
            self.inner(worker)


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
