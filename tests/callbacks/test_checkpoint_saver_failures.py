"""Failed saves: earlier checkpoints remain, and training ends or continues as configured."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from composer.callbacks import CheckpointSaver
from composer.checkpoint import file_format
from composer.warnings import ComposerWarning
from tests.callbacks.test_checkpoint_saver import both, names, newest_batch, trainer
from tests.checkpoint.disks import STEPS, full
from tests.common import At, trainer_of


@both
@pytest.mark.parametrize("step", STEPS)
def test_a_full_disk_ends_training_and_keeps_the_previous_checkpoint(step, asynchronous, tmp_path, monkeypatch) -> None:
    def fill(state: Any) -> None:
        if int(state.timestamp.batch) == 3:
            saver._writer.wait()
            disk.__enter__()

    disk = full(step, monkeypatch)
    saver = CheckpointSaver(tmp_path, save_interval="2ba", num_checkpoints_to_keep=1, asynchronous=asynchronous)
    run = trainer(saver, At("batch_end", fill))
    with pytest.raises(OSError, match="No space left") as error:
        run.fit()
    disk.__exit__(None, None, None)
    assert any("ep0-ba4-rank0.pt' could not be written" in note for note in error.value.__notes__)
    assert names(tmp_path) == ["ep0-ba2-rank0.pt", "latest-rank0.pt"]
    assert newest_batch(tmp_path) == 2
    # A background failure is raised at the beginning of a step, or at the next save.
    assert int(run.state.timestamp.batch) in ((4, 5, 6) if asynchronous else (4,))
    run.close()


@both
def test_a_failure_as_a_warning_loses_nothing(asynchronous, tmp_path, monkeypatch) -> None:
    """Training continues; obsolete checkpoints are removed by the next successful save."""

    def toggle(state: Any) -> None:
        batch = int(state.timestamp.batch)
        if batch == 3:
            saver._writer.wait()
            disk.__enter__()
        elif batch == 5:
            saver._writer.wait()
            disk.__exit__(None, None, None)
            there.append(names(tmp_path))

    there: list[list[str]] = []
    disk = full("fsync", monkeypatch)
    saver = CheckpointSaver(
        tmp_path, save_interval="2ba", num_checkpoints_to_keep=1, asynchronous=asynchronous, on_failure="warn"
    )
    with pytest.warns(ComposerWarning, match="ep0-ba4-rank0.pt' could not be written .*No space left"):
        trainer(saver, At("batch_end", toggle), max_duration="6ba").fit()
    assert there == [["ep0-ba2-rank0.pt", "latest-rank0.pt"]]
    assert names(tmp_path) == ["ep1-ba6-rank0.pt", "latest-rank0.pt"]
    assert [Path(path).name for path in saver.saved_checkpoints] == ["ep1-ba6-rank0.pt"]


def test_a_failed_save_can_be_retried(tmp_path, monkeypatch) -> None:
    saver = CheckpointSaver(tmp_path, on_failure="warn")
    run = trainer(saver, max_duration="1ep")
    with full("fsync", monkeypatch), pytest.warns(ComposerWarning, match="could not be written"):
        run.fit()
    assert names(tmp_path) == []
    run.save_checkpoint_to_save_folder()
    assert names(tmp_path) == ["ep1-ba4-rank0.pt", "latest-rank0.pt"]


def test_a_background_failure_is_raised_at_the_next_step(tmp_path, monkeypatch) -> None:
    failed = threading.Event()

    def refuse(content: Any, path: Path) -> None:
        failed.set()
        raise OSError("no disk")

    monkeypatch.setattr(file_format, "write", refuse)
    saver = CheckpointSaver(tmp_path, save_interval="2ba", asynchronous=True)
    # The step continues once the thread has certainly failed.
    wait = At("batch_checkpoint", lambda state: saver._writer._running and saver._writer._running[0].exception(60))
    run = trainer_of(callbacks=[saver, wait], max_duration="2ep")
    with pytest.raises(OSError, match="no disk"):
        run.fit()
    assert failed.is_set()
    assert int(run.state.timestamp.batch) == 2


def test_a_background_failure_is_raised_at_the_end_of_training(tmp_path, monkeypatch) -> None:
    def refuse(content: Any, path: Path) -> None:
        raise OSError("no disk")

    monkeypatch.setattr(file_format, "write", refuse)
    run = trainer(CheckpointSaver(tmp_path, save_interval="8ba", asynchronous=True))
    with pytest.raises(OSError, match="no disk"):
        run.fit()
    assert int(run.state.timestamp.batch) == 8


def test_a_folder_that_cannot_be_created_is_refused_before_training(tmp_path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError):
        trainer(CheckpointSaver(tmp_path / "file" / "folder"))
