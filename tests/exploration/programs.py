"""Small training programs for tests of runs."""

from __future__ import annotations

from pathlib import Path

from composer.trials import Target

__all__ = ["LEARNER", "PROGRAM", "learner", "program"]

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


# Tells on which side of a plane points are; 64 steps an epoch.
LEARNER = """
import time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from composer import Algorithm, Trainer
from composer.models import ComposerClassifier

class Slow(nn.Linear):
    def forward(self, x):
        # A step of some microseconds would take as long as the noise of the host lets it, in CPU time too.
        end = time.process_time() + 0.003
        while time.process_time() < end:
            pass
        return super().forward(x)

class Placebo(Algorithm):
    pass

class Faster(Algorithm):
    def fit_start(self, state, logger):
        for group in state.optimizers[0].param_groups:
            group["lr"] *= 5  # which helps from the first step on, unlike momentum

class Crashing(Algorithm):
    def batch_end(self, state, logger):
        if state.timestamp.batch == 4:
            1 / 0

def rows(number, seed):
    x = torch.randn(number, 16, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(x, (x[:, ::2].sum(1) > 0).long())

def make(**arguments):
    model = ComposerClassifier(Slow(16, 2), num_classes=2)
    given = {
        "model": model,
        "optimizers": torch.optim.SGD(model.parameters(), lr=0.02),
        "train_dataloader": DataLoader(rows(1024, 1), 16, shuffle=True),
        "eval_dataloader": DataLoader(rows(512, 2), 128),
        "eval_interval": "8ba",
        "max_duration": "3ep",
        "progress_bar": False,
    }
    return Trainer(**{**given, **arguments})
"""


def learner(folder: Path, text: str = "make().fit()") -> Target:
    """Write the program that learns, which ends with some lines, and return it."""
    path = folder / "train.py"
    source = f"{LEARNER}\n{text}\n"
    if not path.exists() or path.read_text() != source:
        path.write_text(source)
    return Target.from_command([str(path)])
