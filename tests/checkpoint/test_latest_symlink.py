"""The symlink to the newest checkpoint."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from composer.checkpoint.latest_symlink import create_symlink_file, extract_path_from_symlink, link, resolve


def files(folder: Path, *names: str) -> list[Path]:
    paths = [folder / name for name in names]
    for path in paths:
        path.write_text(path.name)
    return paths


def test_link_is_updated_and_relative(tmp_path) -> None:
    first, second = files(tmp_path, "1.pt", "2.pt")
    pointer = tmp_path / "latest.pt"
    assert resolve(pointer) is None
    for target in (first, second):
        link(pointer, target)
        assert resolve(pointer) == target
        assert str(pointer.readlink()) == target.name
    (tmp_path / "a").mkdir()
    link(tmp_path / "a" / "latest.pt", first)
    assert (tmp_path / "a" / "latest.pt").read_text() == "1.pt"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.pt", "2.pt", "a", "latest.pt"]


def test_dangling_link_is_ignored(tmp_path) -> None:
    (target,) = files(tmp_path, "1.pt")
    link(tmp_path / "latest.pt", target)
    target.unlink()
    assert resolve(tmp_path / "latest.pt") is None


def test_link_is_replaced_atomically(tmp_path) -> None:
    targets = files(tmp_path, "1.pt", "2.pt")
    pointer = tmp_path / "latest.pt"
    link(pointer, targets[0])
    missing = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            if not pointer.exists():
                missing.append(True)

    thread = threading.Thread(target=watch)
    thread.start()
    for number in range(200):
        link(pointer, targets[number % 2])
    done.set()
    thread.join()
    assert not missing


@pytest.mark.parametrize("error", [OSError, NotImplementedError])
def test_without_symlink_support(error, tmp_path, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise error("no links here")

    first, second = files(tmp_path, "1.pt", "2.pt")
    monkeypatch.setattr(Path, "symlink_to", refuse)
    pointer = tmp_path / "latest.pt"
    for target in (first, second):
        link(pointer, target)
        assert resolve(pointer) == target
    assert extract_path_from_symlink(tmp_path / "latest.pt.symlink") == "2.pt"
    second.unlink()
    assert resolve(pointer) is None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.pt", "latest.pt.symlink"]


def test_the_name_of_the_text_file(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"destination_filename must end in '.symlink'"):
        create_symlink_file("a.pt", tmp_path / "latest.pt")
