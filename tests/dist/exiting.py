"""Ranks that exit in given ways, and print the state of the process group at the very end.

Each is a fork of this process, which has imported torch and not composer. A line of its input is in JSON: the way, the
environment of each rank, and the file of each rank's output. It answers with a line: what the ranks exit with, and the
seconds until the first has.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import pickle
import signal
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as torch_dist

world: list[Any] = []
LIMIT = 120.0


def way_of_a_rank() -> str | None:
    """Fork ranks as long as some are asked for; return the way in each of them, and nothing in the process itself."""
    for line in sys.stdin:
        how, environments, outputs = json.loads(line)
        start, pids = time.monotonic(), []
        for environment, output in zip(environments, outputs, strict=True):
            pid = os.fork()
            if not pid:
                os.environ.update(environment)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT), 1)
                os.dup2(1, 2)
                return how
            pids.append(pid)
        codes = [exit_code(pids[0], start + LIMIT)]
        seconds = time.monotonic() - start
        for pid in pids[1:]:
            if how in STUCK:
                os.kill(pid, signal.SIGKILL)
            codes.append(exit_code(pid, time.monotonic() + LIMIT))
        print(json.dumps([codes, seconds]), flush=True)
    return None


def exit_code(pid: int, end: float) -> int:
    """What a process exits with; it is killed at a time."""
    while not (status := os.waitpid(pid, os.WNOHANG))[0]:
        time.sleep(0.02)
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(status[1])


STUCK = ("stuck", "error")
"""Ways in which the second rank does not come while the first exits."""

HOW = way_of_a_rank()
if HOW is None:
    sys.exit()


@atexit.register
def post_error() -> None:
    """Registered before composer is imported, so called last."""
    gc.collect()
    group = world[0]
    print("initialized" if torch_dist.is_initialized() else "destroyed", "held" if group() else "ended", flush=True)


from composer import dist  # noqa: E402
from composer.dist import group_exit  # noqa: E402


class Saving:
    """Says when a checkpoint is written, which the end of the process waits for."""

    def __reduce__(self) -> Any:
        time.sleep(0.5)
        dist.barrier()
        print("saved", flush=True)
        return int, ()


class Holder:
    """Refers to the group, as wrappers of models do."""

    def __init__(self) -> None:
        self.group: Any = torch_dist.group.WORLD
        self.itself = self
        group_exit.release_at_exit(self.release)

    def release(self) -> None:
        del self.group


def main(how: str) -> Any:
    first = dist.get_global_rank() == 0
    if how == "handlers":  # all before there is a group, the last first
        atexit.register(torch_dist.destroy_process_group)
        atexit.register(lambda: print("met", torch_dist.get_world_size(), flush=True))
        atexit.register(dist.barrier)
        atexit.register(torch_dist.barrier)
        atexit.register(time.sleep, 0.3 if first else 0.0)
    if how == "own":
        torch_dist.init_process_group("gloo")
    dist.initialize_dist("cpu", timeout=90)
    world.append(weakref.ref(torch_dist.group.WORLD))
    dist.barrier()
    if how == "replaced":
        torch_dist.destroy_process_group()
        torch_dist.init_process_group("gloo")
        world[0] = weakref.ref(torch_dist.group.WORLD)
    if how == "handlers":
        ThreadPoolExecutor(1).submit(pickle.dumps, Saving())
    if how == "forked" and not os.fork():
        sys.exit()  # as a child that does not know of the group
    group_exit._TIMEOUT = group_exit._TIMEOUT_AFTER_ERROR = 1.0 if how in STUCK else 30.0
    holder = Holder() if how == "late" else None
    if how in ("late", *STUCK) and first:
        # Nobody waits for it, and the other is late, or does not come while this one exits.
        torch_dist.all_reduce(torch.zeros(1), async_op=True)
    elif how == "late":
        time.sleep(0.5)
        torch_dist.all_reduce(torch.zeros(1))
    elif how in STUCK:
        time.sleep(10 * LIMIT)  # until it is killed
    if how == "forked":
        time.sleep(0.5)
        dist.barrier()
    if how == "error":
        raise RuntimeError("an error of the user's")
    return holder


if __name__ == "__main__":
    kept = main(HOW)
