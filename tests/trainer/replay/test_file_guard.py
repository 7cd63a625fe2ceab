"""Files that exist are not changed while a step is replayed; new ones, caches and data that is read are allowed."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from composer import Callback
from composer.loggers import CSVLogger, FileLogger, JSONLinesLogger
from composer.trainer.replay.file_guard import FileRefusedError, changed_files, unchanged_files
from tests.trainer.replay.test_replay import trainer


@pytest.fixture
def old(tmp_path, monkeypatch) -> Path:
    """A file that exists, in a folder of the current one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    path = tmp_path / "below/old.txt"
    path.write_text("old")
    return path


CHANGES = {
    "open": lambda path: path.open("w"),
    "append": lambda path: path.open("a"),
    "update": lambda path: path.open("r+"),
    "relative": lambda path: Path("below/../below/old.txt").write_text("new"),
    "bytes": lambda path: os.open(os.fsencode(path), os.O_RDWR | os.O_APPEND),
    "descriptor": lambda path: os.open(path, os.O_WRONLY),
    "torch.save": lambda path: torch.save({}, path),
    "numpy.save": lambda path: np.savetxt(str(path), np.ones(1)),
    "remove": lambda path: path.unlink(),
    "rename": lambda path: path.rename("other.txt"),
    "replace": lambda path: Path("new.txt").replace(path),
    "truncate": lambda path: os.truncate(path, 1),
    "copy": lambda path: shutil.copy("new.txt", path),
    "tree": lambda path: shutil.rmtree(path.parent),
    "link": lambda path: Path("link.txt").write_text("new"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changes_that_are_refused(old, name) -> None:
    Path("link.txt").symlink_to(old)
    with unchanged_files(["."], "Write elsewhere.") as refused:
        Path("new.txt").write_text("new")
        with pytest.raises(FileRefusedError, match=r"test_file_guard.py, line \d+, .* that exists. Write elsewhere."):
            CHANGES[name](old)
    assert old.read_text() == "old"
    assert len(refused) == 1
    old.write_text("changed")  # afterwards
    torch.save({}, old)


def test_what_is_allowed(old, tmp_path_factory) -> None:
    np.save("data.npy", np.ones(3))
    outside = tmp_path_factory.mktemp("outside") / "file.txt"
    for path in (Path("__pycache__/a.pyc"), Path(".cache/a"), Path("below/a.lock"), outside):
        path.parent.mkdir(exist_ok=True)
        path.write_text("old")
    with unchanged_files(["."], "Write elsewhere.") as refused:
        for path in (Path("__pycache__/a.pyc"), Path(".cache/a"), Path("below/a.lock"), outside):
            path.write_text("changed")
        new = Path("below/new.txt")
        for _ in range(2):
            new.write_text("new")
            torch.save({}, new)
        new.rename("newer.txt").unlink()
        Path("folder").mkdir()
        Path("folder/file").write_text("new")
        shutil.rmtree("folder")
        with tempfile.TemporaryDirectory(dir=".") as folder:
            Path(folder, "file").write_text("new")
        assert np.load("data.npy", mmap_mode="r+")[0] == 1
        with changed_files():
            old.write_text("asked for")
        assert old.read_text() == "asked for"
    assert not refused


def test_threads(old) -> None:
    """Those of a notebook or logger go on where only the replay is meant."""
    with unchanged_files(["."], "Write elsewhere.", own_thread=True):
        thread = threading.Thread(target=lambda: old.write_text("thread"))
        thread.start()
        thread.join()
        with pytest.raises(FileRefusedError), unchanged_files([], "The outer one holds."):
            old.write_text("own")
    assert old.read_text() == "thread"


def test_log_files_of_the_run_stay_where_they_are(tmp_path):
    """They are opened when training begins, not when the trainer is made, nor at the close after a replay."""

    def loggers() -> list[Any]:
        made = {"a.csv": CSVLogger, "a.txt": FileLogger, "a.jsonl": JSONLinesLogger}
        return [cls(str(tmp_path / name)) for name, cls in made.items()]

    with trainer(tmp_path, loggers=loggers()) as run:
        run.fit()
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    at = str(tmp_path / ".at")
    for call in (lambda one: one.replay(12), lambda one: one.blame(12), lambda one: one.checkpoint_at(11, at)):
        with trainer(tmp_path, loggers=loggers()) as again:
            call(again)
        assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".at"} == files
    with trainer(tmp_path, loggers=loggers()) as next_run, pytest.raises(ValueError, match="at batch"):
        next_run.replay(12, run=max(tmp_path.glob("*.pt")))  # a failed one, too
    assert {path: path.read_bytes() for path in tmp_path.iterdir() if path.name != ".at"} == files


def test_a_callback_that_writes_is_refused(tmp_path, monkeypatch):
    """Not outside of the replay, and not what checkpoint_at is asked to save."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.txt").write_text("own")

    class Writes(Callback):
        def batch_end(self, state, logger):
            with Path("own.txt").open("w") as file:
                file.write("new")

    with trainer(tmp_path / "out") as run:
        run.fit()
    with (
        trainer(tmp_path / "out", [Writes()]) as again,
        pytest.raises(FileRefusedError, match=r"Writes.batch_end \(.*class Writes"),
    ):
        again.replay(12)
    assert (tmp_path / "own.txt").read_text() == "own"
    with trainer(tmp_path / "out") as again:
        again.checkpoint_at(11, str(tmp_path / "own.txt"))
    (tmp_path / "own.txt").write_text("new")
