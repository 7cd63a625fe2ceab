"""Takes the picture of the page of ``composer doctor`` for its guide.

    python -m docs.doctor_page

It diagnoses a small program, opens the page in the Chromium of this computer, and is run again when the page changes.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from composer.diagnosis.doctor import doctor
from tests.browser import open_page

__all__ = ["PICTURE", "take_picture"]

PICTURE = Path(__file__).resolve().parent / "pictures" / "doctor_page.png"

_PROGRAM = """\
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


def take_picture(path: Path = PICTURE) -> None:
    """Diagnose the program, and take a picture of the top of the page."""
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("train.py").write_text(_PROGRAM, encoding="utf-8")
        doctor(["train.py"], remedies=[]).write_html("slow.html")
        try:
            with open_page(Path("slow.html"), 1100, 940) as page:
                page.screenshot(path=path)
        except pytest.skip.Exception as missing:
            raise SystemExit(f"The picture needs Playwright and a browser: {missing}") from None
        finally:
            os.chdir(path.parent)


if __name__ == "__main__":
    take_picture()
