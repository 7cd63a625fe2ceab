"""Storage readers for ``torch.distributed.checkpoint.load``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp

import composer.utils.checkpoint as names
from composer.checkpoint.dcp_readers import DistCPObjectStoreReader, FileSystemReaderWithValidation
from composer.checkpoint.file_format import UnsafeCheckpointError
from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded
from tests.checkpoint import test_user_validation

WEIGHT = torch.arange(6.0).reshape(2, 3)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def loaded(reader: Any) -> torch.Tensor:
    content = {"state": {"model": {"a.weight": torch.zeros(2, 3)}}}
    dcp.load(content, storage_reader=reader)
    return content["state"]["model"]["a.weight"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_sharded(shard_checkpoint({"state": {"model": {"a.weight": WEIGHT, "b": torch.ones(1)}}}), tmp_path / "ep1")
    return tmp_path / "ep1"


class Store:
    """An object store as users write them."""

    def __init__(self, root: Path) -> None:
        self.root, self.names = root, list[str]()

    def download_object(self, object_name: str, filename: Any, overwrite: bool = False, callback: Any = None) -> None:
        self.names.append(object_name)
        Path(filename).write_bytes((self.root / object_name).read_bytes())


def test_from_a_folder(folder) -> None:
    assert torch.equal(loaded(FileSystemReaderWithValidation(str(folder))), WEIGHT)


def test_from_a_uri(folder, tmp_path) -> None:
    fsspec.filesystem("memory").put(str(folder), "/readers/ep1", recursive=True)
    reader = DistCPObjectStoreReader(source_path="memory://readers/ep1", destination_path=str(tmp_path / "here"))
    assert torch.equal(loaded(reader), WEIGHT)
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [".metadata", "__0_0.distcp"]


def test_each_file_is_downloaded_once(folder, tmp_path) -> None:
    store = Store(tmp_path)
    reader = DistCPObjectStoreReader("ep1", tmp_path / "here", store)
    assert torch.equal(loaded(reader), loaded(reader))
    assert store.names == ["ep1/.metadata", "ep1/__0_0.distcp"]


def test_files_of_another_checkpoint_in_the_folder_are_replaced(folder, tmp_path) -> None:
    write_sharded(
        shard_checkpoint({"state": {"model": {"a.weight": WEIGHT + 1, "b": torch.ones(1)}}}), tmp_path / "ep2"
    )
    store = Store(tmp_path)
    assert torch.equal(loaded(DistCPObjectStoreReader("ep1", tmp_path / "here", store)), WEIGHT)
    assert torch.equal(loaded(DistCPObjectStoreReader("ep2", tmp_path / "here", store)), WEIGHT + 1)


def test_file_missing_in_the_store(folder, tmp_path) -> None:
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(dcp.CheckpointException, match=r"__0_0\.distcp"):
        loaded(DistCPObjectStoreReader("ep1", tmp_path / "here", Store(tmp_path)))
    with pytest.raises(FileNotFoundError):
        DistCPObjectStoreReader("ep2", tmp_path / "there", Store(tmp_path))


def test_user_validation_receives_every_file(folder, monkeypatch) -> None:
    monkeypatch.setenv(test_user_validation.VARIABLE, f"{test_user_validation.__name__}.accept")
    test_user_validation.seen.clear()
    loaded(FileSystemReaderWithValidation(folder))
    (name, metadata), (shard, specs) = test_user_validation.seen
    assert (name, metadata, shard) == (".metadata", None, "__0_0.distcp")
    assert len(specs) == 1
    monkeypatch.setenv(test_user_validation.VARIABLE, f"{test_user_validation.__name__}.refuse")
    with pytest.raises(dcp.CheckpointException, match="is invalid"):
        loaded(FileSystemReaderWithValidation(folder))


class Harmful:
    """Leaves a trace where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


def test_nothing_is_unpickled(tmp_path) -> None:
    trace = tmp_path / "trace"
    dcp.save({"odd": Harmful(trace)}, checkpoint_id=tmp_path / "bytes")
    with pytest.raises((UnsafeCheckpointError, dcp.CheckpointException), match="could run code"):
        dcp.load({"odd": 1}, storage_reader=FileSystemReaderWithValidation(tmp_path / "bytes"))
    import pickle

    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / ".metadata").write_bytes(pickle.dumps(Harmful(trace)))
    with pytest.raises(UnsafeCheckpointError):
        FileSystemReaderWithValidation(tmp_path / "metadata").read_metadata()
    assert not trace.exists()


def test_private_names_that_scripts_import() -> None:
    assert names._TORCH_DISTRIBUTED_CHECKPOINTS_METADATA_FILENAME == ".metadata"
    assert names._TORCH_DISTRIBUTED_CHECKPOINTS_FILENAME == "__0_0.distcp"
    assert names._COMPOSER_STATES_FILENAME == "composer_states.pt"
    assert names.DistCPObjectStoreReader is DistCPObjectStoreReader
    assert names.FileSystemReaderWithValidation is FileSystemReaderWithValidation
    assert names._ensure_valid_checkpoint("a") == "a"
    assert names._get_checkpoint_validation_function() is None
    with pytest.raises(AttributeError, match="Did you mean 'DistCPObjectStoreReader'"):
        _ = names.DistCPObjectStorReader


def test_private_functions(tmp_path) -> None:
    names._write_checkpoint_file({"foo": 123}, str(tmp_path / "a.pt"))
    assert names._torch_load_with_validation(tmp_path / "a.pt", map_location="cpu") == {"foo": 123}
    assert torch.load(tmp_path / "a.pt") == {"foo": 123}
