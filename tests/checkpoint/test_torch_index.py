"""Pickled indexes: everything that torch.save writes, and nothing that is missing in the file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from composer.checkpoint import file_format
from composer.checkpoint.file_format import UnsafeCheckpointError
from tests.checkpoint.content import same

VALUES: list[Any] = [
    np.zeros((2, 0), "f4"),
    np.asfortranarray(np.ones((2, 3))),
    np.arange(3, dtype="u1"),
    bytearray(b"abc"),
    b"abc",
    b"",
    {1, 2},
    1 + 2j,
    torch.Size([2, 3]),
    torch.float32,
    torch.ones(1, dtype=torch.uint16),
    torch.ones(2, dtype=torch.complex64),
    torch.ones(2, dtype=torch.float8_e4m3fn).view(torch.uint8),
    torch.ones(3, 4).t(),
    torch.ones(10)[2:5],
    torch.ones(3).expand(4, 3),
    torch.empty(0, 5),
    torch.tensor(3.0),
    torch.nn.Parameter(torch.ones(2)),
    10**40,
    "ü",
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__} {value!r}"[:40].replace("\n", " "))
def test_files_written_by_torch_are_read(value, tmp_path) -> None:
    file_format.write({"a": value, "again": [value]}, tmp_path / "a.pt")
    read = file_format.read(tmp_path / "a.pt")
    assert same(read["a"], value)
    assert same(read["again"], [value])


def test_sparse_and_quantized_tensors(tmp_path) -> None:
    sparse = torch.eye(3).to_sparse()
    quantized = torch.ones(3, dtype=torch.uint8)
    file_format.write({"a": sparse, "b": quantized}, tmp_path / "a.pt")
    read = file_format.read(tmp_path / "a.pt")
    assert torch.equal(read["a"].to_dense(), torch.eye(3))
    assert torch.equal(read["b"], quantized)


@pytest.mark.parametrize("value", [np.array(["a"]), np.array([None])])
def test_arrays_of_objects(value, tmp_path) -> None:
    file_format.write({"a": value}, tmp_path / "a.pt")
    with pytest.raises(UnsafeCheckpointError, match="which is not a numeric dtype"):
        file_format.read(tmp_path / "a.pt")


def test_a_parameter_with_attributes(tmp_path) -> None:
    parameter: Any = torch.nn.Parameter(torch.ones(2))
    parameter.tag = 3
    file_format.write({"a": parameter}, tmp_path / "a.pt")
    assert file_format.read(tmp_path / "a.pt")["a"].tag == 3


def test_state_dict_with_metadata(tmp_path) -> None:
    torch.save(torch.nn.BatchNorm1d(2).state_dict(), tmp_path / "a.pt")
    assert file_format.read(tmp_path / "a.pt")["weight"].tolist() == [1.0, 1.0]


def test_checksums_are_always_written(tmp_path) -> None:
    settings: Any = torch.serialization
    if not hasattr(settings, "set_crc32_options"):
        pytest.skip("torch of this release always writes them")
    settings.set_crc32_options(False)
    try:
        file_format.write({"a": torch.ones(2)}, tmp_path / "a.pt")
        torch.save({"a": torch.ones(2)}, tmp_path / "without.pt")
        assert not settings.get_crc32_options()
    finally:
        settings.set_crc32_options(True)
    assert file_format.read(tmp_path / "a.pt")["a"].tolist() == [1.0, 1.0]
    with pytest.raises(file_format.DamagedCheckpointError, match="written without checksums"):
        file_format.read(tmp_path / "without.pt")
