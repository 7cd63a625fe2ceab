"""Small training programs, whose memory tests know."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer
from composer.algorithms import EMA, SAM
from composer.models import ComposerClassifier

WIDTH, LENGTH, BLOCKS, BATCH = 256, 256, 6, 32


class Block(nn.Module):
    """A residual block with a wide hidden layer, so that activations need more than weights."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def trainer(**arguments: Any) -> Trainer:
    """A trainer of six blocks on sequences of vectors."""
    torch.manual_seed(0)
    net = nn.Sequential(*[Block() for _ in range(BLOCKS)], nn.Flatten(), nn.Linear(LENGTH * WIDTH, 4))
    model = ComposerClassifier(net, num_classes=4)
    data = DataLoader(TensorDataset(torch.zeros(2 * BATCH, LENGTH, WIDTH), torch.randint(4, (2 * BATCH,))), BATCH)
    given = {"optimizers": torch.optim.AdamW(model.parameters()), "max_duration": "10ep", "progress_bar": False}
    return Trainer(model=model, train_dataloader=data, **{**given, **arguments})


def plain() -> Trainer:
    return trainer()


def with_methods() -> Trainer:
    return trainer(algorithms=[EMA(half_life="1ba"), SAM()])


def evaluated() -> Trainer:
    """Trains in microbatches of two samples, and evaluates full batches."""
    data = DataLoader(TensorDataset(torch.zeros(BATCH, LENGTH, WIDTH), torch.randint(4, (BATCH,))), BATCH)
    return trainer(eval_dataloader=data, device_train_microbatch_size=2)


def failing() -> Trainer:
    raise ZeroDivisionError("no trainer")
