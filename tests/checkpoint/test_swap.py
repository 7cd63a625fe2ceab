"""Atomically swap folders."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from composer.checkpoint import swap as module
from composer.checkpoint.sharded_reader import read_sharded
from composer.checkpoint.sharded_writer import shard_checkpoint, write_sharded
from composer.checkpoint.swap import swap_paths

ROOT = Path(__file__).resolve().parents[2]


def can_swap(folder: Path) -> bool:
    (folder / "one").mkdir()
    (folder / "other").touch()
    return swap_paths(folder / "one", folder / "other")


def save(folder: Path, value: float) -> None:
    write_sharded(shard_checkpoint({"state": {"model": {"weight": torch.full((2,), value)}}}), folder)


def test_swap(tmp_path) -> None:
    if not can_swap(tmp_path):
        pytest.skip("the system cannot exchange names")
    assert (tmp_path / "one").is_file() and (tmp_path / "other").is_dir()
    with pytest.raises(FileNotFoundError) as error:
        swap_paths(tmp_path / "one", tmp_path / "absent")
    assert (error.value.filename, error.value.filename2) == (str(tmp_path / "one"), str(tmp_path / "absent"))


def test_system_without_support(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "_renameat2", lambda: None)
    assert not can_swap(tmp_path)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP])
def test_file_system_without_support(number, tmp_path, monkeypatch) -> None:
    def refused(*arguments) -> int:
        module.ctypes.set_errno(number)
        return -1

    monkeypatch.setattr(module, "_renameat2", lambda: refused)
    assert not can_swap(tmp_path)
    assert (tmp_path / "one").is_dir()


@pytest.mark.parametrize("way", ["one step", "two steps"])
@pytest.mark.parametrize("before", ["folder", "file", "link", "broken link"])
def test_existing_target_is_replaced(way, before, tmp_path, monkeypatch) -> None:
    if way == "two steps":
        monkeypatch.setattr(module, "_renameat2", lambda: None)
    folder, kept = tmp_path / "ep1", tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    if before == "folder":
        save(folder, 1.0)
    elif before == "file":
        folder.touch()
    else:
        folder.symlink_to(kept if before == "link" else tmp_path / "nothing")
    save(folder, 2.0)
    assert read_sharded(folder)["state"]["model"]["weight"].tolist() == [2.0, 2.0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ep1", "kept"]
    assert (kept / "file").exists() and not folder.is_symlink()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")
def test_process_killed_while_replacing_leaves_a_complete_folder(tmp_path) -> None:
    at_once = can_swap(tmp_path)
    command = [sys.executable, "-m", "tests.checkpoint.killed_while_replacing", str(tmp_path / "ep1"), "15"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    if not at_once:
        pytest.skip("the system cannot exchange names")
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) == 15 and all(one["whole"] and one["absent"] == 0 for one in found)
    numbers = [one["number"] for one in found]
    assert numbers == sorted(set(numbers)) and numbers[0] > 0
