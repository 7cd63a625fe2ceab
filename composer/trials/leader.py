"""The leader of a trial: starts its ranks, waits for them, and ends every process that they leave behind.

Each trial has a leader: a small process that is the parent of its ranks and, on Linux, adopts their orphans, such as
daemons and data workers. It ends all of them when the ranks have ended, when one has failed, after the time limit, on
SIGTERM, and when the study has ended without a chance to do so.

Started as ``python -m composer.trials.leader FOLDER RANKS SECONDS PARENT``, it starts a Python for each rank; the fork
server forks it, and it forks the ranks. It imports neither torch nor anything else that takes time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

__all__ = ["LOG_FILE", "adopt_orphans", "end_children", "lead", "rank_variables", "spawned", "terminate"]

LOG_FILE = "log.txt"
# Seconds that the other ranks have after one has failed.
_GRACE = 3.0
# Seconds after the time limit, at which the study ends the trial itself.
_OVERTIME = 10.0
# A program that prints without end must not fill the disk: of a longer log, only the end is kept.
_MAX_LOG_BYTES = 64 * 2**20
_KEPT_LOG_BYTES = 2**20
_PR_SET_CHILD_SUBREAPER = 36
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # modes of fallocate


def lead(folder: Path, ranks: int, seconds: float, parent: int, start: Callable[[int], int]) -> int:
    """Start the ranks of a trial and wait for them; end what is left.

    Args:
        folder: Folder of the trial.
        ranks: Number of its processes.
        seconds: Time limit of the trial.
        parent: Process without which the trial ends: the study or the fork server.
        start: ``start(rank)`` starts the process of a rank, and returns its process ID.

    Returns:
        The first exit code of a rank that is not 0: 128 plus the number of the signal that ended it, as in a shell.

    >>> lead(  # doctest: +SKIP
    ...     Path("folder"), 1, 60.0, os.getppid(), lambda rank: os.posix_spawn("/bin/false", ["false"], {})
    ... )
    1
    """
    adopt_orphans()
    deadline = time.monotonic() + seconds + _OVERTIME
    failed, checked = 0, 0.0
    try:
        running = {start(rank) for rank in range(ranks)}
        while running and (now := time.monotonic()) < deadline and os.getppid() == parent:
            for pid, code in _ended(running):
                running.discard(pid)
                if code and not failed:
                    failed = code
                    deadline = min(deadline, now + _GRACE)  # the others may report the error of this one
            if now > checked + 0.5:
                checked = now
                _free_beginning(folder / LOG_FILE)
            time.sleep(0.01)
        return failed or (1 if running else 0)
    finally:
        end_children()
        _shorten(folder / LOG_FILE)


def rank_variables(rank: int, ranks: int) -> dict[str, str]:
    """Return the environment variables that tell a process its place among the ranks; none for a single one.

    Args:
        rank: Its rank.
        ranks: Number of ranks.

    >>> rank_variables(1, 2)["RANK"], rank_variables(0, 1)
    ('1', {})
    """
    if ranks == 1:
        return {}
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "NODE_RANK": 0}
    return {name: str(value) for name, value in names.items()}


def spawned(folder: Path, rank: int, ranks: int) -> int:
    """Start a Python for a rank, and return its process ID.

    Args:
        folder: Folder of the trial.
        rank: The rank.
        ranks: Number of ranks.

    >>> spawned(Path("folder"), 0, 1)  # doctest: +SKIP
    12345
    """
    command = [sys.executable, "-m", "composer.trials.worker", str(folder)]
    return os.posix_spawn(sys.executable, command, {**os.environ, **rank_variables(rank, ranks)})


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends, so that they are found; on Linux.

    >>> adopt_orphans()
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_children() -> None:
    """Kill the children of this process, and the children that these leave, until there are none; on Linux.

    >>> end_children()  # doctest: +SKIP
    """
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    while path.exists() and (children := path.read_text().split()):
        for pid in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(pid), 0)


def _ended(running: set[int]) -> list[tuple[int, int]]:
    """Return the process IDs and exit codes of the ranks that have ended; also reap the orphans that were adopted."""
    found: list[tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid in running:
                code = os.waitstatus_to_exitcode(status)
                found.append((pid, 128 - code if code < 0 else code))
    return found


def _free_beginning(log: Path) -> None:
    """Free the disk space of a log that is too long, but for its end, while processes append to it.

    To truncate it would lose what they write between the last read and the truncation. Where the system cannot free
    a part of a file, the log stays until the processes have ended.
    """
    with contextlib.suppress(FileNotFoundError):
        held = log.stat()
        if sys.platform == "linux" and held.st_blocks * 512 > _MAX_LOG_BYTES:
            with log.open("rb+") as file:
                length = max(0, held.st_size - _KEPT_LOG_BYTES)
                fallocate = ctypes.CDLL(None).fallocate
                fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
                fallocate(file.fileno(), _PUNCH_HOLE | _KEEP_SIZE, 0, length)


def _shorten(log: Path) -> None:
    """Keep the end of a log that is too long, after the processes that appended to it have ended."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > _MAX_LOG_BYTES:
            with log.open("rb+") as file:
                file.seek(-_KEPT_LOG_BYTES, os.SEEK_END)
                end = file.read(_KEPT_LOG_BYTES)
                file.truncate(0)
            with log.open("ab") as file:
                file.write(b"... (the beginning was removed)\n" + end)


def terminate(signum: int, frame: FrameType | None) -> None:
    """Handle a signal: end all descendants, and this process.

    Args:
        signum: The signal.
        frame: What the process executed.

    >>> terminate(signal.SIGTERM, None)  # doctest: +SKIP
    """
    end_children()
    os._exit(128 + signum)


def _main(folder: str, ranks: str, seconds: str, parent: str) -> None:
    """Lead a trial whose ranks start a Python each; never returns."""
    signal.signal(signal.SIGTERM, terminate)
    path, number = Path(folder), int(ranks)
    os._exit(lead(path, number, float(seconds), int(parent), lambda rank: spawned(path, rank, number)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
