"""What a checkpoint holds, and where it goes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchmetrics import MeanSquaredError

from composer import State, Timestamp, dist
from composer.checkpoint import file_format
from composer.checkpoint.load import read_checkpoint
from composer.checkpoint.save import collect, get_save_filename, save_checkpoint, write_file
from composer.warnings import ComposerWarning
from tests.checkpoint.disks import STEPS, full
from tests.common import Regression


def state(**arguments: Any) -> State:
    model = Regression()
    optimizers = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    made = State(model=model, optimizers=optimizers, run_name="night", max_duration="3ba", **arguments)
    made.timestamp = Timestamp(epoch=1, batch=20)
    return made


def test_checkpoint_contents() -> None:
    content = collect(state())
    assert sorted(content) == ["rng", "state"]
    assert {"model", "optimizers", "timestamp", "callbacks", "algorithms", "dataset_state"} <= content["state"].keys()
    assert content["state"]["max_duration"] == "3ba"
    assert "metrics" not in content["state"]


def test_weights_only() -> None:
    content = collect(state(), weights_only=True)
    assert sorted(content) == ["state"]
    assert sorted(content["state"]) == ["integrations", "metadata", "model"]


def test_metrics_on_request() -> None:
    one = state()
    one.train_metrics = {"MSE": MeanSquaredError()}
    assert list(collect(one, metrics=True)["state"]["metrics"]["train"]) == ["MSE"]


def test_ignored_entries() -> None:
    content = collect(state(), ignore_keys=["state/model/linear.bias", "rng"])
    assert list(content["state"]["model"]) == ["linear.weight"]
    assert "rng" not in content
    with pytest.warns(ComposerWarning, match="Did you mean 'state/optimizers'"):
        collect(state(), ignore_keys=["state/optimizer"])


def test_excluding_entries_does_not_change_the_run() -> None:
    one = state()
    collect(one, ignore_keys=["state/model/*", "state/timestamp/*", "state/metadata/*"])
    assert len(one.model.state_dict()) == 2
    assert one.timestamp.batch == 20


def test_compiled_model_is_saved_under_original_names() -> None:
    one = state()
    one.model.compile(backend="eager")
    assert list(collect(one)["state"]["model"]) == ["linear.weight", "linear.bias"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, "ep1-ba20-rank0"),
        ("{run_name}/ba{batch:04d}.pt", "night/ba0020.pt"),
        ("fixed.pt", "fixed.pt"),
    ],
)
def test_file_names(name, expected) -> None:
    assert get_save_filename(state(), *([] if name is None else [name])) == expected


def test_saving(tmp_path) -> None:
    one = state()
    path = save_checkpoint(one, str(tmp_path / "{run_name}" / "ba{batch}.pt"))
    assert path == str(tmp_path / "night" / "ba20.pt")
    assert torch.equal(read_checkpoint(path)["state"]["model"]["linear.weight"], one.model.linear.weight)


def test_other_ranks_write_nothing(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(dist, "get_global_rank", lambda: 1)
    assert save_checkpoint(state(), str(tmp_path / "a.pt")) is None
    assert not list(tmp_path.iterdir())


def test_safetensors(tmp_path) -> None:
    one = state()
    path = save_checkpoint(one, str(tmp_path / "ba{batch}.safetensors"), weights_only=True)
    assert path == str(tmp_path / "ba20.safetensors")
    read = read_checkpoint(path)
    assert list(read["state"]) == ["model"]
    assert torch.equal(read["state"]["model"]["linear.weight"], one.model.linear.weight)
    with pytest.raises(ValueError, match=r"can only store weights. Use weights_only=True"):
        save_checkpoint(one, str(tmp_path / "all.safetensors"))


@pytest.mark.parametrize("step", STEPS)
def test_full_disk_keeps_the_previous_checkpoint(step, tmp_path, monkeypatch) -> None:
    one = state()
    path = save_checkpoint(one, str(tmp_path / "a.pt"))
    assert path is not None
    one.timestamp = Timestamp(batch=21)
    with full(step, monkeypatch), pytest.raises(OSError, match="No space left"):
        save_checkpoint(one, str(tmp_path / "a.pt"))
    assert file_format.read(path)["state"]["timestamp"]["Timestamp"]["batch"] == 20
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.pt"]


def test_format_follows_the_file_name(tmp_path) -> None:
    content = {"state": {"model": {"weight": torch.ones(1)}}}
    write_file(content, tmp_path / "a.pt")
    write_file(content, tmp_path / "a.safetensors")
    assert (tmp_path / "a.pt").read_bytes()[:2] == b"PK"
    assert (tmp_path / "a.safetensors").read_bytes()[:2] != b"PK"
