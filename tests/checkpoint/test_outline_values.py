"""Content that is built from the parsed index equals what torch.load returns; other forms are left to torch.load."""

from __future__ import annotations

import collections
import gc
import io
import random
import zipfile
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer import State
from composer.checkpoint import file_format
from composer.checkpoint.file_format import UnsafeCheckpointError
from composer.checkpoint.outline_values import OtherFormError, has_plain_calls, value_of
from composer.checkpoint.pickle_outline import collector_paused, outline
from composer.checkpoint.save import save_checkpoint
from tests.checkpoint.content import same
from tests.checkpoint.test_torch_index import VALUES
from tests.common import Regression

dtypes = st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.half, torch.int64, torch.bool])
tensors = st.builds(
    lambda shape, dtype, transpose: (
        (torch.randn(shape) * 9).to(dtype).mT if transpose else torch.randn(shape).to(dtype)
    ),
    st.lists(st.integers(0, 4), min_size=2, max_size=3).map(tuple),
    dtypes,
    st.booleans(),
)
arrays = st.builds(
    lambda size, code: np.arange(size).astype(code), st.integers(0, 5), st.sampled_from(["f4", "i8", "?"])
)
leaves = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text() | tensors | arrays
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.tuples(st.integers(), st.text()), inner, max_size=3)
        | st.dictionaries(st.text(), inner, max_size=3).map(collections.OrderedDict)
    ),
    max_leaves=12,
)


def refuse(*arguments: Any, **options: Any) -> Any:
    raise AssertionError("torch.load was called")


@given(values)
def test_same_as_torch_load(value) -> None:
    file = io.BytesIO()
    torch.save({"a": value, "shared": [value, value]}, file)
    with zipfile.ZipFile(file) as archive:
        described = outline(archive.read("archive/data.pkl"))
        records = {name.partition("data/")[2]: archive.read(name) for name in archive.namelist() if "/data/" in name}
    assert has_plain_calls(described)
    storages = {key: torch.UntypedStorage(list(data)) for key, data in records.items() if key.isdigit()}
    built = value_of(described, storages)
    file.seek(0)
    with torch.serialization.safe_globals(file_format.allowed_globals()):
        assert same(built, torch.load(file))
    one, other = built["shared"]
    assert one is other or same(one, other)
    if isinstance(value, (list, dict, torch.Tensor, np.ndarray)):
        assert one is other is built["a"]


def test_checkpoint_of_a_run_needs_no_second_parse(tmp_path, monkeypatch) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    file_format.write(
        {
            "state": {
                "model": model.state_dict(),
                "when": collections.OrderedDict(a=torch.ones(2, requires_grad=True)),
            },
            "rng": [{"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}],
        },
        tmp_path / "a.pt",
    )
    expected = torch.load(tmp_path / "a.pt", weights_only=False)
    monkeypatch.setattr(torch, "load", refuse)
    read = file_format.read(tmp_path / "a.pt")
    assert same(read, expected)
    assert type(read["state"]["model"]) is collections.OrderedDict
    assert read["state"]["model"]._metadata == expected["state"]["model"]._metadata
    assert read["state"]["when"]["a"].requires_grad
    read["state"]["model"]["0.weight"].resize_(10)  # the memory is its own


def test_saved_by_a_trainer(tmp_path, monkeypatch) -> None:
    state = State(model=Regression())
    state.optimizers = [torch.optim.AdamW(state.model.parameters())]
    path = save_checkpoint(state, str(tmp_path / "a.pt"))
    monkeypatch.setattr(torch, "load", refuse)
    assert path is not None
    assert file_format.read(path)["state"]["timestamp"]["Timestamp"]["batch"] == 0


@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__} {value!r}"[:40].replace("\n", " "))
def test_other_forms_are_left_to_torch(value, tmp_path) -> None:
    """Whichever reads it, the result is what was saved; damage beside it is detected in both cases."""
    weight = torch.arange(64.0)
    file_format.write({"a": value, "weight": weight}, tmp_path / "a.pt")
    assert same(file_format.read(tmp_path / "a.pt")["a"], value)
    whole = (tmp_path / "a.pt").read_bytes()
    (tmp_path / "a.pt").write_bytes(whole.replace(weight.numpy().tobytes(), (weight + 1).numpy().tobytes()))
    with pytest.raises(file_format.DamagedCheckpointError, match="'weight'"):
        file_format.read(tmp_path / "a.pt")


@pytest.mark.parametrize(
    "index",
    [
        b"\x80\x02ctorch\nFloatStorage\n.",
        b"\x80\x02}ctorch\nFloatStorage\nK\x01s.",
        b"\x80\x02ccollections\nOrderedDict\n]\x85R.",
        b"\x80\x02cos\nsystem\n)R.",
        b"\x80\x02}(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x01tQK\x01s.",
        b"\x80\x02X\x07\x00\x00\x00storageQ.",
    ],
)
def test_nothing_else_is_built(index) -> None:
    with pytest.raises(OtherFormError):
        value_of(outline(index), {})


def test_files_of_other_byte_order_are_left_to_torch(tmp_path, monkeypatch) -> None:
    file_format.write({"a": torch.ones(2)}, tmp_path / "a.pt")
    monkeypatch.setattr(file_format, "_BYTE_ORDER", 0)
    assert file_format.read(tmp_path / "a.pt")["a"].tolist() == [1.0, 1.0]
    monkeypatch.setattr(torch, "load", refuse)
    with pytest.raises((AssertionError, file_format.DamagedCheckpointError), match=r"torch\.load was called"):
        file_format.read(tmp_path / "a.pt")


def test_an_unknown_class_is_left_to_torch(tmp_path) -> None:
    torch.save({"a": torch.ones(2), "b": torch.nn.Linear(1, 1)}, tmp_path / "a.pt")
    with pytest.raises(UnsafeCheckpointError):
        file_format.read(tmp_path / "a.pt")


def test_the_collector_runs_again_after_an_error(tmp_path) -> None:
    (tmp_path / "a.pt").write_bytes(b"PK\x03\x04")
    with pytest.raises(file_format.DamagedCheckpointError):
        file_format.read(tmp_path / "a.pt")
    assert gc.isenabled()
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
