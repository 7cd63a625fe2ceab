"""The blocks of the page on checkpoints run, one after the other."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer.models import ComposerClassifier
from tests.docs.blocks import blocks


def make_dataloader() -> DataLoader:
    generator = torch.Generator().manual_seed(0)
    return DataLoader(
        TensorDataset(torch.randn(24, 4, generator=generator), torch.arange(24) % 3), batch_size=4, shuffle=True
    )


def test_the_blocks_run(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    known = {
        "make_model": lambda: ComposerClassifier(nn.Linear(4, 3), num_classes=3),
        "make_dataloader": make_dataloader,
        "make_optimizer": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
    }
    assert len(blocks("checkpoints.md")) == 4
    for block in blocks("checkpoints.md"):
        block.run(known)
    assert "['module.bias', 'module.weight']" in capsys.readouterr().out
    assert int(known["trainer"].state.timestamp.batch) == 0
    assert (tmp_path / "night" / "checkpoints" / "latest-rank0.pt").resolve().name == "ep4-ba24-rank0.pt"
