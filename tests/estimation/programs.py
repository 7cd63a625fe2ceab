"""Small training programs, whose memory tests know."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
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


def samples(number: int) -> DataLoader[Any]:
    """Sequences of vectors, all in the memory of one."""
    return DataLoader(
        TensorDataset(
            torch.zeros(1, LENGTH, WIDTH).expand(number, LENGTH, WIDTH), torch.zeros(number, dtype=torch.int64)
        ),
        BATCH,
    )


def trainer(**arguments: Any) -> Trainer:
    """A trainer of six blocks on sequences of vectors."""
    torch.manual_seed(0)
    net = nn.Sequential(*[Block() for _ in range(BLOCKS)], nn.Flatten(), nn.Linear(LENGTH * WIDTH, 4))
    model = ComposerClassifier(net, num_classes=4)
    arguments.setdefault("train_dataloader", samples(64 * BATCH))
    given = {"optimizers": torch.optim.AdamW(model.parameters()), "max_duration": "10ep", "progress_bar": False}
    return Trainer(model=model, **{**given, **arguments})


def plain() -> Trainer:
    return trainer()


def tensor_parallel() -> Trainer:
    """Shards the hidden layers of each block."""
    plan = {f"module.{i}.up": ColwiseParallel() for i in range(BLOCKS)}
    plan |= {f"module.{i}.down": RowwiseParallel() for i in range(BLOCKS)}
    return trainer(parallelism_config={"tp": {"layer_plan": plan}})


def with_methods() -> Trainer:
    return trainer(algorithms=[EMA(half_life="1ba"), SAM()])


def evaluated() -> Trainer:
    """Trains in microbatches of two samples, and evaluates full batches."""
    return trainer(eval_dataloader=samples(BATCH), device_train_microbatch_size=2)


def failing() -> Trainer:
    raise ZeroDivisionError("no trainer")
