"""Train in processes that are killed at random times while checkpoints are uploaded slowly.

Called in a process of ``tests.forking``.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import fsspec
import torch
from fsspec.implementations.local import LocalFileSystem

from composer.checkpoint.file_format import read
from composer.core import Callback
from tests import forking
from tests.trainer.resuming import build, shuffled


class Far(LocalFileSystem):
    """A folder of this machine that counts as another place, and to which a file goes in two halves."""

    protocol = "far"
    pause = 0.02

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.removeprefix("far://"))

    def put_file(self, lpath: str, rpath: str, callback=None, **kwargs) -> None:
        content = Path(lpath).read_bytes()
        with Path(rpath).open("wb") as file:
            file.write(content[: len(content) // 2])
            file.flush()
            time.sleep(self.pause)
            file.write(content[len(content) // 2 :])


fsspec.register_implementation("far", Far)


class _Slow(Callback):
    def before_backward(self, state, logger) -> None:
        time.sleep(0.01)


def trainer_in(folder: Path | None, number: int = 0, duration: str = "14ba"):
    """A run that saves after each batch; None saves nothing."""
    saving = {} if folder is None else {"save_folder": f"far://{folder}", "save_interval": "1ba", "autoresume": True}
    given = {"save_async": number % 2 == 1, "save_num_checkpoints_to_keep": 2, "max_duration": duration}
    return build(shuffled(), callbacks=_Slow(), schedulers=None, **given, **saving)


def _child(folder: Path, number: int, duration: str) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            trainer = trainer_in(folder, number, duration)
            trainer.fit()
            trainer.close()
            torch.save(trainer.state.model.state_dict(), folder.parent / "end.pt")
            code = 0
        finally:
            os._exit(code)
    return child


def kill_many(root: str, times: int) -> list[dict[str, Any]]:
    """Kill some processes, then let one come to the end; return what each has left."""
    folder, found = Path(root), []
    straight = trainer_in(None)  # what is imported when it is used is there for the children
    straight.fit()
    torch.save(straight.state.model.state_dict(), folder.parent / "straight.pt")
    forking.share()
    chance = random.Random(0)
    for number in range(times + 1):
        # The last has two checkpoints to save, whatever the others have come to.
        child = _child(folder, number, "12ba" if number < times else "14ba")
        if number < times:
            time.sleep(0.05 + chance.random() * 0.3)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        link, batch = folder / "latest-rank0.pt.symlink", None
        if link.exists():
            batch = read(folder / link.read_text())["state"]["timestamp"]["Timestamp"]["batch"]
        found.append({"batch": batch, "status": status})
    return found
