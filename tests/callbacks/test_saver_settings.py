"""Settings of a CheckpointSaver that are changed after creation: they take effect, or are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer
from composer.callbacks import CheckpointSaver
from tests.common import Regression, without_ledger


def trainer(saver: CheckpointSaver) -> Trainer:
    model = Regression()
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator))
    return Trainer(
        model=model,
        train_dataloader=DataLoader(data, 2),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01),
        max_duration="1ep",
        callbacks=saver,
        device="cpu",
    )


@pytest.mark.parametrize("early", [True, False])
def test_changing_num_checkpoints_to_keep(tmp_path, early) -> None:
    saver = CheckpointSaver(tmp_path, "ba{batch}.pt", save_interval="1ba", latest_filename=None)
    if early:
        saver.num_checkpoints_to_keep = 1
    run = trainer(saver)
    saver.num_checkpoints_to_keep = 1
    run.fit()
    assert without_ledger(path.name for path in tmp_path.iterdir()) == ["ba4.pt"]


def test_changing_names_and_interval(tmp_path) -> None:
    saver = CheckpointSaver(tmp_path, "ba{batch}.pt", save_interval="1ba")
    saver.save_interval, saver.latest_filename = "2ba", Path("newest.pt")
    saver.remote_file_name, saver.latest_remote_file_name = Path("a/{batch}.pt"), ""
    saver.weights_only, saver.ignore_keys = True, ["state/metadata"]
    trainer(saver).fit()
    assert without_ledger(path.name for path in tmp_path.iterdir()) == ["ba2.pt", "ba4.pt", "newest.pt"]
    assert set(torch.load(tmp_path / "ba4.pt", weights_only=True)["state"]) == {"model", "integrations"}
    assert saver.remote_file_name.filename == "a/{batch}.pt"
    assert saver.latest_remote_file_name is None


def test_retention_uses_all_settings() -> None:
    saver = CheckpointSaver("runs", keep_best=1, monitor="eval/Loss")
    saver.mode, saver.keep_best, saver.keep_every, saver.num_checkpoints_to_keep = "max", 2, 3, 4
    kept = saver._list.retention
    assert (kept.newest, kept.best, kept.every, kept.mode) == (4, 2, 3, "max")
    with pytest.raises(ValueError, match="num_checkpoints_to_keep must be"):
        saver.num_checkpoints_to_keep = -2
    with pytest.raises(ValueError, match="mode must be one of"):
        saver.mode = "least"
    assert (saver.num_checkpoints_to_keep, saver.mode) == (4, "max")
    with pytest.raises(ValueError, match="keep_best and monitor must be given together"):
        CheckpointSaver("runs").monitor = "eval/Loss"


@pytest.mark.parametrize("name", ["folder", "filename", "asynchronous", "on_failure"])
def test_fixed_settings_cannot_be_changed(name) -> None:
    with pytest.raises(AttributeError, match=f"CheckpointSaver.{name} cannot be changed after creation"):
        setattr(CheckpointSaver("runs"), name, "x")


@pytest.mark.parametrize(
    ("seconds", "error"), [("9", TypeError), (True, TypeError), (-1, ValueError), (float("nan"), ValueError)]
)
def test_upload_timeouts_are_numbers_of_seconds(seconds, error) -> None:
    with pytest.raises(error, match="upload_timeout_in_seconds must be"):
        CheckpointSaver("runs", upload_timeout_in_seconds=seconds)
    saver = CheckpointSaver("runs")
    with pytest.raises(error, match="upload_timeout_in_seconds must be"):
        saver.upload_timeout_in_seconds = seconds


def test_changing_the_upload_timeout() -> None:
    saver = CheckpointSaver("memory://bucket/runs")
    run = trainer(saver)
    saver.upload_timeout_in_seconds = 0.5
    assert saver.store(run.state)._queue.close_timeout == 0.5
    run.close()
