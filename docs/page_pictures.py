"""Takes the pictures of the pages of ``composer report``, ``doctor`` and ``explore`` for their guides.

    python -m docs.page_pictures report doctor explore

It trains a small network on digits, diagnoses a small program, and explores a simulated one; opens each page in the
Chromium of this computer, and is run again when a page changes.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split

from composer import Trainer
from composer.callbacks import CheckpointSaver, LRMonitor, OptimizerMonitor, SpeedMonitor
from composer.diagnosis.doctor import doctor
from composer.exploration import Goal, search
from composer.loggers import HTMLReport
from composer.models import ComposerClassifier
from composer.optim import CosineAnnealingWithWarmupScheduler
from tests.browser import open_page
from tests.exploration.simulation import Effect, Simulation, method, tuning

__all__ = ["PAGES", "PICTURES", "take_picture"]

PICTURES = Path(__file__).resolve().parent / "pictures"

_SLOW = """\
import time

import torch
from torch.utils.data import DataLoader, Dataset

from composer import Callback, Trainer
from composer.algorithms import GradientClipping
from composer.callbacks import LRMonitor
from composer.models import ComposerClassifier

torch.set_num_threads(1)


class Photos(Dataset):
    def __len__(self):
        return 1024

    def __getitem__(self, index):
        time.sleep(0.0003)
        return torch.randn(256), index % 10


class Norms(Callback):
    def after_backward(self, state, logger):
        self.norms = [float(p.grad.norm()) for p in state.model.parameters()]


def layer(width):
    return torch.nn.Sequential(torch.nn.Linear(width, 256), torch.nn.ReLU())


net = torch.nn.Sequential(layer(256), layer(256), torch.nn.Linear(256, 10))
model = ComposerClassifier(net, num_classes=10)
trainer = Trainer(
    model=model,
    train_dataloader=DataLoader(Photos(), batch_size=64),
    eval_dataloader=DataLoader(Photos(), batch_size=64),
    eval_subset_num_batches=2,
    optimizers=torch.optim.AdamW(model.parameters(), 1e-3),
    algorithms=[GradientClipping("norm", 1.0)],
    callbacks=[LRMonitor(), Norms()],
    max_duration="10ep",
)
trainer.fit()
"""


@dataclass(frozen=True)
class Page:
    """A page of which a picture is taken.

    Args:
        make: Writes the page into the current folder, and returns its path.
        height: Height of the picture in CSS pixels; its width is 1100.
    """

    make: Callable[[], Path]
    height: int


def report_page() -> Path:
    """Train on digits."""
    digits = load_digits()
    rows = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    train, test = random_split(rows, [0.8, 0.2], torch.Generator().manual_seed(0))
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = ComposerClassifier(net, num_classes=10)
    saver = CheckpointSaver("runs/{run_name}", save_interval="5ep", monitor="eval/MulticlassAccuracy", keep_best=1)
    with Trainer(
        model=model,
        train_dataloader=DataLoader(train, batch_size=32, shuffle=True),
        eval_dataloader=DataLoader(test, batch_size=256),
        optimizers=torch.optim.AdamW(model.parameters(), 3e-3),
        schedulers=CosineAnnealingWithWarmupScheduler("2ep"),
        max_duration="20ep",
        eval_interval="2ep",
        callbacks=[saver, LRMonitor(), OptimizerMonitor(), SpeedMonitor()],
        loggers=HTMLReport(),
        run_name="digits",
        seed=0,
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    return Path("digits/report.html")


def doctor_page() -> Path:
    """Diagnose a program that waits for its data."""
    Path("train.py").write_text(_SLOW, encoding="utf-8")
    page = Path("slow.html")
    doctor(["train.py"], remedies=[]).write_html(page)
    return page


def explore_page() -> Path:
    """Explore a simulated program: curves and noise are those of formulas, everything else is computed from them."""
    names = ("BlurPool", "LabelSmoothing", "EMA", "MixUp", "CutMix", "SAM", "RandAugment", "GradientClipping")
    effects = {
        "BlurPool": Effect(1.25, step=1.1),
        "LabelSmoothing": Effect(1.3),
        "MixUp": Effect(0.8, ceiling=0.01),
        "SAM": Effect(0.6, step=1.9),
        "RandAugment": Effect(0.7),
        "lr x2": Effect(1.3),
        "lr x4": Effect(0.5),
    }
    goal = Goal("eval/MulticlassAccuracy", maximize=True, target=0.95)
    refused = {"NEFTune": "the inputs are not tokens of shape (B, T)"}
    command = "composer explore train.py --target 'MulticlassAccuracy>=0.95'"
    variants = [*tuning(), *map(method, names)]
    found = search(Simulation(effects, goal=goal), goal, variants, refused=refused, command=command)
    page = Path("explore.html")
    found.write_html(page)
    return page


PAGES = {"report": Page(report_page, 1180), "doctor": Page(doctor_page, 940), "explore": Page(explore_page, 1790)}


def take_picture(name: str, folder: Path = PICTURES) -> Path:
    """Make a page, and take a picture of its top.

    Args:
        name: One of :data:`PAGES`.
        folder: Where the picture is written.

    Returns:
        The picture.
    """
    page = PAGES[name]
    picture = folder.resolve() / f"{name}_page.png"
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        made = page.make()
        try:
            with open_page(made, 1100, page.height) as shown:
                shown.screenshot(path=picture)
        except pytest.skip.Exception as missing:
            raise SystemExit(f"The picture needs Playwright and a browser: {missing}") from None
    return picture


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m docs.page_pictures", description="Take pictures of pages.")
    parser.add_argument(
        "names", nargs="*", choices=[*PAGES, []], metavar="PAGE", help=f"of {', '.join(PAGES)}; all by default"
    )
    for each in parser.parse_args().names or PAGES:
        take_picture(each)
