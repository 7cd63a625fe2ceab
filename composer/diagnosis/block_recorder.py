"""The probe of a variant: trains blocks of steps when it has the token, and waits between them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from composer import dist
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.diagnosis.first_steps import FirstSteps
from composer.diagnosis.recorder import DoctorProbe
from composer.trials.probe import Finished

if TYPE_CHECKING:
    from composer.trainer import Trainer

__all__ = ["BLOCK_FILE", "TOKEN_FILE", "BlockRecorder", "write"]

# Written by the conductor: the number of the block to train, and its steps.
TOKEN_FILE = "token.json"
# Written by rank 0 when a block is done: its number and seconds a step.
BLOCK_FILE = "block.json"


def write(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file that another process reads at any moment.

    Args:
        path: The file.
        value: Its content.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(Path(folder, "token.json"), {"block": 1})
    ...     Path(folder, "token.json").read_text()
    '{"block": 1}'
    """
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value), encoding="utf-8")
    partial.replace(path)


class BlockRecorder(DoctorProbe):
    """Trains a block of steps for each token, and writes down the seconds of a step.

    Args:
        folder: Folder of the trial, with the tokens.
        changed: See :class:`.DoctorProbe`.
        edits: See :class:`.DoctorProbe`.

    >>> Trial("block-fused", target, "composer.diagnosis.block_recorder:BlockRecorder")  # doctest: +SKIP
    """

    def init(self, arguments: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the trainer with the callback that waits for tokens."""
        restored = super().init(arguments, given)
        restored["callbacks"] = [_Blocks(self.folder), *restored["callbacks"], FirstSteps(self.folder)]
        return restored

    def begin(self, trainer: Trainer) -> None:
        """Let only the trainer that is meant wait."""
        blocks = next(callback for callback in trainer.state.callbacks if isinstance(callback, _Blocks))
        blocks.is_active = True


class _Blocks(Callback):
    """Measures blocks of steps between the requests for a batch."""

    def __init__(self, folder: Path) -> None:
        self.is_active = False
        self._folder, self._block, self._has_batch = folder, -1, False
        self._left = self._skipped = self._steps = 0
        self._began = 0.0

    def before_dataloader(self, state: State, logger: Logger) -> None:
        if not self.is_active:
            return
        if self._has_batch:
            self._has_batch = False
            self._left -= 1
            if self._left == self._steps:  # the first steps after a pause are not measured
                self._began = self._now(state)
        if self._left > 0:
            return
        if self._block >= 0 and dist.get_global_rank() == 0:
            seconds = (self._now(state) - self._began) / self._steps
            write(self._folder / BLOCK_FILE, {"block": self._block, "seconds": seconds})
        elif dist.get_global_rank() == 0:
            write(self._folder / BLOCK_FILE, {"block": -1, "seconds": 0.0})
        self._wait()
        if self._left == self._steps:
            self._began = self._now(state)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        self._has_batch = True

    def _wait(self) -> None:
        """Wait for the next token."""
        path = self._folder / TOKEN_FILE
        while True:
            try:
                token = json.loads(path.read_text(encoding="utf-8"))
            except FileNotFoundError:
                token = {"block": -1}
            if token["block"] > self._block:
                break
            time.sleep(0.001)
        if token.get("end"):
            raise Finished
        self._block, self._steps = token["block"], token["steps"]
        self._left = token["steps"] + token["skipped"]

    @staticmethod
    def _now(state: State) -> float:
        if state.device.torch_device.type not in ("cpu", "meta"):
            torch.accelerator.synchronize()
        return time.perf_counter()
