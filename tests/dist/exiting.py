"""A rank that exits in a given way, and prints the state of the process group at the very end.

    exiting.py HOW

``MASTER_PORT``, ``RANK`` and the others are as a launcher sets them.
"""

from __future__ import annotations

import atexit
import gc
import os
import pickle
import sys
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as torch_dist

world: list[Any] = []


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
    group_exit._TIMEOUT = group_exit._TIMEOUT_AFTER_ERROR = 1.0 if how in ("stuck", "error") else 30.0
    holder = Holder() if how == "late" else None
    if how in ("late", "stuck", "error") and first:
        # Nobody waits for it, and the other is late, or does not come while this one exits.
        torch_dist.all_reduce(torch.zeros(1), async_op=True)
    elif how == "late":
        time.sleep(0.5)
        torch_dist.all_reduce(torch.zeros(1))
    elif how in ("stuck", "error"):
        sys.stdin.read()  # until the test lets it go
        os._exit(0)
    if how == "forked":
        time.sleep(0.5)
        dist.barrier()
    if how == "error":
        raise RuntimeError("an error of the user's")
    return holder


if __name__ == "__main__":
    kept = main(sys.argv[1])
