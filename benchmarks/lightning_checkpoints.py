"""Lightning in the comparison of checkpointing."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.io import AsyncCheckpointIO, TorchCheckpointIO
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.checkpoint_pauses import MOST_STEPS, Pause
from benchmarks.checkpoints import LIGHTNING, batches, layers, pause_jobs


class _Module(pl.LightningModule):
    def __init__(self, number: int, device: str) -> None:
        super().__init__()
        self.layers = layers(number, device)

    def training_step(self, batch: Any, number: int) -> Any:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3, foreach=True)


class _Clock(pl.Callback):
    def __init__(self, pause: Pause) -> None:
        self._pause = pause
        self.trainer: Any = None

    def on_train_batch_start(self, trainer: pl.Trainer, *_: object) -> None:
        self.trainer = trainer
        if self._pause.step_starts():
            trainer.should_stop = True

    def on_train_batch_end(self, *_: object) -> None:
        self._pause.step_ends()


class Peer:
    """A training of one step whose state is saved.

    Args:
        number: Number of layers.
        device: "cpu" or "cuda".
    """

    def __init__(self, number: int, device: str) -> None:
        warnings.simplefilter("ignore")  # it has words for few workers, short epochs and replaced files
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        self._number, self._device = number, device
        self._at_once = TorchCheckpointIO()
        self._trainer = self._fit(1)

    def jobs(self, folder: Path) -> dict[str, Callable[[], object]]:
        """What is timed, by name.

        Args:
            folder: Where files go to.
        """
        path, behind = folder / "lightning.ckpt", folder / "lightning-behind.ckpt"

        def save() -> None:
            self._trainer.strategy.checkpoint_io = self._at_once
            self._trainer.save_checkpoint(path)

        pauses = pause_jobs(lambda: self._pause(behind), "Lightning's ")
        jobs: tuple[Callable[[], object], ...] = (
            save,
            *pauses.values(),
            lambda: self._at_once.load_checkpoint(path, weights_only=True),
            lambda: self._fit(1),
            lambda: self._fit(2, ckpt_path=path, weights_only=True),
        )
        return dict(zip(LIGHTNING, jobs, strict=True))

    def _pause(self, path: Path) -> Pause:
        """Train until an asynchronous save has been started and written."""
        writer = AsyncCheckpointIO(TorchCheckpointIO())

        def save() -> Callable[[], bool]:
            trainer = clock.trainer
            trainer.strategy.checkpoint_io = writer
            trainer.save_checkpoint(path)
            assert writer._executor is not None
            return writer._executor.submit(lambda: None).done  # its only thread is done with the file

        pause = Pause(save)
        clock = _Clock(pause)
        self._fit(-1, steps=2 * MOST_STEPS, callbacks=[clock])
        return pause

    def _fit(self, max_steps: int, *, steps: int = 4, callbacks: Any = None, **arguments: Any) -> pl.Trainer:
        trainer = pl.Trainer(
            max_steps=max_steps,
            max_epochs=-1,
            callbacks=callbacks,
            accelerator="cpu" if self._device == "cpu" else "gpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        # A bare list would be taken for several sources of data.
        data = DataLoader(cast("Any", batches(steps)), batch_size=None)
        trainer.fit(_Module(self._number, self._device), data, **arguments)
        return trainer
