"""Files of callbacks are written into the folder of the trial, and those of the user stay as they are."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from composer.diagnosis.redirected_writes import redirect_writes


def test_written_files_are_redirected_and_read_again(tmp_path: Path) -> None:
    mine, trial = tmp_path / "mine", tmp_path / "trial"
    mine.mkdir()
    trial.mkdir()
    (mine / "log.txt").write_text("old\n")
    with redirect_writes(trial, lambda: True):
        with (mine / "log.txt").open("a") as file:
            file.write("new\n")
        assert (mine / "log.txt").read_text() == "old\nnew\n"  # the callback finds what it has written
        (mine / "deep").mkdir()
        (mine / "deep" / "values.bin").write_bytes(b"1")
        os.replace(mine / "deep" / "values.bin", mine / "deep" / "last.bin")  # noqa: PTH105 - also os is redirected
        (mine / "log.txt").unlink()
    assert (mine / "log.txt").read_text() == "old\n"
    assert sorted(path.name for path in mine.iterdir()) == ["log.txt"]
    assert [path.name for path in trial.rglob("last.bin")] == ["last.bin"]


def test_others_write_as_usual(tmp_path: Path) -> None:
    trial = tmp_path / "trial"
    trial.mkdir()
    with redirect_writes(trial, lambda: False):
        (tmp_path / "cache.bin").write_bytes(b"1")
    assert (tmp_path / "cache.bin").exists()
    (tmp_path / "after.bin").write_bytes(b"1")
    assert not list(trial.iterdir())


def test_no_connection_to_other_hosts(tmp_path: Path) -> None:
    refused = pytest.raises(ConnectionRefusedError, match="trial")
    with redirect_writes(tmp_path, lambda: True), socket.socket() as connection, refused:
        connection.connect(("192.0.2.1", 80))
