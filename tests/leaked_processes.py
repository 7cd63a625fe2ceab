"""Find processes that a test file leaves running: report them as an error of the file, and end them.

They would outlive the suite, and whoever reads its output through a pipe (``make test | tee log``) would wait for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import time
from collections.abc import Iterable

import psutil

# Seconds for processes to end by themselves: a busy machine takes some to end a worker that was asked to.
PATIENCE = 10.0
_PR_SET_CHILD_SUBREAPER = 36

# Pids of processes that are kept from file to file on purpose.
kept: set[int] = set()


def adopt_orphans() -> None:
    """Make this process the parent of those whose own parent ends, so that they are still found. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end(patience: float = PATIENCE) -> list[str]:
    """End orphaned child processes; return their command lines.

    Args:
        patience: Seconds that they have to end by themselves.
    """
    if not any(_left()):
        return []
    gc.collect()  # a loader that was dropped in a cycle ends its workers now
    deadline = time.monotonic() + patience
    while (left := list(_left())) and time.monotonic() < deadline:
        time.sleep(0.05)
    names = [_name(process) for process in left]
    # Politely first: workers that torch knows of may end so, but not by SIGKILL, of which it makes an error.
    for stop in (psutil.Process.terminate, psutil.Process.kill):
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                stop(process)
        with contextlib.suppress(RuntimeError):
            left = psutil.wait_procs(left, timeout=3)[1]
    return names


def _left() -> Iterable[psutil.Process]:
    for process in psutil.Process().children():
        try:
            if process.pid in kept or _is_helper(process):
                continue
            if process.status() == psutil.STATUS_ZOMBIE:
                # An adopted one is reaped; those that subprocess or multiprocessing started are theirs to wait for.
                continue
        except psutil.NoSuchProcess:
            continue
        yield process


def _is_helper(process: psutil.Process) -> bool:
    """Whether a library keeps one such process for as long as this one lives, and ends it then."""
    command = " ".join(process.cmdline())
    helpers = (
        "multiprocessing.resource_tracker",
        "multiprocessing.forkserver",
        "torch/_inductor/compile_worker",
        "wandb/bin/wandb-core",
    )
    return any(helper in command for helper in helpers)


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return f"{process.pid} ({process.status()}): {' '.join(process.cmdline())[:300]}"
    return str(process.pid)
