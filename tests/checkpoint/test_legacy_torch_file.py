"""Files of torch before 1.6: intact ones are accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from composer.checkpoint import file_format
from composer.checkpoint.legacy_torch_file import check_legacy


def test_current_torch_in_the_legacy_format(tmp_path) -> None:
    whole = torch.arange(10.0)
    content = {"a": whole, "b": whole[2:4], "empty": torch.empty(0), "half": torch.ones(3, dtype=torch.bfloat16)}
    torch.save(content, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    check_legacy(tmp_path / "a.pt")
    assert file_format.read(tmp_path / "a.pt")["b"].tolist() == [2.0, 3.0]


def test_files_written_by_Python_2() -> None:
    torchmetrics = pytest.importorskip("torchmetrics")
    paths = sorted(Path(torchmetrics.__file__).parent.glob("functional/image/lpips_models/*.pth"))
    for path in paths:
        check_legacy(path)
        assert file_format.read(path)
    assert paths
