"""The blocks of the page on several processes run, in one."""

from __future__ import annotations

import torch
import torch.distributed as torch_dist
from torch import nn

from composer.models import ComposerClassifier
from tests.docs.blocks import blocks
from tests.docs.test_checkpoints import make_dataloader


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.inner(x).relu()


def make_model() -> ComposerClassifier:
    return ComposerClassifier(nn.Sequential(Block(), Block(), nn.Linear(4, 3)), num_classes=3)


def test_the_blocks_run(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    known = {
        "make_model": make_model,
        "make_dataloader": make_dataloader,
        "make_optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    }
    sharded, low_communication = blocks("distributed.md")
    low_communication.run(known)
    assert known["trainer"].state.timestamp.batch == 12
    try:
        sharded.run(known)
    finally:
        if torch_dist.is_initialized():
            torch_dist.destroy_process_group()
    assert known["trainer"].state.timestamp.batch == 12
    assert (tmp_path / "night" / "checkpoints" / "ep2-ba12").is_dir()
