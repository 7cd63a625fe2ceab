"""The blocks of the page on exporting run, one after the other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from composer.models import ComposerClassifier

PAGE = Path(__file__).resolve().parents[2] / "docs" / "export.md"


def make_model() -> ComposerClassifier:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, 2),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32, 4),
    )
    return ComposerClassifier(net, num_classes=4)


def make_dataloader() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(4, 3, 16, 16, generator=generator), torch.arange(4)) for _ in range(3)]


def test_the_blocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for package in ("onnx", "onnxscript", "onnxruntime", "torchao"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    known = {"make_model": make_model, "make_dataloader": make_dataloader, "Path": Path}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)
    for number, block in enumerate(blocks):
        exec(compile(block, f"{PAGE.name}, block {number + 1}", "exec"), known)
    assert len(blocks) == 5
    shapes = [str(torch.Size([7, 4])), "(5, 4)"]
    *printed, difference = capsys.readouterr().out.splitlines()
    assert printed == shapes
    assert float(difference) <= 0.02
    exported = torch.export.load(tmp_path / "exported" / "from_checkpoint.pt2").module()
    batch = make_dataloader()[0]
    torch.testing.assert_close(exported(batch), known["trainer"].state.model.eval()(batch))
    assert (tmp_path / "exported" / "faster.pt2").exists()
