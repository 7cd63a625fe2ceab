"""A small training program for tests of runs."""

from __future__ import annotations

from pathlib import Path

from composer.trials import Target

__all__ = ["PROGRAM", "program"]

# Classifies noise with a shift; 16 steps an epoch.
PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from composer import Evaluator, Trainer
from composer.models import ComposerClassifier

def rows(number, seed):
    x = torch.randn(number, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
    y = (x.mean((1, 2, 3)) > 0).long()
    return TensorDataset(x, y)

def make(**arguments):
    net = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(576, 2)
    )
    model = ComposerClassifier(net, num_classes=2)
    given = {
        "model": model,
        "optimizers": torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        "train_dataloader": DataLoader(rows(128, 1), 8, shuffle=True),
        "eval_dataloader": DataLoader(rows(64, 2), 16),
        "eval_interval": "8ba",
        "max_duration": "3ep",
        "progress_bar": False,
    }
    return Trainer(**{**given, **arguments})
"""


def program(folder: Path, text: str = "make().fit()", name: str = "train.py") -> Target:
    """Write a program that ends with some lines, and return it."""
    path = folder / name
    path.write_text(f"{PROGRAM}\n{text}\n")
    return Target.from_command([str(path)])
