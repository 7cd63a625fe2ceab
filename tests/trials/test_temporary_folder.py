"""Temporary folders of trials: none stays, also after SIGKILL, and none that is in use is removed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from composer.trials.temporary_folder import temporary_folder

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no flock")

PROGRAM = """
import sys, time
from composer.trials.temporary_folder import temporary_folder
with temporary_folder() as folder:
    (folder / "trial").mkdir()
    (folder / "trial" / "log.txt").write_text("x")
    (folder / "link").symlink_to(sys.argv[1], target_is_directory=True)
    print(folder, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of this test and of its processes."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def other(tmp_path: Path, temporary: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process with a folder of its own, which has a link to a folder that is not its own."""
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "data").write_text("x")
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(kept)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process, process.stdout:
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_the_folder_of_a_killed_process_is_removed_by_the_next(
    tmp_path: Path, other: tuple[subprocess.Popen[str], Path]
) -> None:
    process, folder = other
    with temporary_folder():
        assert (folder / "trial" / "log.txt").exists()  # in use
    process.kill()
    process.wait()
    assert folder.exists()
    with temporary_folder() as own:
        assert not folder.exists()
        assert own.exists()
    assert (tmp_path / "kept" / "data").exists()


def test_two_folders_of_one_process(temporary: Path) -> None:
    with temporary_folder() as one, temporary_folder() as two:
        assert one.exists() and two.exists()
    assert not [*temporary.iterdir()]


def test_what_is_not_known_to_be_stale_stays(tmp_path: Path, temporary: Path) -> None:
    """A folder without a lock may be that of a process that is about to lock it, or somebody else's."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "owner.lock").touch()
    (temporary / "composer-trials-link").symlink_to(outside, target_is_directory=True)
    (temporary / "composer-trials-file").touch()
    (temporary / "composer-trials-new").mkdir()
    (temporary / "composer-trials-loop").mkdir()
    (temporary / "composer-trials-loop" / "owner.lock").symlink_to(outside / "owner.lock")
    (temporary / "other").mkdir()
    before = {*temporary.iterdir()}
    with temporary_folder():
        pass
    assert {*temporary.iterdir()} == before
    assert (outside / "owner.lock").exists()


def test_the_folder_of_another_user_stays(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (temporary / "composer-trials-x").mkdir()
    (temporary / "composer-trials-x" / "owner.lock").touch()
    monkeypatch.setattr("os.getuid", lambda: 12345)
    with temporary_folder():
        assert (temporary / "composer-trials-x").exists()
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with temporary_folder():
        assert not (temporary / "composer-trials-x").exists()
