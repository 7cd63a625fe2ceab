"""Kill the processes of a run again and again, and compare its ledger with what was seen from outside.

Called in a process of ``tests.forking``.
"""

from __future__ import annotations

import math
import os
import random
import signal
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from composer import Callback
from composer.ledger import Ledger
from tests import forking
from tests.trainer.resuming import Augmented, build, shuffled

ENDLESS, LAST_STEPS = 10**6, 150
MOMENTS = ("any", "eval", "save", "ledger")


class Tell(Callback):
    """Takes time in each step and evaluation, and writes to the parent at the moments at which it may kill."""

    def __init__(self, pipe: int, hold_after: float) -> None:
        self.pipe, self.hold_after, self.end, self.is_held = pipe, hold_after, 0.0, False

    def fit_start(self, state, logger):
        os.write(self.pipe, b"f")
        self.end = time.monotonic() + self.hold_after

    def before_forward(self, state, logger):
        time.sleep(0.004)
        if self.is_held:
            os.write(self.pipe, b"l")  # the ledger has been written since the last checkpoint
            time.sleep(60)
        if time.monotonic() >= self.end and state.timestamp.batch.value % 5 == 2:
            self.is_held = True
            time.sleep(0.6)  # writing the ledger is due after this step

    def eval_batch_start(self, state, logger):
        os.write(self.pipe, b"e")
        time.sleep(0.002)

    def batch_checkpoint(self, state, logger):
        os.write(self.pipe, b"s")  # the saver, which comes next, saves every five batches
        if state.timestamp.batch.value % 5 == 0:
            time.sleep(0.001)


def train(folder: Path, pipe: int, number: int, duration: int, hold_after: float) -> None:
    """Train as a user's script does."""
    build(
        shuffled(),
        eval_dataloader=DataLoader(Augmented(), 4),
        eval_interval="6ba",
        save_folder=str(folder),
        save_interval="5ba",
        save_async=number % 2 == 1,
        save_num_checkpoints_to_keep=2,
        autoresume=True,
        callbacks=Tell(pipe, hold_after),
        max_duration=f"{duration}ba",
        schedulers=None,
    ).fit()


def start(folder: Path, number: int, duration: int, hold_after: float) -> tuple[int, int]:
    """Fork a child that trains; return its number, and the pipe."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.close(reader)
            error = os.open(folder.parent / "errors.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(error, 2)
            train(folder, writer, number, duration, hold_after)
            os.write(writer, b"z")  # the system takes a while to end a process
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    return child, reader


def read_until(pipe: int, wanted: bytes, seconds: float) -> None:
    """Read what a child writes for some time, then until it writes what is wanted."""
    end = time.monotonic() + seconds
    while text := os.read(pipe, 1):
        if time.monotonic() >= end and text == wanted:
            return


def kill_repeatedly(folder: str, times: int) -> dict[str, Any]:
    """Kill that many processes of a run, let one end, and return its ledger and the truth."""
    with tempfile.TemporaryDirectory() as warm:
        build(shuffled(), eval_dataloader=DataLoader(Augmented(), 4), save_folder=warm, schedulers=None).fit()
    forking.share()
    chance, path, began, gaps, ended = random.Random(0), Path(folder, "run"), time.time(), 0.0, None
    statuses: list[int] = []
    done = 0
    for number in range(times + 1):
        gaps += 0.0 if ended is None else time.time() - ended
        done = Ledger.read(path).segments[-1].last_batch if number == times else ENDLESS
        moment = MOMENTS[number % len(MOMENTS)] if number < times else ""
        seconds = 0.3 + 0.7 * chance.random()
        child, pipe = start(path, number, done + LAST_STEPS, seconds if moment == "ledger" else math.inf)
        if number < times:
            read_until(pipe, b"f", 0.0)
            if moment == "any":
                time.sleep(seconds)
            else:
                read_until(pipe, moment[:1].encode(), seconds)
            os.kill(child, signal.SIGKILL)
        else:
            read_until(pipe, b"z", 0.0)
            ended = time.time()
        statuses.append(os.waitpid(child, 0)[1])
        ended = time.time() if number < times else ended
        os.close(pipe)
    assert ended is not None
    ledger = Ledger.read(path)
    return {
        "statuses": statuses,
        "wall": ended - began,
        "gaps": gaps,
        "explained": ledger.explained * ledger.total,
        "goodput": [ledger.goodput, ledger.of_all_ranks().share],
        "total": ledger.total,
        "seconds": {category.value: seconds for category, seconds in ledger.seconds.items()},
        "batches": [[one.first_batch, one.last_batch, one.state] for one in ledger.segments],
        "end": done + LAST_STEPS,
        "table": str(ledger),
    }
