"""Train blocks of steps when a file says so, and wait between them; the seconds and the kind of each step.

While one variant trains, the processes of the others are stopped (SIGSTOP), with their data workers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from composer import dist
from composer.core.callback import Callback
from composer.core.logger import Logger
from composer.core.state import State
from composer.trials.blocks import kind_of
from composer.trials.peak_memory import peak_memory

__all__ = ["BLOCK_FILE", "TOKEN_FILE", "Blocks", "prefetched_batches", "write"]

# More queued batches are not waited for.
_MOST_QUEUED = 32
# Written by the contest: the number of the block to train, its steps, and whether it is whole epochs.
TOKEN_FILE = "token.json"
# Written by rank 0 when a block is done: its number, and the fields of :class:`.Block`.
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


class Blocks(Callback):
    """Measures the steps of blocks, each from one request for a batch to the next.

    The first steps after a pause are not measured: while the processes are stopped, what data workers wait for may
    arrive, and they may have filled their queue before they were stopped. These batches would cost nothing.

    Args:
        folder: Folder of the trial, with the tokens.
        clock: Returns the time in seconds.

    Attributes:
        is_active: Whether this is the ``fit`` that is meant.
        events: What happened in the present step, as of :func:`.kind_of`.

    >>> Blocks(Path("trial")).is_active
    False
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.is_active = False
        self.events: set[str] = set()  # of the present step
        self._folder, self._block, self._has_batch = folder, -1, False
        self._skip = self._steps = 0
        self._seconds: list[float] = []
        self._kinds: list[str] = []
        self._began = self._since = 0.0

    def before_dataloader(self, state: State, logger: Logger) -> None:
        """End a step, and wait for the next token if the block is done."""
        if not self.is_active:
            return
        if self._has_batch:
            self._has_batch = False
            self._end_step(state)
        if len(self._seconds) < self._skip + self._steps:
            return
        if self._block >= 0 and dist.get_global_rank() == 0:
            write(self._folder / BLOCK_FILE, self._measured(peak_memory(state.device.torch_device)))
        self._wait(state)

    def after_dataloader(self, state: State, logger: Logger) -> None:
        """Note that a step has begun."""
        self._has_batch = True

    def epoch_start(self, state: State, logger: Logger) -> None:
        """Note the kind of the step."""
        # In the first step of the epoch, as is the end of the epoch before: the loader is found to have ended when a
        # further batch is requested.
        self.events.add("epoch")

    def eval_before_all(self, state: State, logger: Logger) -> None:
        """Note the kind of the step."""
        self.events.add("evaluation")

    def _end_step(self, state: State) -> None:
        """Note the seconds and the kind of a step. An accelerator is waited for at the ends of the block only."""
        number = len(self._seconds) + 1
        now = self._now(state) if number in (self._skip, self._skip + self._steps) else self._clock()
        self._seconds.append(now - self._since)
        self._since = now
        self._kinds.append(kind_of(self.events))
        self.events = set()

    def _measured(self, memory: int) -> dict[str, Any]:
        """Return the block, and the peak memory so far, in JSON types."""
        return {
            "block": self._block,
            "seconds": self._seconds[self._skip :],
            "kinds": self._kinds[self._skip :],
            "skipped": self._kinds[: self._skip],
            "total": self._since - self._began,
            "memory": memory,
            "cpu_seconds": time.process_time(),
        }

    def _wait(self, state: State) -> None:
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
        if self._block < 0:
            self.events = set()  # before the first step
        self._block, self._steps = token["block"], token["steps"]
        workers, queued = prefetched_batches(state)
        self._skip = 1 + queued
        if workers and not token["whole"]:
            self._steps = -(-self._steps // workers) * workers  # workers deliver batches in bursts
        self._seconds, self._kinds = [], []
        self._began = self._since = self._now(state)

    def _now(self, state: State) -> float:
        if state.device.torch_device.type not in ("cpu", "meta"):
            torch.accelerator.synchronize()
        return self._clock()


def prefetched_batches(state: State) -> tuple[int, int]:
    """Return the number of data workers of a run, and of the batches that they load before one is requested.

    Args:
        state: The state of the run.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from composer import Trainer
    >>> from composer.models import ComposerClassifier
    >>> data = DataLoader(TensorDataset(torch.ones(8, 2)), num_workers=2, prefetch_factor=3)
    >>> model = ComposerClassifier(torch.nn.Linear(2, 2), num_classes=2)
    >>> trainer = Trainer(model=model, train_dataloader=data, progress_bar=False)
    >>> prefetched_batches(trainer.state)
    (2, 6)
    """
    loader: Any = getattr(state.train_phase.loader, "dataloader", None)
    workers: int = getattr(loader, "num_workers", 0)
    return workers, min(_MOST_QUEUED, workers * (getattr(loader, "prefetch_factor", None) or 0))
