from __future__ import annotations

import functools
from pathlib import Path

import pytest

from composer.storage import atomic_upload
from composer.storage.atomic_upload import check_destination, deliver
from composer.storage.errors import ObjectStoreTransientError
from composer.storage.folder import Folder


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "made"
    path.write_text("new")
    return path


@pytest.mark.parametrize("uri", [False, True])
def test_existing_path_is_replaced_by_a_copy(made: Path, tmp_path: Path, uri: bool) -> None:
    target = tmp_path / "deep/er/net"
    for content in ("old", "new"):
        made.write_text(content)
        deliver(made, f"file://{target}" if uri else target)
        assert target.read_text() == content
    assert made.exists()
    assert [file.name for file in target.parent.iterdir()] == ["net"]


def test_existing_file_is_kept_if_copying_fails(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(source: Path, target: Path) -> None:
        Path(target).write_text("ha")
        raise OSError(28, "No space left on device")

    target = tmp_path / "folder/net"
    deliver(made, target)
    monkeypatch.setattr(atomic_upload.shutil, "copyfile", fail)
    monkeypatch.setattr(atomic_upload, "call_with_retries", lambda function, should_retry: function())
    with pytest.raises(OSError, match="No space"):
        deliver(made, target)
    assert [(file.name, file.read_text()) for file in target.parent.iterdir()] == [("net", "new")]


def test_uris(made: Path) -> None:
    check_destination("memory://delivery/deep/net")
    deliver(made, "memory://delivery/deep/net")
    assert Folder("memory://delivery").read_text("deep/net") == "new"


def test_object_store_upload_is_retried(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = functools.partial(atomic_upload.call_with_retries, pause=lambda seconds: None)
    monkeypatch.setattr(atomic_upload, "call_with_retries", at_once)

    class Store:
        def __init__(self) -> None:
            self.calls: list[tuple[str, str]] = []

        def upload_object(self, object_name, filename):
            self.calls.append((object_name, Path(filename).read_text()))
            if len(self.calls) < 2:
                raise ObjectStoreTransientError("busy")

    store = Store()
    check_destination("run/net", store)
    deliver(made, "run/net", store)
    assert store.calls == [("run/net", "new")] * 2


def test_unreachable_destinations() -> None:
    with pytest.raises(TypeError, match=r"must have a method upload_object\(object_name, filename\); got 3"):
        check_destination("net", 3)
    with pytest.raises(ValueError, match="has no file name"):
        check_destination("s3://net")
    with pytest.raises(ValueError, match=r"memori.*Did you mean 'memory'"):
        check_destination("memori://bucket/net")
