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

from benchmarks.checkpoints import LIGHTNING, batches, layers


class _Module(pl.LightningModule):
    def __init__(self, number: int, device: str) -> None:
        super().__init__()
        self.layers = layers(number, device)

    def training_step(self, batch: Any, number: int) -> Any:
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3, foreach=True)


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
        self._behind, self._at_once = AsyncCheckpointIO(TorchCheckpointIO()), TorchCheckpointIO()
        self._trainer = self._fit(1)

    def jobs(self, folder: Path) -> dict[str, Callable[[], object]]:
        """What is timed, by name.

        Args:
            folder: Where files go to.
        """
        path = folder / "lightning.ckpt"

        def save(by: Any, to: Path) -> None:
            self._trainer.strategy.checkpoint_io = by
            self._trainer.save_checkpoint(to)

        return dict(
            zip(
                LIGHTNING,
                (
                    lambda: save(self._at_once, path),
                    lambda: save(self._behind, folder / "lightning-behind.ckpt"),
                    lambda: self._at_once.load_checkpoint(path, weights_only=True),
                    lambda: self._fit(1),
                    lambda: self._fit(2, ckpt_path=path, weights_only=True),
                ),
                strict=True,
            )
        )

    def wait(self) -> None:
        """Wait for what is written behind the training; the thread stays for the next."""
        executor = self._behind._executor
        if executor is not None:
            executor.submit(lambda: None).result()

    def _fit(self, steps: int, **arguments: Any) -> pl.Trainer:
        trainer = pl.Trainer(
            max_steps=steps,
            accelerator="cpu" if self._device == "cpu" else "gpu",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        # A bare list would be taken for several sources of data.
        data = DataLoader(cast("Any", batches()), batch_size=None)
        trainer.fit(_Module(self._number, self._device), data, **arguments)
        return trainer
