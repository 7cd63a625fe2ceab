"""Save to the same folder again and again in processes that are killed at any moment.

Run as a program with a folder and a number of processes; writes a line of JSON for each.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from composer.checkpoint.sharded_reader import read_sharded
from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded


def save(folder: Path, number: int) -> None:
    """Write a checkpoint all of whose values are a number."""
    weights = {name: torch.full((64,), float(number)) for name in ("a", "b")}
    write_sharded(shard_checkpoint({"state": {"model": weights, "number": number}}), folder)


def _child(folder: Path, number: int) -> int:
    child = os.fork()
    if child == 0:
        try:
            while True:
                number += 1
                save(folder, number)
        finally:
            os._exit(1)
    return child


def main(folder: Path, times: int) -> None:
    """Kill processes; after each, and all the time that it writes, the name stands for a complete checkpoint."""
    torch.set_num_threads(1)
    chance = random.Random(0)
    save(folder, 0)
    number = 0
    for _ in range(times):
        before = folder.stat().st_ino
        child = _child(folder, number)
        while folder.stat().st_ino == before:  # until it has replaced the folder once, however slow the machine is
            time.sleep(0.001)
        end, absent = time.monotonic() + chance.random() * 0.2, 0
        while time.monotonic() < end:
            absent += not folder.is_dir()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        state = read_sharded(folder)["state"]
        values = {value for tensor in state["model"].values() for value in tensor.tolist()}
        number = state["number"]
        print(json.dumps({"number": number, "whole": values == {float(number)}, "absent": absent}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
