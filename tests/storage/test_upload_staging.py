from __future__ import annotations

import os
from pathlib import Path

import pytest

from composer.storage.upload_staging import Staging, move_into_place


@pytest.fixture
def staging():
    staging = Staging()
    yield staging
    staging.clear()


def test_staged_file_outlives_the_original(staging, tmp_path) -> None:
    path = tmp_path / "a.pt"
    path.write_text("weights")
    kept = staging.add(path, "folder/b.pt")
    again = staging.add(path, "folder/b.pt")
    path.unlink()
    assert (kept.name, kept.read_text(), again.read_text()) == ("b.pt", "weights", "weights")
    staging.remove(kept)
    assert (kept.exists(), again.exists()) == (False, True)
    staging.clear()
    assert not again.exists()
    assert not list(tmp_path.iterdir())


def test_a_later_version_is_another_file(staging, tmp_path) -> None:
    """Checkpoints are replaced by renaming, which leaves the link as it is."""
    path = tmp_path / "latest.pt"
    path.write_text("old")
    kept = staging.add(path, "latest.pt")
    (tmp_path / "new").write_text("new")
    (tmp_path / "new").replace(path)
    assert kept.read_text() == "old"


def test_folders(staging, tmp_path) -> None:
    (tmp_path / "ep1" / "deep").mkdir(parents=True)
    (tmp_path / "ep1" / "deep" / "shard").write_text("x")
    kept = staging.add(tmp_path / "ep1", "run/ep1")
    assert [path.relative_to(kept).as_posix() for path in kept.rglob("*") if path.is_file()] == ["deep/shard"]


def test_copies_without_hard_link_support(staging, tmp_path, monkeypatch) -> None:
    def refuse(*args, **kwargs):
        raise OSError("cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "a"
    path.write_text("x")
    kept = staging.add(path, "a")
    path.write_text("changed")
    assert kept.read_text() == "x"


def test_downloaded_file_replaces_the_existing_one(tmp_path) -> None:
    target = tmp_path / "target"
    for round, names in enumerate((["a"], ["b"], ["c", "deep/d"], ["e", "f"], ["g"])):
        folder = tmp_path / f"fetched{round}"
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(name)
        move_into_place(folder, target)
        if len(names) == 1:
            assert target.read_text() == names[0]
        else:
            found = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
            assert found == names


def test_a_missing_file(staging) -> None:
    with pytest.raises(FileNotFoundError):
        staging.add(Path("/nowhere/at/all"), "x")
