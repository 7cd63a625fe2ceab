"""Takes the picture of the page of ``composer report`` for its guide.

    python -m docs.report_page

It trains a small network on digits, opens the page of the run in the Chromium of this computer, and is run again when
the page changes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split

from composer import Trainer
from composer.callbacks import CheckpointSaver, LRMonitor, OptimizerMonitor, SpeedMonitor
from composer.loggers import HTMLReport
from composer.models import ComposerClassifier
from composer.optim import CosineAnnealingWithWarmupScheduler
from tests.browser import open_page

__all__ = ["PICTURE", "take_picture"]

PICTURE = Path(__file__).resolve().parent / "pictures" / "report_page.png"


def take_picture(path: Path = PICTURE) -> None:
    """Train, and take a picture of the top of the page."""
    digits = load_digits()
    rows = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    train, test = random_split(rows, [0.8, 0.2], torch.Generator().manual_seed(0))
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = ComposerClassifier(net, num_classes=10)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
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
        try:
            with open_page(Path("digits/report.html"), 1100, 1180) as page:
                page.screenshot(path=path)
        except pytest.skip.Exception as missing:
            raise SystemExit(f"The picture needs Playwright and a browser: {missing}") from None
        finally:
            os.chdir(path.parent)


if __name__ == "__main__":
    take_picture()
