"""Models, data and trainers of the held-out programs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer
from composer.models import ComposerClassifier, ComposerModel


class Tagger(nn.Module):
    """An LSTM whose last state is classified."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(32, width, num_layers=2, batch_first=True), nn.Linear(width, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.lstm(inputs)[0][:, -1])


def mixer(size: int = 32, patch: int = 4, width: int = 96) -> nn.Module:
    """A vision transformer of patches."""
    layer = nn.TransformerEncoderLayer(width, 4, 3 * width, dropout=0.0, batch_first=True, norm_first=True)
    return nn.Sequential(
        nn.Conv2d(3, width, patch, patch),
        nn.Flatten(2),
        _Transposed(),
        nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
        Mean(),
        nn.Linear(width, 5),
    )


class _Transposed(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.mT


class Mean(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.mean(1)


def residual(width: int = 32) -> nn.Module:
    """Convolutions with group norm."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.GroupNorm(4, width),
        nn.SiLU(),
        nn.Conv2d(width, width, 3, padding=1, stride=2),
        nn.GroupNorm(4, width),
        nn.SiLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(2 * width, 5),
    )


def dense(width: int = 128) -> nn.Module:
    """A small network of vectors."""
    return nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 5))


def memory(*shape: int, batch: int = 64, dtype: torch.dtype = torch.float32, **arguments: Any) -> DataLoader[Any]:
    """A loader of tensors in memory."""
    data = TensorDataset(torch.randn(1024, *shape, dtype=dtype), torch.randint(5, (1024,)))
    return DataLoader(data, batch, shuffle=True, drop_last=True, **arguments)


def train(net: nn.Module, data: Any, **arguments: Any) -> Trainer:
    """A trainer as a user would write it."""
    model = net if isinstance(net, ComposerModel) else ComposerClassifier(net, num_classes=5)
    given = {"optimizers": AdamW(model.parameters(), 3e-4, fused=True), "max_duration": "3ep", "progress_bar": False}
    return Trainer(model=model, train_dataloader=data, **(given | arguments))
