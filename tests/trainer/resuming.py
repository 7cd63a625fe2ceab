"""A small run that uses random numbers everywhere, for tests of resuming."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from composer import Trainer
from composer.models import ComposerClassifier
from composer.optim import CosineAnnealingWithWarmupScheduler

SAMPLES, BATCH, CLASSES = 22, 4, 3  # six batches, the last of two
STEPS = 12


class Augmented(Dataset[Any]):
    """Draws numbers from all three generators for each sample."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(SAMPLES, 4, generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index):
        import random

        noise = torch.randn(4) * 0.1 + random.random() * 0.1 + float(np.random.rand()) * 0.1
        return self.x[index] + noise, index % CLASSES


def shuffled(**arguments: Any) -> DataLoader[Any]:
    """The data in another order in each epoch."""
    return DataLoader(Augmented(), BATCH, shuffle=True, **arguments)


def build(loader: Any, **arguments: Any) -> Trainer:
    """A run with dropout, batch normalization and state in the optimizer."""
    with torch.random.fork_rng():
        torch.manual_seed(int(os.environ.get("RESUME_SEED", "0")))
        net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, CLASSES))
    model = ComposerClassifier(net, num_classes=CLASSES)
    arguments.setdefault("optimizers", torch.optim.AdamW(model.parameters(), lr=0.01))
    arguments.setdefault("max_duration", f"{STEPS}ba")
    arguments.setdefault("schedulers", CosineAnnealingWithWarmupScheduler(t_warmup="3ba"))
    arguments.setdefault("run_name", "night")
    return Trainer(model=model, train_dataloader=loader, seed=7, progress_bar=False, **arguments)
