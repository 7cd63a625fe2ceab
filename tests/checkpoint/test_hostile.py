"""EveryBit and HostileFiles: every file or folder is read correctly or rejected by name, and runs no code."""

from __future__ import annotations

import pickle
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Logger, State
from composer.checkpoint import DamagedCheckpointError, UnsafeCheckpointError
from composer.checkpoint.convert import convert_checkpoint
from composer.checkpoint.load import load_checkpoint, read_checkpoint, safe_torch_load
from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded
from tests.checkpoint import hostile, hostile_folders
from tests.checkpoint.content import same

NAMED = (DamagedCheckpointError, UnsafeCheckpointError)
CONTENT: dict[str, Any] = {"state": {"model": {"w": torch.arange(8.0), "b": torch.ones(3)}}, "rng": [{"n": 1}]}
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled", "ignore:Detected pickle protocol")


def outcome(path: Path, known: Any = CONTENT) -> str:
    """What comes of reading a damaged checkpoint; fails if that is wrong, or another error than the two."""
    try:
        read = read_checkpoint(path)
    except NAMED as error:
        assert str(path) in str(error), error
        return type(error).__name__
    assert same(read, known), read
    return "same"


def put(path: Path, content: bytes) -> None:
    """Overwrite a file in place; many file systems flush a file that is truncated and rewritten."""
    with path.open("r+b") as file:
        file.write(content)
        file.truncate()


def damages(whole: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Bytes changed, cut out, put in, moved, or overwritten, here and there."""
    chance = random.Random(seed)
    for number in range(count):
        changed = bytearray(whole)
        begin, length = chance.randrange(len(whole)), 1 << chance.randrange(8)
        end = min(begin + length, len(whole))
        kind = number % 7
        if kind == 0:
            changed[begin] ^= 1 << chance.randrange(8)
        elif kind == 1:
            for _ in range(chance.randint(1, 4)):
                changed[chance.randrange(len(whole))] = chance.randrange(256)
        elif kind == 2:
            del changed[begin:end]
        elif kind == 3:
            changed[begin:begin] = chance.randbytes(length)
        elif kind == 4:
            changed[begin:end] = bytes(end - begin)
        elif kind == 5:
            changed[begin:end] = whole[(at := chance.randrange(len(whole))) : at + end - begin]
        else:
            del changed[begin:]
        yield bytes(changed)


def bits(whole: bytes, begin: int = 0) -> Iterator[bytes]:
    """The same with each single bit another."""
    for bit in range(8 * begin, 8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed)


@pytest.fixture
def folder(tmp_path) -> Path:
    write_sharded(
        shard_checkpoint({"state": {"model": dict(CONTENT["state"]["model"])}, "rng": [{"n": 1}]}), tmp_path / "ep1"
    )
    return tmp_path / "ep1"


# --------------------------------------------------------------------------------------------------------- EveryBit


@pytest.mark.slow
def test_EveryBit_of_a_file(tmp_path) -> None:
    path = tmp_path / "a.pt"
    whole = hostile.plain_file()
    path.write_bytes(whole)
    assert outcome(path) == "same"
    found: Counter[str] = Counter()
    for changed in bits(whole):
        put(path, changed)
        found[outcome(path)] += 1
    assert found == {"DamagedCheckpointError": 8 * len(whole)}


@pytest.mark.slow
@pytest.mark.parametrize("name", [".metadata", "composer.pt"])
def test_EveryBit_of_a_folder(name, folder) -> None:
    path = folder / name
    whole = path.read_bytes()
    assert outcome(folder) == "same"
    # Of the file that is like any other the directory, as all of it is tested above.
    begin = whole.index(b"PK\x01\x02") if name == "composer.pt" else 0
    for changed in bits(whole, begin):
        put(path, changed)
        assert outcome(folder) == "DamagedCheckpointError"


@pytest.mark.slow
def test_EveryBit_of_a_folder_that_plain_torch_has_written(tmp_path) -> None:
    """Its names are not protected by anything; under a name that is right, the values are."""
    hostile_folders.foreign_folder(tmp_path / "dcp")
    path = tmp_path / "dcp" / ".metadata"
    whole = path.read_bytes()
    found: Counter[str] = Counter()
    for changed in bits(whole):
        put(path, changed)
        try:
            read = read_checkpoint(tmp_path / "dcp")["state"]["model"]
        except NAMED as error:
            found[type(error).__name__] += 1
            continue
        found["read"] += 1
        known = {name.removeprefix("model."): value for name, value in read.items()}
        assert all(same(known[name], value) for name, value in CONTENT["state"]["model"].items() if name in known)
    assert found["DamagedCheckpointError"] > found["read"]


def test_EveryBit_of_safetensors(tmp_path) -> None:
    path = tmp_path / "a.safetensors"
    (tmp_path / "a.pt").write_bytes(hostile.plain_file())
    convert_checkpoint(tmp_path / "a.pt", path)
    whole = path.read_bytes()
    known = {"state": {"model": CONTENT["state"]["model"]}}
    assert outcome(path, known) == "same"
    found: Counter[str] = Counter()
    for changed in bits(whole):
        put(path, changed)
        found[outcome(path, known)] += 1
    # The names of the checksums are all that may change without harm.
    assert found["DamagedCheckpointError"] > 0.95 * 8 * len(whole)


# --------------------------------------------------------------------------------------------------- random damages


@pytest.mark.slow
def test_random_corruption_of_a_file(tmp_path) -> None:
    path = tmp_path / "a.pt"
    whole = hostile.plain_file()
    path.write_bytes(whole)
    for changed in damages(whole, 10_000, seed=1):
        put(path, changed)
        assert outcome(path) != "same" or changed == whole


@pytest.mark.slow
def test_random_corruption_of_a_folder(folder) -> None:
    wholes = {path: path.read_bytes() for path in sorted(folder.iterdir())}
    for path, whole in wholes.items():
        for changed in damages(whole, 10_000 // len(wholes), seed=2):
            put(path, changed)
            assert outcome(folder) != "same" or changed == whole
        path.write_bytes(whole)
    assert outcome(folder) == "same"


@pytest.mark.slow
@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"])
def test_random_corruption_of_a_torch_folder(name, tmp_path) -> None:
    hostile_folders.foreign_folder(tmp_path / "dcp")
    path = tmp_path / "dcp" / name
    whole = path.read_bytes()
    for changed in damages(whole, 2000, seed=3):
        put(path, changed)
        try:
            read = read_checkpoint(tmp_path / "dcp")["state"]["model"]
        except NAMED as error:
            assert str(tmp_path / "dcp") in str(error)
            continue
        assert all(same(read[key], value) for key, value in CONTENT["state"]["model"].items() if key in read)


def test_random_corruption_of_the_legacy_format(tmp_path) -> None:
    """It has no checksums: the values may be others, but nothing else happens."""
    path = tmp_path / "a.pt"
    torch.save(CONTENT, path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    for changed in damages(whole, 2000, seed=4):
        put(path, changed)
        try:
            read_checkpoint(path)
        except NAMED as error:
            assert str(path) in str(error)


# ------------------------------------------------------------------------------------------------------ HostileFiles


def refused(path: Path, trace: Path) -> Exception:
    """The error of reading a hostile checkpoint by each way of the library, which takes neither time nor memory."""
    begin = time.monotonic()
    with pytest.raises(NAMED) as error:
        read_checkpoint(path)
    assert str(path) in str(error.value)
    with pytest.raises(NAMED):
        convert_checkpoint(path, path.with_name("converted.safetensors"))
    state = State(model=torch.nn.Linear(1, 1))
    with pytest.raises(NAMED):
        load_checkpoint(str(path), state, Logger(state), load_weights_only=True)
    assert time.monotonic() - begin < 5
    assert not trace.exists()
    assert not path.with_name("converted.safetensors").exists()
    return error.value


def corpus() -> list[str]:
    return [name for name, _ in hostile.files(Path("trace"))]


def test_HostileFiles_are_made_as_files_that_load(tmp_path) -> None:
    """Without this, errors of the corpus could be those of what makes it."""
    path = tmp_path / "a.pt"
    path.write_bytes(hostile.zipped(hostile.checkpoint(hostile.tensor())))
    assert read_checkpoint(path)["state"]["model"]["w"].tolist() == [0.0] * 8
    names = corpus()
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", corpus())
def test_HostileFiles(name, tmp_path) -> None:
    trace = tmp_path / "trace"
    path = tmp_path / "a.pt"
    path.write_bytes(dict(hostile.files(trace))[name])
    error = refused(path, trace)
    if "runs" in name:
        assert isinstance(error, UnsafeCheckpointError)
    if name not in hostile.WELL_FORMED:
        with pytest.raises(NAMED):
            safe_torch_load(path)


@pytest.mark.parametrize("name", hostile_folders.FOLDERS)
def test_HostileFolders(name, tmp_path) -> None:
    folder = tmp_path / "dcp"
    metadata = hostile_folders.foreign_folder(folder)
    shutil.copy(folder / "__0_0.distcp", tmp_path / "outside.distcp")
    hostile_folders.FOLDERS[name](metadata, folder)
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    error = refused(folder, folder / "trace")
    if name in ("bytes for a tensor", "code in the description", "code in the file of a tensor"):
        assert isinstance(error, UnsafeCheckpointError)
