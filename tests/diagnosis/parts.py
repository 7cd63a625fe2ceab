"""What the scripts with and without planted bottlenecks are made of."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset, TensorDataset

from composer import Trainer
from composer.models import ComposerClassifier

CLASSES = 10
BATCH = 128
WIDTH = 256


def wide(width: int = WIDTH, hidden: int = 1024) -> nn.Sequential:
    """A network of about 1 GFLOP a step of 128 samples."""
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES)
    )


def convolutions(channels: int = 24) -> nn.Sequential:
    """A small convolutional network for images of 32 x 32."""
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(channels, channels * 2, 3, padding=1),
        nn.BatchNorm2d(channels * 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels * 2, CLASSES),
    )


def rows(number: int = 4096, width: int = WIDTH) -> TensorDataset:
    """Random vectors with classes."""
    return TensorDataset(torch.randn(number, width), torch.randint(CLASSES, (number,)))


class Blocks(Dataset[tuple[Tensor, Tensor]]):
    """Batches that are ready: a data set without cost."""

    def __init__(self, *shape: int, number: int = 32, dtype: torch.dtype = torch.float32) -> None:
        self.batches = [(torch.randn(*shape, dtype=dtype), torch.randint(CLASSES, (shape[0],))) for _ in range(number)]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.batches[index]


def ready(*shape: int, **arguments: Any) -> DataLoader[Any]:
    """A loader of batches that are ready."""
    return DataLoader(Blocks(*(shape or (BATCH, WIDTH)), **arguments), batch_size=None)


def trainer(net: nn.Module | None = None, data: Any = None, **arguments: Any) -> Trainer:
    """A trainer without a bottleneck, unless the arguments have one."""
    model = arguments.pop("model", None) or ComposerClassifier(net or wide(), num_classes=CLASSES)
    given = {
        "train_dataloader": ready() if data is None else data,
        "optimizers": AdamW(model.parameters(), 1e-4, fused=True),
        "max_duration": "2ep",
        "progress_bar": False,
        "seed": 1,
        **arguments,
    }
    return Trainer(model=model, **given)
