"""Classes and functions that configurations of the tests name by their import path."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from composer import ComposerModel
from composer.models import ComposerClassifier

HERE = "tests.hparams.configured"


class Points(Dataset):
    """Points with classes.

    Args:
        count: How many.
    """

    def __init__(self, count: int = 12) -> None:
        self.x = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.x[index], index % 3


def make_model(width: int = 8, *, bias: bool = True) -> ComposerModel:
    """A small classifier.

    Args:
        width: Of the hidden layer.
        bias: Whether it has one.
    """
    net = nn.Sequential(nn.Linear(4, width, bias=bias), nn.ReLU(), nn.Linear(width, 3))
    return ComposerClassifier(net, num_classes=3)


def make_loader(count: int = 12, batch_size: int = 4) -> DataLoader:
    data = Points(count)
    return DataLoader(TensorDataset(data.x, torch.arange(count) % 3), batch_size=batch_size)


class Stream:
    """No loader of torch's."""

    def __init__(self, count: int = 2) -> None:
        self.count = count

    def __iter__(self) -> Iterable[Any]:
        yield from [(torch.zeros(2, 4), torch.zeros(2, dtype=torch.long))] * self.count


class Takes:
    """Takes anything, and keeps it."""

    def __init__(self, first: Any = None, **more: Any) -> None:
        self.first, self.more = first, more


class Faulty(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        raise ValueError("a fault of the user's")


def config(**more: Any) -> dict[str, Any]:
    """A configuration that trains for a moment."""
    return {
        "model": {"class_path": f"{HERE}.make_model"},
        "train_dataloader": {"class_path": f"{HERE}.make_loader"},
        "optimizers": {"SGD": {"lr": 0.1}},
        "max_duration": "2ba",
        "progress_bar": False,
        **more,
    }
