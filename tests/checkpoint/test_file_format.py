"""Checkpoint files are written atomically and read without running code."""

from __future__ import annotations

import datetime
import errno
import os
import pickle
import random
import resource
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.checkpoint import file_format
from composer.checkpoint.file_format import DamagedCheckpointError, UnsafeCheckpointError
from tests.checkpoint.content import same
from tests.checkpoint.disks import STEPS, full

CONTENT: dict[str, Any] = {
    "state": {
        "model": {"layer.weight": torch.arange(12.0).reshape(3, 4), "layer.bias": torch.ones(3)},
        "optimizers": [("SGD", {"state": {"layer.weight": {"momentum_buffer": torch.full((3, 4), 2.0)}}})],
        "timestamp": {"batch": 3, "clock": datetime.timedelta(seconds=1.5)},
        "nothing": None,
    },
    "rng": [{"python": random.Random(1).getstate(), "numpy": np.random.RandomState(1).get_state()}],
}


def written(folder: Path, content: Any = None, **options: Any) -> Path:
    path = folder / "a.pt"
    torch.save(CONTENT if content is None else content, path, **options)
    return path


def test_round_trip(tmp_path) -> None:
    file_format.write(CONTENT, tmp_path / "new" / "a.pt")
    read = file_format.read(tmp_path / "new" / "a.pt")
    assert same(read, CONTENT)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.pt"]


@pytest.mark.parametrize("value", [np.float64(0.5), np.float32(0.5), np.arange(3), np.array([True]), np.int64(3)])
def test_numpy_values(value, tmp_path) -> None:
    file_format.write({"a": value}, tmp_path / "a.pt")
    read = file_format.read(tmp_path / "a.pt")["a"]
    assert np.array_equal(read, value)
    assert read.dtype == value.dtype


def test_tied_weights_stay_tied(tmp_path) -> None:
    weight = torch.ones(3)
    file_format.write({"a": weight, "b": weight}, tmp_path / "a.pt")
    read = file_format.read(tmp_path / "a.pt")
    assert read["a"].data_ptr() == read["b"].data_ptr()


def test_tensor_devices(tmp_path) -> None:
    path = written(tmp_path)
    assert file_format.read(path, "meta")["state"]["model"]["layer.bias"].device.type == "meta"
    with pytest.raises(RuntimeError, match="no_such_device") as error:
        file_format.read(path, "no_such_device")
    assert not isinstance(error.value, DamagedCheckpointError)


# ------------------------------------------------------------------------------------------------------- SafeLoad


class Malicious:
    """Makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.path}",)


FORMS = {
    "today's": {},
    "the old one": {"_use_new_zipfile_serialization": False},
    "protocol 4": {"pickle_protocol": 4},
}


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("form", FORMS)
def test_SafeLoad_runs_nothing(form, tmp_path) -> None:
    trace = tmp_path / "trace"
    path = written(tmp_path, {"state": {"model": {"a": torch.ones(1)}}, "x": Malicious(trace)}, **FORMS[form])
    with pytest.raises(UnsafeCheckpointError, match=r"could run code: [Uu]nsupported"):
        file_format.read(path)
    assert not trace.exists()
    with pytest.MonkeyPatch.context() as patch:  # the file does what it is said to
        patch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        torch.load(path, weights_only=False)
    assert trace.exists()


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_SafeLoad_of_a_bare_pickle(protocol, tmp_path) -> None:
    trace = tmp_path / "trace"
    path = tmp_path / "a.pt"
    path.write_bytes(pickle.dumps(Malicious(trace), protocol=protocol))
    with pytest.raises((UnsafeCheckpointError, DamagedCheckpointError)):
        file_format.read(path)
    assert not trace.exists()


def test_SafeLoad_while_damage_is_described(tmp_path) -> None:
    """The index is looked at to name the damaged part; that must not run it either."""
    trace = tmp_path / "trace"
    path = written(tmp_path, {"model": {"weight": torch.arange(64.0)}, "x": Malicious(trace)})
    change(path, torch.arange(64.0).numpy().tobytes())
    with pytest.raises(DamagedCheckpointError, match="'model/weight'"):
        file_format.read(path)
    assert not trace.exists()


def test_error_gives_no_unsafe_advice(tmp_path) -> None:
    class Own:
        pass

    Own.__qualname__ = "Own"
    globals()["Own"] = Own
    path = written(tmp_path, {"x": Own()})
    with pytest.raises(UnsafeCheckpointError) as error:
        file_format.read(path)
    assert "Own" in str(error.value)
    assert "weights_only" not in str(error.value)
    assert "add_safe_globals" not in str(error.value)


# ------------------------------------------------------------------------------------------------------- damage


def change(path: Path, content: bytes) -> None:
    """Flip a bit in the middle of some content of a file."""
    whole = bytearray(path.read_bytes())
    place = bytes(whole).index(content) + len(content) // 2
    whole[place] ^= 1
    path.write_bytes(bytes(whole))


@pytest.mark.parametrize(
    ("tensor", "name"),
    [
        (CONTENT["state"]["model"]["layer.weight"], "state/model/layer.weight"),
        (
            CONTENT["state"]["optimizers"][0][1]["state"]["layer.weight"]["momentum_buffer"],
            "state/optimizers/0/1/state",
        ),
    ],
)
def test_corrupted_entry_is_named(tensor, name, tmp_path) -> None:
    path = written(tmp_path)
    change(path, tensor.numpy().tobytes())
    with pytest.raises(DamagedCheckpointError, match=f"the checksums of '{name}"):
        file_format.read(path)


def test_corrupted_index(tmp_path) -> None:
    path = written(tmp_path)
    with zipfile.ZipFile(path) as file:
        index = file.read("a/data.pkl")
    change(path, index)
    with pytest.raises(DamagedCheckpointError, match="its index"):
        file_format.read(path)


@given(st.floats(0, 0.999))
def test_truncated_files_are_rejected(tmp_path_factory, fraction) -> None:
    folder = tmp_path_factory.mktemp("cut")
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        path = written(folder, **options)
        path.write_bytes(path.read_bytes()[: int(fraction * path.stat().st_size)])
        with pytest.raises((DamagedCheckpointError, UnsafeCheckpointError)):
            file_format.read(path)


@given(st.integers(0, 10**6), st.integers(0, 7))
def test_every_flipped_bit_is_detected_or_harmless(tmp_path_factory, place, bit) -> None:
    path = written(tmp_path_factory.mktemp("flip"))
    whole = bytearray(path.read_bytes())
    whole[place % len(whole)] ^= 1 << bit
    path.write_bytes(bytes(whole))
    try:
        read = file_format.read(path)
    except (DamagedCheckpointError, UnsafeCheckpointError):
        return
    assert same(read, CONTENT)


def test_other_formats_are_detected(tmp_path) -> None:
    other = tmp_path / "other.zip"
    with zipfile.ZipFile(other, "w") as file:
        file.writestr("hello.txt", "hello")
    with pytest.raises(
        DamagedCheckpointError, match=r"in its structure: its end .* differs from what torch\.save writes"
    ):
        file_format.read(other)
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        file_format.read(tmp_path / "none.pt")
    with pytest.raises(DamagedCheckpointError, match="holds a Tensor, but must hold a dict"):
        file_format.read(written(tmp_path, torch.ones(1)))
    (tmp_path / "text.pt").write_text("hello")
    with pytest.raises(DamagedCheckpointError, match="another type of file"):
        file_format.read(tmp_path / "text.pt")


# ------------------------------------------------------------------------------------------------------- full disks


@pytest.mark.parametrize("step", STEPS)
def test_full_disk_keeps_the_previous_file(step, tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.pt"
    file_format.write({"number": 1}, path)
    with full(step, monkeypatch), pytest.raises(OSError, match="No space left") as error:
        file_format.write({"number": 2}, path)
    assert error.value.errno == errno.ENOSPC
    assert file_format.read(path) == {"number": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["a.pt"]


@pytest.mark.parametrize("limit", [1, 1000, 100_000])
def test_os_errors_are_raised(limit, tmp_path) -> None:
    """A limit of the size of files, which the system itself enforces, at any place of the file."""
    path = tmp_path / "a.pt"
    file_format.write({"number": 1}, path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        with pytest.raises(OSError) as error:
            file_format.write({"a": torch.zeros(100_000)}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.errno == errno.EFBIG
    assert file_format.read(path) == {"number": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["a.pt"]


def test_unwritable_folder(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        file_format.write({}, tmp_path / "file" / "a.pt")
    if os.geteuid() == 0:
        return  # who may do everything
    (tmp_path / "locked").mkdir(mode=0o500)
    with pytest.raises(PermissionError):
        file_format.write({}, tmp_path / "locked" / "a.pt")


def test_unserializable_values_keep_the_previous_file(tmp_path) -> None:
    path = tmp_path / "a.pt"
    file_format.write({"number": 1}, path)
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        file_format.write({"number": lambda: None}, path)
    assert file_format.read(path) == {"number": 1}
    assert [one.name for one in tmp_path.iterdir()] == ["a.pt"]


def test_file_is_renamed_only_when_complete(tmp_path, monkeypatch) -> None:
    path = tmp_path / "a.pt"
    seen = []
    fsync = os.fsync

    def look(descriptor: int) -> None:
        seen.append(path.exists())
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", look)
    file_format.write({}, path)
    assert seen == [False, True]  # the content, then the folder


def test_swapped_record_names(tmp_path) -> None:
    """Each checksum is right, and the weights would be those of another tensor."""
    path = tmp_path / "a.pt"
    file_format.write({"state": {"a": torch.ones(4), "b": torch.zeros(4)}}, path)
    content = path.read_bytes()
    for old, new in ((b"/data/0", b"/data/X"), (b"/data/1", b"/data/0"), (b"/data/X", b"/data/1")):
        content = content.replace(old, new)
    path.write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=r"not in the order in which torch\.save writes them"):
        file_format.read(path)


def test_empty_tensors(tmp_path) -> None:
    torch.save({"state": {"model": {"weight": torch.ones(2, device="meta")}}}, tmp_path / "a.pt")
    with pytest.raises(DamagedCheckpointError, match="_rebuild_meta_tensor_no_storage"):
        file_format.read(tmp_path / "a.pt")


def test_more_than_ten_tensors(tmp_path) -> None:
    """Whose numbers are in another order as text, in which older releases wrote them."""
    file_format.write({"state": {str(n): torch.full((2,), n) for n in range(12)}}, tmp_path / "a.pt")
    assert file_format.read(tmp_path / "a.pt")["state"]["11"].tolist() == [11, 11]
