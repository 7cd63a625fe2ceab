"""Names of CheckpointSaver that scripts and subclasses written for Composer 0.32 use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Callback, State, Trainer
from composer.callbacks import CheckpointSaver
from tests.common import trainer_of, without_ledger


def trainer(saver: CheckpointSaver, *more: Callback, **arguments: Any) -> Trainer:
    arguments.setdefault("max_duration", "2ep")
    return trainer_of(callbacks=[*more, saver], **arguments)


def names(folder: Path) -> list[str]:
    return without_ledger(path.name for path in folder.iterdir())


@pytest.mark.parametrize("path_type", [str, Path])
def test_names_are_paths_with_placeholders(path_type) -> None:
    saver = CheckpointSaver(
        path_type("{run_name}/saved"),
        path_type("ep{epoch}.pt"),
        path_type("{run_name}/there/ep{epoch}.pt"),
        path_type("latest.pt"),
        path_type("{run_name}/there/latest.pt"),
    )
    assert (saver.folder, saver.filename.filename, saver.filename.folder) == (
        "{run_name}/saved",
        "ep{epoch}.pt",
        saver.folder,
    )
    assert saver.latest_filename.filename == "latest.pt"
    assert saver.remote_file_name.filename == "{run_name}/there/ep{epoch}.pt"
    assert saver.latest_remote_file_name.filename == "{run_name}/there/latest.pt"
    state = State(model=torch.nn.Linear(1, 1), run_name="night")
    assert saver.filename.format(state) == "night/saved/ep0.pt"
    assert saver.filename.format(state, keep_placeholders=True) == "{run_name}/saved/ep{epoch}.pt"
    none = CheckpointSaver(remote_file_name=None, latest_filename=None, latest_remote_file_name=None)
    assert (none.remote_file_name, none.latest_filename, none.latest_remote_file_name) == (None, None, None)


def test_timestamps_of_all_saved_checkpoints(tmp_path) -> None:
    saver = CheckpointSaver(tmp_path / "a", "ba{batch}.pt", save_interval="2ba", num_checkpoints_to_keep=1)
    run = trainer(saver, run_name="A", max_duration="1ep")
    run.fit()
    expected = {str(tmp_path / "a" / f"ba{batch}.pt"): batch for batch in (2, 4)}
    assert {path: int(time.batch) for path, time in saver.all_saved_checkpoints_to_timestamp.items()} == expected
    path = tmp_path / "a" / "ba4.pt"
    saved = torch.load(path, weights_only=True)["state"]["callbacks"]["CheckpointSaver"]
    assert [(name, time["batch"]) for name, time in saved["all_saved_checkpoints_to_timestamp"]] == [
        ("ba2.pt", 2),
        ("ba4.pt", 4),
    ]
    again = CheckpointSaver(tmp_path / "a", "ba{batch}.pt", save_interval="2ba")
    trainer(again, run_name="A", load_path=str(path))
    assert again.all_saved_checkpoints_to_timestamp == saver.all_saved_checkpoints_to_timestamp
    other = CheckpointSaver(tmp_path / "b", "ba{batch}.pt", save_interval="2ba")
    trainer(other, run_name="B", load_path=str(path))
    assert other.all_saved_checkpoints_to_timestamp == {}  # of another run


class Best(CheckpointSaver):
    """Like subclasses written for Composer 0.32."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls = 0
        self.latest_filename = None

    def _save_checkpoint(self, state, logger):
        self.calls += 1
        if self.calls != 2:
            super()._save_checkpoint(state, logger)

    def state_dict(self):
        state = super().state_dict()
        entries = [
            (path, time.state_dict(), self.calls) for path, time in self.all_saved_checkpoints_to_timestamp.items()
        ]
        return {**state, "all_saved_checkpoints_to_timestamp": entries}


def test_subclasses_can_override_what_is_saved(tmp_path) -> None:
    saver = Best(tmp_path, "ba{batch}.pt", save_interval="2ba")
    run = trainer(saver, max_duration="6ba")
    assert run._checkpoint_saver is saver
    run.fit()
    assert (saver.calls, names(tmp_path)) == (3, ["ba2.pt", "ba6.pt"])
    again = Best(tmp_path, "ba{batch}.pt", save_interval="2ba")
    trainer(again, load_path=str(tmp_path / "ba6.pt"))
    assert [int(time.batch) for time in again.all_saved_checkpoints_to_timestamp.values()] == [2, 6]


def test_the_private_saver_attribute_that_scripts_use(tmp_path) -> None:
    assert trainer_of()._checkpoint_saver is None
    saver = CheckpointSaver(tmp_path / "mine")
    run = trainer(saver, save_folder=str(tmp_path / "folder"))
    assert run._checkpoint_saver is saver
    run._checkpoint_saver._save_checkpoint(run.state, run.logger)  # before training
    assert names(tmp_path / "mine") == ["ep0-ba0-rank0.pt", "latest-rank0.pt"]


def test_a_state_that_cannot_be_saved_leaves_the_list_as_it_was(tmp_path) -> None:
    class Odd(Callback):
        def state_dict(self):
            return {"value": print} if run.state.timestamp.batch == 4 else {}

    saver = CheckpointSaver(tmp_path, "ba{batch}.pt", save_interval="2ba")
    run = trainer(saver, Odd())
    with pytest.raises(TypeError, match=r"'state/callbacks/.*Odd/value' cannot be saved"):
        run.fit()
    assert [Path(path).name for path in saver.saved_checkpoints] == ["ba2.pt"]
    assert [Path(path).name for path in saver.all_saved_checkpoints_to_timestamp] == ["ba2.pt"]
    assert names(tmp_path) == ["ba2.pt", "latest-rank0.pt"]
