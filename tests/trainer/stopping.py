"""Stop training processes in many ways; called in a process of ``tests.forking``."""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from composer import Callback
from composer.checkpoint.file_format import read
from composer.checkpoint.latest_symlink import resolve
from tests import forking
from tests.trainer.resuming import Augmented, build, shuffled

STEPS = 400


class Tell(Callback):
    """Writes to the parent when training begins, and at each step."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def fit_start(self, state, logger):
        os.write(self.pipe, b".")


class Slow(Callback):
    """Takes time in every part of a step."""

    def before_forward(self, state, logger):
        time.sleep(0.002)

    def before_backward(self, state, logger):
        time.sleep(0.002)

    def eval_before_forward(self, state, logger):
        time.sleep(0.002)


def train(folder: Path, number: int, pipe: int, seconds: float = 0.0) -> None:
    """Train as a user's script does; each number in another way."""
    callbacks: list[Callback] = [Tell(pipe), Slow()]
    trainer = build(
        shuffled(num_workers=number % 2),
        eval_dataloader=DataLoader(Augmented(), 2),
        eval_interval="4ba",
        save_folder=str(folder),
        save_interval="1ba" if number % 3 else "3ba",
        save_async=number % 4 >= 2,
        save_num_checkpoints_to_keep=3,
        autoresume=True,
        callbacks=callbacks,
        max_duration=f"{STEPS}ba",
        schedulers=None,
    )
    if seconds:
        trainer.state.callbacks.append(_Sleep(seconds))
    trainer.fit()


class _Sleep(Callback):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def before_backward(self, state, logger):
        time.sleep(self.seconds)


def start(folder: Path, number: int, seconds: float = 0.0) -> tuple[int, int]:
    """Fork a child that trains; return its number once training has begun, and the pipe."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.close(reader)
            os.setpgrp()
            error = os.open(folder.parent / f"{folder.name}.err", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(error, 2)
            train(folder, number, writer, seconds)
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        except KeyboardInterrupt:
            code = 130
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    os.read(reader, 1)
    return child, reader


def wait(child: int, limit: float = 30.0) -> int | None:
    """The status of a child, as the shell shows it; None if it is still there after the limit."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def stop(folder: Path, number: int, signum: int, chance: random.Random) -> dict[str, Any]:
    """Train, send a signal after a random time, and look at what is left."""
    child, reader = start(folder, number)
    time.sleep(chance.random() * 0.25)
    # Those with loader workers get it together with these, as a scheduler of machines or a terminal does it.
    (os.killpg if number % 2 else os.kill)(child, signum)
    status = wait(child)
    os.close(reader)
    latest = resolve(folder / "latest-rank0.pt")
    found = {"number": number, "status": status, "batch": None, "partial": 0}
    if latest is not None:
        content = read(latest)
        found["batch"] = content["state"]["timestamp"]["Timestamp"]["batch"]
    found["partial"] = len(list(folder.glob("*.tmp")))
    if status == 99:
        found["error"] = (folder.parent / f"{folder.name}.err").read_text()[-2000:]
    return found


def stop_many(name: str, times: int, folder: str) -> list[dict[str, Any]]:
    """Stop that many processes, three on the same folder one after the other."""
    _prepare()
    chance = random.Random(0)
    return [stop(Path(folder, str(number // 3)), number, signal.Signals[name], chance) for number in range(times)]


def stop_twice(folder: str) -> tuple[int | None, float]:
    """The status of a process that is in a long step and gets two signals, and the seconds after the second one."""
    _prepare()
    child, pipe = start(Path(folder, "run"), 1, seconds=20.0)
    time.sleep(0.5)
    os.kill(child, signal.SIGTERM)
    time.sleep(1.2)
    begin = time.monotonic()
    os.kill(child, signal.SIGTERM)
    status = wait(child)
    os.close(pipe)
    return status, time.monotonic() - begin


def _prepare() -> None:
    """Import here what is imported when it is used, so that no child needs to."""
    with tempfile.TemporaryDirectory() as warm:
        build(shuffled(), eval_dataloader=DataLoader(Augmented(), 2), save_folder=warm, schedulers=None).fit()
    forking.share()
