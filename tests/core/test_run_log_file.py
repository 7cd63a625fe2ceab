from __future__ import annotations

from pathlib import Path

import pytest
import torch

from composer import dist
from composer.core import Logger, State
from composer.core.run_log_file import RunFile
from tests.loggers.files import Uploads


def state_of(run_name: str = "run") -> State:
    return State(torch.nn.Linear(1, 1), run_name=run_name)


def existing(tmp_path: Path) -> Path:
    path = tmp_path / "run.txt"
    path.write_text("old")
    return path


def test_a_new_file(tmp_path) -> None:
    file = RunFile(f"{tmp_path}/{{run_name}}/{{rank}}.txt")
    assert (file.path, file.location, file.name) == (None, None, f"{tmp_path}/{{run_name}}/{{rank}}.txt")
    assert file.open(state_of()) is None
    assert file.path == tmp_path / "run" / "0.txt"
    assert file.location == file.name == f"{tmp_path}/run/0.txt"
    assert file.path.parent.is_dir()
    file.close()
    assert file.path is None


def test_the_file_of_another_run_is_moved_or_replaced(tmp_path) -> None:
    path = existing(tmp_path)
    assert RunFile(str(path)).open(state_of()) is None
    assert not path.exists()
    assert (tmp_path / "run.1.txt").read_text() == "old"
    existing(tmp_path)
    assert RunFile(str(path), overwrite=True).open(state_of()) is None
    assert [file.name for file in tmp_path.iterdir()] == ["run.1.txt"]


def test_a_resumed_run_continues_its_file(tmp_path) -> None:
    path = existing(tmp_path)
    saved = {"run_name": "run", "file": str(path), "bytes": 3}
    file = RunFile(str(path))
    file.load_state_dict(saved)
    assert file.open(state_of()) == saved
    assert path.read_text() == "old"
    assert file.state_dict(state_of(), bytes=3) == saved
    file.close()
    assert file.open(state_of()) is None  # resuming is for the run after it


def test_the_position_saved_by_another_rank_is_ignored(tmp_path) -> None:
    file = RunFile(f"{tmp_path}/{{run_name}}.txt")
    existing(tmp_path)
    file.load_state_dict({"run_name": "run", "file": "rank0.txt", "bytes": 1})
    assert file.open(state_of()) == {}
    assert (tmp_path / "run.txt").read_text() == "old"


@pytest.mark.parametrize("saved", [{}, {"n": 3}, {"run_name": "another", "file": "run.txt"}])
def test_the_state_of_another_run_is_ignored(tmp_path, saved) -> None:
    path = existing(tmp_path)
    file = RunFile(str(path))
    file.load_state_dict(saved)
    assert file.open(state_of()) is None
    assert (tmp_path / "run.1.txt").read_text() == "old"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_that_must_not_be_replaced_is_moved(tmp_path, overwrite: bool) -> None:
    path = existing(tmp_path)
    file = RunFile(str(path), overwrite=overwrite, replaces=lambda file: file.read_text() != "old")
    file.load_state_dict({"run_name": "run", "file": str(path)})
    assert file.open(state_of()) is None
    assert (tmp_path / "run.1.txt").read_text() == "old"


def test_which_rank_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert RunFile("log.txt").is_active
    monkeypatch.setattr(dist, "get_global_rank", lambda: 1)
    assert not RunFile("log.txt").is_active
    assert RunFile("{rank}.txt").is_active


def test_upload(tmp_path) -> None:
    uploads, state = Uploads(), state_of()
    logger = Logger(state, uploads)
    file = RunFile(f"{tmp_path}/run.txt", "logs/{run_name}.txt")
    file.upload(state, logger)
    file.open(state)
    file.upload(state, logger)  # there is no file yet
    assert uploads.texts == {}
    existing(tmp_path)
    file.upload(state, logger)
    assert uploads.texts == {"logs/run.txt": "old"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_is_not_moved(tmp_path, overwrite: bool) -> None:
    (tmp_path / "runs").mkdir()
    with pytest.raises(IsADirectoryError, match="is a folder"):
        RunFile(f"{tmp_path}/runs", overwrite=overwrite).open(state_of())
    assert [one.name for one in tmp_path.iterdir()] == ["runs"]
