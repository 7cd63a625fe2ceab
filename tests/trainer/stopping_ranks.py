"""Stop two-rank runs by signals; called in a process of ``tests.forking``."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from composer import Callback
from composer.checkpoint.file_format import read
from composer.checkpoint.latest_symlink import resolve
from tests import forking
from tests.common import Event
from tests.trainer.multi_rank import numbered, run_of
from tests.trainer.stopping import wait

# For a run that hangs, not for one that is slow.
LIMIT = 200.0


class Pause(Callback):
    """Tells the parent when an event has come for the second time, and takes its time there."""

    def __init__(self, event: str, pipe: int, seconds: float) -> None:
        self.event, self.pipe, self.seconds, self.seen = Event(event), pipe, seconds, 0

    def run_event(self, event, state, logger):
        if event is self.event:
            self.seen += 1
            if self.seen == 2:
                os.write(self.pipe, b".")
            if self.seen >= 2:
                time.sleep(self.seconds)


def train(rank: int, folder: Path, event: str, pipe: int, seconds: float) -> None:
    """Train until somebody stops it."""
    names = {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}.store", rank=rank, world_size=2, timeout=timedelta(seconds=LIMIT)
    )
    trainer, _ = run_of(
        "regression",
        numbered(26, 2, shuffle=True),
        max_duration="100000ep",
        eval_dataloader=numbered(9, 2),
        eval_interval="3ba",
        save_folder=str(folder),
        save_interval="100000ep",
        callbacks=[Pause(event, pipe, seconds)],
    )
    trainer.fit()


def start(rank: int, folder: Path, event: str, seconds: float) -> tuple[int, int, int]:
    """Fork a process of the run; return its number, a pipe that signals its start, and its stderr."""
    reader, writer = os.pipe()
    errors, error = os.pipe()
    child = os.fork()
    if child == 0:
        code = 99
        try:
            os.dup2(error, 2)
            train(rank, folder, event, writer, seconds)
            code = 98
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(writer)
    os.close(error)
    return child, reader, errors


def until_told(errors: int) -> None:
    """Wait until a process has noted a signal."""
    text = b""
    while b"repeat after a second to end it now" not in text:
        more = os.read(errors, 4096)
        assert more, text.decode()
        text += more


def stop(folder: Path, event: str, *, to: tuple[int, ...] = (1,), twice: bool = False) -> dict[str, Any]:
    """Send signals to some processes while all are at an event, and look at what is left."""
    started = [start(rank, folder, event, 1000.0 if twice else 0.02) for rank in range(2)]
    for _, reader, _ in started:
        os.read(reader, 1)
    for rank in to:
        os.kill(started[rank][0], signal.SIGTERM)
    if twice:
        for rank in to:
            until_told(started[rank][2])
            time.sleep(1.2)  # sooner, it would count as a copy of the first
            os.kill(started[rank][0], signal.SIGTERM)
    statuses = [wait(child, LIMIT) for child, _, _ in started]
    latest = resolve(folder / "latest-rank0.pt")
    found: dict[str, Any] = {"statuses": statuses, "files": len(list(folder.glob("ep*"))), "batch": None}
    if latest is not None:
        found["batch"] = read(latest)["state"]["timestamp"]["Timestamp"]["batch"]
    if 99 in statuses:
        found["errors"] = [os.read(errors, 1 << 16).decode()[-2000:] for _, _, errors in started]
    return found


def stop_all(root: str) -> dict[str, Any]:
    """Stop runs in several ways."""
    folder = Path(root)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _prepare(folder)
        return {
            "one": stop(folder / "one", "before_forward"),
            "both": stop(folder / "both", "after_train_batch", to=(0, 1)),
            "loading": stop(folder / "loading", "before_dataloader", to=(0,)),
            "eval": stop(folder / "eval", "eval_before_forward"),
            "twice": stop(folder / "twice", "before_backward", to=(0, 1), twice=True),
        }


def _prepare(folder: Path) -> None:
    """Import here what is imported when it is used, so that no child needs to."""
    saved = {"save_folder": str(folder / "warm"), "save_interval": "1ep"}
    run_of("regression", numbered(4, 2), max_duration="1ep", eval_dataloader=numbered(2, 2), **saved)[0].fit()
    forking.share()
