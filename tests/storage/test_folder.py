from __future__ import annotations

import pytest

from composer.storage.errors import ObjectStoreTransientError
from composer.storage.folder import Folder
from tests.storage.faulty import HalfError

CONTENT = bytes(range(256)) * 40


@pytest.fixture(params=["memory://bucket/run", "memory://bucket", "faulty://bucket/run", "file"])
def folder(request, tmp_path, faulty) -> Folder:
    return Folder(f"file://{tmp_path}/run" if request.param == "file" else request.param)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(CONTENT)
    return path


def test_round_trip(folder, path, tmp_path) -> None:
    told: list[tuple[int, int]] = []
    folder.upload(path, "deep/b.bin")
    assert folder.exists("deep/b.bin")
    assert not folder.exists("deep")
    folder.download("deep/b.bin", tmp_path / "new" / "c.bin", lambda done, total: told.append((done, total)))
    assert (tmp_path / "new" / "c.bin").read_bytes() == CONTENT
    assert [one.name for one in (tmp_path / "new").iterdir()] == ["c.bin"]
    assert told[-1] == (len(CONTENT), len(CONTENT))


def test_listing(folder, path) -> None:
    assert folder.names() == []
    assert folder.entries() == []
    for name in ("a.bin", "b/c.bin", "b/d.bin", "be.bin"):
        folder.upload(path, name)
    assert folder.names() == ["a.bin", "b/c.bin", "b/d.bin", "be.bin"]
    assert folder.names("b") == ["b/c.bin", "b/d.bin", "be.bin"]
    assert folder.names("b/d") == ["b/d.bin"]
    entries = folder.entries()
    assert [(entry.name, entry.size) for entry in entries] == [("a.bin", len(CONTENT)), ("be.bin", len(CONTENT))]
    assert all(entry.modified > 1e9 for entry in entries)


def test_a_file_is_replaced_and_removed(folder, path) -> None:
    folder.write_text("a.txt", "old")
    folder.write_text("a.txt", "new")
    assert folder.read_text("a.txt") == "new"
    folder.remove("a.txt")
    folder.remove("a.txt")
    assert folder.names() == []


def test_missing_files(folder, tmp_path) -> None:
    for action in (
        lambda: folder.download("a", tmp_path / "here" / "a"),
        lambda: folder.entry("a"),
        lambda: folder.read_text("a"),
    ):
        with pytest.raises(FileNotFoundError):
            action()
    assert not list((tmp_path / "here").iterdir())


def test_probe_leaves_nothing(folder) -> None:
    folder.probe()
    assert folder.names() == []


@pytest.mark.parametrize("fault", [HalfError, ConnectionResetError()])
def test_failed_upload_keeps_the_existing_file(faulty, path, fault) -> None:
    folder = Folder("faulty://bucket")
    folder.write_text("a.txt", "old")
    faulty.puts.append(fault)
    with pytest.raises((ObjectStoreTransientError, ConnectionResetError)):
        folder.upload(path, "a.txt")
    assert folder.names() == ["a.txt"]
    assert folder.read_text("a.txt") == "old"


@pytest.mark.parametrize("fault", [HalfError, ConnectionResetError()])
def test_failed_download_keeps_the_existing_file(faulty, tmp_path, fault) -> None:
    folder = Folder("faulty://bucket")
    folder.write_text("a.txt", "new text")
    here = tmp_path / "a.txt"
    here.write_text("old")
    faulty.gets.append(fault)
    with pytest.raises((ObjectStoreTransientError, ConnectionResetError)):
        folder.download("a.txt", here)
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("a.txt", "old")]


def test_file_growing_during_upload_is_not_an_error(faulty, path) -> None:
    folder = Folder("faulty://bucket")
    put = faulty.put_file

    def grow(self, lpath, rpath, **kwargs):
        with path.open("ab") as file:
            file.write(b"more")
        put(self, lpath, rpath, **kwargs)

    faulty.put_file = grow
    try:
        folder.upload(path, "log.txt")
    finally:
        faulty.put_file = put
    assert folder.entry("log.txt").size == len(CONTENT) + 4


def test_broken_connection_is_reopened(faulty, path) -> None:
    folder = Folder("faulty://bucket")
    folder.write_text("a", "a")
    before = folder._opened
    faulty.puts.append(ConnectionResetError())
    with pytest.raises(ConnectionResetError):
        folder.upload(path, "b")
    assert folder._opened is None
    folder.upload(path, "b")
    assert folder._opened is not None and folder._opened is not before


def test_removing_everything() -> None:
    folder = Folder("memory://everything/run")
    for name in ("a.txt", "deep/b.txt"):
        folder.write_text(name, "text")
    Folder("memory://everything").write_text("beside.txt", "text")
    folder.remove_all()
    folder.remove_all()
    assert Folder("memory://everything").names() == ["beside.txt"]
