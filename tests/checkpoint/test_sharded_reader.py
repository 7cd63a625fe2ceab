"""Read sharded checkpoints: corruption is named, no code is run, and folders of other writers are read."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

from composer import Logger, State, dist
from composer.checkpoint import DamagedCheckpointError, UnsafeCheckpointError, file_format, sharded_reader
from composer.checkpoint.folder_metadata import read_metadata
from composer.checkpoint.load import load_checkpoint, read_checkpoint
from composer.checkpoint.sharded_reader import (
    TensorMetadata,
    is_sharded_checkpoint,
    load_tensors,
    open_sharded,
    verify_sharded,
)
from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded
from composer.core.checkpoint_folders import CheckpointFolders
from tests.checkpoint.sharding import equal, network, run, weights


@pytest.fixture
def folder(tmp_path) -> Path:
    weight = torch.arange(64.0)
    write_sharded(
        shard_checkpoint({"state": {"model": {"weight": weight, "bias": weight[:2].clone()}, "epoch": 1}}),
        tmp_path / "ep1",
    )
    return tmp_path / "ep1"


def test_opening_reads_no_tensor(folder) -> None:
    content = open_sharded(folder)
    assert content["state"]["model"]["weight"] == TensorMetadata(folder, "state.model.weight", (64,), torch.float32)
    assert content["state"]["epoch"] == 1
    os.truncate(folder / "__0_0.distcp", 100)
    del content["state"]["model"]
    assert load_tensors(content) == {"state": {"epoch": 1}}


def test_not_a_checkpoint(tmp_path) -> None:
    assert not is_sharded_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no file '\.metadata'"):
        read_checkpoint(tmp_path)
    with pytest.raises(FileNotFoundError, match="There is no checkpoint"):
        read_checkpoint(tmp_path / "absent")


@pytest.mark.parametrize(
    ("name", "how", "told"),
    [
        ("__0_0.distcp", "changed", "the checksum of"),
        (".metadata", "changed", "the checksum of"),
        ("__0_0.distcp", "cut off", "bytes of"),
        (".metadata", "cut off", "bytes of"),
        ("__0_0.distcp", "removed", "is missing"),
    ],
)
def test_corruption_is_named(name, how, told, folder) -> None:
    path = folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if how == "changed":
        path.write_bytes(content)
    elif how == "cut off":
        path.write_bytes(content[:-1])
    else:
        path.unlink()
    with pytest.raises(DamagedCheckpointError, match=told) as error:
        read_checkpoint(folder)
    assert repr(name) in str(error.value)


def test_corruption_of_other_entries(folder) -> None:
    content = bytearray((folder / "composer.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "composer.pt").write_bytes(content)
    with pytest.raises(DamagedCheckpointError, match=r"composer\.pt"):
        open_sharded(folder)


def checked(folder: str) -> str:
    try:
        verify_sharded(Path(folder), all_ranks=True)
    except DamagedCheckpointError as error:
        return str(error)
    return ""


def test_all_ranks_raise_what_one_found(folder, two_ranks) -> None:
    assert two_ranks.run(checked, str(folder)) == ["", ""]
    (folder / "__0_0.distcp").write_bytes(b"")
    first, other = two_ranks.run(checked, str(folder))
    assert first == other and "'__0_0.distcp' has 0 bytes" in first


class _Runs:
    def __reduce__(self) -> Any:
        return os.getenv, ("HOME",)


def _dotted() -> bytes:
    """A name that is looked up through what a module has imported."""
    return b"\x80\x04\x8c\x25torch.distributed.checkpoint.metadata\x8c\tos.getenv\x93\x8c\x04HOME\x85R."


def _imported() -> bytes:
    return b"\x80\x04\x8c\x25torch.distributed.checkpoint.metadata\x8c\x02os\x93."


@pytest.mark.parametrize("content", [pickle.dumps(_Runs()), _dotted(), _imported()])
def test_no_code_is_run(content, folder) -> None:
    (folder / ".metadata").write_bytes(content)
    with pytest.raises(UnsafeCheckpointError, match="could run code"):
        read_metadata(folder)


def test_invalid_index(folder) -> None:
    (folder / ".metadata").write_bytes(b"nothing")
    with pytest.raises(DamagedCheckpointError, match=r"metadata' is damaged in its description of the tensors"):
        read_metadata(folder)


def test_missing_tensor(folder) -> None:
    rest = file_format.read(folder / "composer.pt")
    rest["content"]["state"]["model"]["weight"]["tensor of torch.distributed.checkpoint"] = "state.model.w"
    file_format.write(rest, folder / "composer.pt")
    with pytest.raises(DamagedCheckpointError, match=r"lacks the tensor 'state\.model\.w'"):
        open_sharded(folder)


# ------------------------------------------------------------------------------------------------- those of others


@pytest.mark.parametrize("keys", [(), ("model",), ("state", "model"), ("app", "model")])
@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_weights_written_by_torch(keys, tmp_path) -> None:
    model = network()
    content: Any = dict(model.state_dict())
    for key in reversed(keys):
        content = {key: content}
    if keys:  # objects beside the tensors, which reading would have to unpickle
        content["other"] = {"made": _Runs(), "moment": torch.ones(2)}
    dcp.save(content, storage_writer=dcp.FileSystemWriter(tmp_path / "ep1"))
    assert equal(read_checkpoint(tmp_path / "ep1")["state"]["model"], dict(model.state_dict()))
    state = State(model=network(1))
    load_checkpoint(str(tmp_path / "ep1"), state, Logger(state), load_weights_only=True)
    assert equal(weights(state), dict(model.state_dict()))


def foreign(folder: str) -> bool:
    """Weights that torch wrote on two ranks, loaded into a sharded and into an unsharded run."""
    one = run()
    dcp.save({"model": one.model.state_dict()}, storage_writer=dcp.FileSystemWriter(folder))
    dist.barrier()
    answers = []
    for how in ("fsdp", "none"):
        other = run(seed=1, how=how)
        load_checkpoint(folder, other, Logger(other), load_weights_only=True)
        answers.append(equal(weights(other), weights(one)))
    return all(answers)


def test_sharded_weights_written_by_torch(tmp_path, two_ranks) -> None:
    assert all(two_ranks.run(foreign, str(tmp_path / "ep1")))


# ------------------------------------------------------------------------------------------------------ what is read


class Counting(dcp.DefaultLoadPlanner):
    """Keeps the names of what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def create_local_plan(self) -> Any:
        plan = super().create_local_plan()
        self.names |= {item.storage_index.fqn for item in plan.items}
        return plan


def test_only_needed_bytes_are_read(folder) -> None:
    planner = Counting()
    state = State(model=torch.nn.Linear(1, 1))
    state.checkpoint_folders = CheckpointFolders(load_planner=planner)
    load_checkpoint(str(folder), state, Logger(state), ignore_keys=["state/model/weight", "state/model/bias"])
    assert planner.names == set()
    planner = Counting()
    content = open_sharded(folder)
    del content["state"]["model"]["weight"]
    read = load_tensors(content, planner=planner)
    assert read["state"]["model"]["bias"].tolist() == [0, 1]
    assert planner.names == {"state.model.bias"}


def test_mismatched_shape_is_reported_before_reading(folder, monkeypatch) -> None:
    monkeypatch.setattr(sharded_reader, "read_into", None)
    state = State(model=torch.nn.Linear(3, 2))
    with pytest.raises(
        RuntimeError, match=r"size mismatch for weight: \(64,\) in the checkpoint and \(2, 3\) in the model"
    ):
        load_checkpoint(str(folder), state, Logger(state))


@pytest.mark.parametrize("kind", ["folder", "link to itself", "pipe"])
def test_HostileFolders_other_entries_not_in_a_file(kind, tmp_path) -> None:
    folder = tmp_path / "ep1"
    write_sharded(shard_checkpoint({"state": {"model": {"weight": torch.ones(2)}}}), folder)
    rest = folder / "composer.pt"
    rest.unlink()
    {"folder": rest.mkdir, "link to itself": lambda: rest.symlink_to(rest), "pipe": lambda: os.mkfifo(rest)}[kind]()
    with pytest.raises(DamagedCheckpointError, match=r"'composer\.pt' is not a file"):
        open_sharded(folder)
