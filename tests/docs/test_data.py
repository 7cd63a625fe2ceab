"""The blocks of the page on data run, one after the other."""

from __future__ import annotations

import gc
import io
import tarfile

import numpy as np
import pytest
import torch
from torch import nn

from composer.models import ComposerClassifier
from tests.docs.blocks import blocks


def write_tar() -> str:
    """A small WebDataset."""
    with tarfile.open("points.tar", "w") as tar:
        for number in range(8):
            array = io.BytesIO()
            np.save(array, np.full(4, number, np.float32))
            for name, content in (("x.npy", array.getvalue()), ("y.cls", b"1")):
                info = tarfile.TarInfo(f"{number:04d}.{name}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return "points.tar"


def to_pair(samples):
    return torch.stack([torch.as_tensor(sample["x"]) for sample in samples]), torch.tensor([s["y"] for s in samples])


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # a WebDataset that is not read to its end
def test_the_blocks_run(tmp_path, monkeypatch, capsys) -> None:
    for package in ("datasets", "torchdata", "webdataset"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    known = {
        "make_model": lambda: ComposerClassifier(nn.Linear(4, 3), num_classes=3),
        "to_pair": to_pair,
        "write_tar": write_tar,
    }
    assert len(blocks("data.md")) == 8
    for block in blocks("data.md"):
        block.run(known)
        if "loader" in known:
            x, y = next(iter(known["loader"]))
            assert len(x) == len(y) > 1
    assert len(list(known["in_workers"])) == 3
    assert known["mixture"].tokens["code"] / (200 * 8 * 32) == pytest.approx(150 / 200 * 0.3 + 50 / 200 * 0.6, abs=0.01)
    known.clear()
    gc.collect()
    printed = capsys.readouterr().out
    assert "7 batches are left of 8" in printed
    assert "tokens, the last batch from" in printed
