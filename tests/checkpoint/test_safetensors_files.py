"""Weights as safetensors."""

from __future__ import annotations

import resource
import sys

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer._lazy import MissingConditionalImportError
from composer.checkpoint.file_format import DamagedCheckpointError
from composer.checkpoint.safetensors_files import read_safetensors, write_safetensors
from tests.checkpoint.content import same
from tests.checkpoint.disks import full

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
tensors = st.builds(
    lambda shape, dtype: (torch.rand(shape) * 9).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
)


@given(st.dictionaries(st.text("abc.", min_size=1), tensors, max_size=4))
def test_round_trip(tmp_path_factory, weights) -> None:
    path = tmp_path_factory.mktemp("weights") / "new" / "a.safetensors"
    write_safetensors(weights, path)
    assert same(read_safetensors(path), weights)
    assert [one.name for one in path.parent.iterdir()] == ["a.safetensors"]


def test_tied_weights_are_stored_once_and_retied(tmp_path) -> None:
    weight = torch.randn(100, 10)
    write_safetensors({"in": weight, "between": torch.ones(1), "out": weight}, tmp_path / "a.safetensors")
    assert (tmp_path / "a.safetensors").stat().st_size < 1.2 * 4000
    read = read_safetensors(tmp_path / "a.safetensors")
    assert read["out"] is read["in"]
    assert torch.equal(read["in"], weight)
    # Other programs find it under the first name.
    assert sorted(safetensors.torch.load_file(tmp_path / "a.safetensors")) == ["between", "in"]


def test_otherwise_overlapping_tensors(tmp_path) -> None:
    whole = torch.arange(6.0).reshape(2, 3)
    weights = {"whole": whole, "flat": whole.view(-1), "row": whole[0], "turned": whole.t(), "empty": whole[:0]}
    write_safetensors(weights, tmp_path / "a.safetensors")
    assert same(read_safetensors(tmp_path / "a.safetensors"), weights)


def test_files_written_by_other_programs(tmp_path) -> None:
    weights = {"a": torch.ones(2)}
    safetensors.torch.save_file(weights, tmp_path / "a.safetensors")
    assert same(read_safetensors(tmp_path / "a.safetensors"), weights)


def test_parameters(tmp_path) -> None:
    write_safetensors({"a": torch.nn.Parameter(torch.ones(2))}, tmp_path / "a.safetensors")
    assert not read_safetensors(tmp_path / "a.safetensors")["a"].requires_grad


def test_non_tensors(tmp_path) -> None:
    with pytest.raises(TypeError, match=r"'extra' is dict. .* ignore_keys=\['state/model/extra'\]"):
        write_safetensors({"extra": {}}, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


@given(st.floats(0, 0.999))
def test_truncated_files_are_rejected(tmp_path_factory, fraction) -> None:
    path = tmp_path_factory.mktemp("cut") / "a.safetensors"
    write_safetensors({"a": torch.arange(9.0)}, path)
    path.write_bytes(path.read_bytes()[: int(fraction * path.stat().st_size)])
    with pytest.raises(DamagedCheckpointError, match="cannot be read as a safetensors file"):
        read_safetensors(path)


def test_missing_file(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        read_safetensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("step", ["fsync", "rename"])
def test_full_disk_keeps_the_previous_file(step, tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.safetensors"
    write_safetensors({"a": torch.ones(1)}, path)
    with full(step, monkeypatch), pytest.raises(OSError, match="No space left"):
        write_safetensors({"a": torch.zeros(1)}, path)
    assert read_safetensors(path)["a"].item() == 1
    assert [one.name for one in tmp_path.iterdir()] == ["a.safetensors"]


def test_os_errors_are_raised(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(OSError, match=r"could not be written.*too large"):
            write_safetensors({"a": torch.zeros(10_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_error_names_the_missing_package(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(MissingConditionalImportError, match=r"pip install 'composer-torch\[safetensors\]'"):
        write_safetensors({}, tmp_path / "a.safetensors")
