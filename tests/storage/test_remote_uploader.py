from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from composer.storage.object_store import UriObjectStore
from composer.storage.remote_uploader import RemoteFilesExistingCheckStatus, RemoteUploader, Uploads, store_of
from composer.storage.upload_staging import Staging
from composer.storage.uploads import UploadQueue


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.pt"
    path.write_text("weights")
    return path


@pytest.fixture
def link_to_ep1(tmp_path):
    link = tmp_path / "latest.pt.symlink"
    link.write_text("ep1.pt\n")
    return link


def until(true) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.fixture
def uploads(faulty):
    uploads = Uploads(UriObjectStore("faulty://bucket"), UploadQueue(3, initial_backoff=0.001), Staging())
    yield uploads
    uploads.queue.close()
    uploads.staging.clear()


def test_source_may_be_removed_and_staged_copies_are_deleted(uploads, faulty, path, tmp_path) -> None:
    gate = threading.Event()
    faulty.puts.append(gate)
    uploads.add("run/a.pt", path, overwrite=False)
    path.unlink()
    gate.set()
    uploads.queue.wait()
    assert uploads.store.get_object_size("run/a.pt") == 7
    kept = uploads.staging.add(tmp_path, "x")
    assert [one.name for one in kept.parent.parent.iterdir()] == [kept.parent.name]


def test_later_upload_with_one_name_wins(uploads, faulty, path) -> None:
    gate = threading.Event()
    faulty.puts.append(gate)
    uploads.add("log.txt", path, overwrite=True)
    path.unlink()
    path.write_text("newer weights")
    uploads.add("log.txt", path, overwrite=True)
    with pytest.raises(FileExistsError, match="being uploaded already"):
        uploads.add("log.txt", path, overwrite=False)
    gate.set()
    uploads.queue.wait()
    assert uploads.store.get_object_size("log.txt") == len("newer weights")


def test_link_is_uploaded_after_its_target(uploads, faulty, path, link_to_ep1) -> None:
    gate = threading.Event()
    faulty.puts.append(gate)
    uploads.add("ep1.pt", path, overwrite=True)
    until(lambda: not faulty.puts)  # or another upload may get the gate
    (link,) = uploads.add("latest.pt.symlink", link_to_ep1, overwrite=True)
    (other,) = uploads.add("log.txt", path, overwrite=True)
    uploads.queue.wait(jobs=[other])
    assert not link.done
    gate.set()
    uploads.queue.wait()
    assert [name for name in faulty.order if name != "log.txt"] == ["ep1.pt", "latest.pt.symlink"]


def test_link_is_skipped_if_its_target_fails(uploads, faulty, path, link_to_ep1) -> None:
    gate = threading.Event()
    faulty.puts.append(gate)
    uploads.add("run/log.txt", path, overwrite=True)
    until(lambda: not faulty.puts)
    faulty.puts.append(PermissionError("no"))
    uploads.add("run/ep1.pt", path, overwrite=True)
    uploads.add("run/latest.pt.symlink", link_to_ep1, overwrite=True)
    gate.set()
    with pytest.raises(PermissionError):
        uploads.queue.wait()
    assert uploads.store.list_objects() == ["run/log.txt"]


def test_link_is_skipped_if_its_target_has_failed(uploads, faulty, path, link_to_ep1) -> None:
    faulty.puts.append(PermissionError("no"))
    (target,) = uploads.add("run/ep1.pt", path, overwrite=True)
    until(lambda: target.done)
    uploads.add("run/latest.pt.symlink", link_to_ep1, overwrite=True)
    with pytest.raises(PermissionError):
        uploads.queue.wait()
    assert uploads.store.list_objects() == []


def test_unrelated_failures_do_not_skip_links(uploads, faulty, path, link_to_ep1) -> None:
    faulty.puts.append(PermissionError("no"))
    uploads.add("run/log.txt", path, overwrite=True)
    with pytest.raises(PermissionError):
        uploads.queue.wait()
    uploads.add("run/ep1.pt", path, overwrite=True)
    uploads.add("run/latest.pt.symlink", link_to_ep1, overwrite=True)
    uploads.queue.wait()
    assert uploads.store.list_objects() == ["run/ep1.pt", "run/latest.pt.symlink"]


def test_a_target_that_failed_and_then_arrived_can_be_linked(uploads, faulty, path, link_to_ep1) -> None:
    faulty.puts.append(PermissionError("no"))
    uploads.add("ep1.pt", path, overwrite=True)
    with pytest.raises(PermissionError):
        uploads.queue.wait()
    uploads.add("ep1.pt", path, overwrite=False)
    uploads.add("latest.pt.symlink", link_to_ep1, overwrite=True)
    uploads.queue.wait()
    assert uploads.store.list_objects() == ["ep1.pt", "latest.pt.symlink"]


def test_existing_files_are_replaced_only_on_request(uploads, path) -> None:
    uploads.add("a", path, overwrite=False)
    uploads.queue.wait()
    uploads.add("a", path, overwrite=False)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        uploads.queue.wait()
    uploads.add("a", path, overwrite=True)
    uploads.queue.wait()


def test_folders(uploads, tmp_path) -> None:
    (tmp_path / "ep1" / "deep").mkdir(parents=True)
    (tmp_path / "ep1" / "deep" / "shard").write_text("x")
    uploads.add("run/ep1", tmp_path / "ep1", overwrite=False)
    uploads.queue.wait()
    assert uploads.store.list_objects() == ["run/ep1/deep/shard"]


def test_missing_file_fails_immediately(uploads, tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        uploads.add("a", tmp_path / "absent", overwrite=True)


def test_uploader(faulty, path) -> None:
    uploader = RemoteUploader("faulty://bucket/run", num_attempts=2)
    uploader.init()
    status = uploader.check_remote_files_exist_async(["run/a.pt"], 30, 0.01)
    uploader.upload_file_async("run/a.pt", path, overwrite=False)
    uploader.wait()
    uploader.check_workers()
    assert status.result(10) is RemoteFilesExistingCheckStatus.EXIST
    faulty.puts.append(PermissionError("no"))
    uploader.upload_file_async("run/b.pt", path, overwrite=False)
    with pytest.raises(PermissionError):
        uploader.wait_and_close()


def test_poll_returns(monkeypatch, faulty) -> None:
    uploader = RemoteUploader("faulty://bucket")

    def look() -> Future[RemoteFilesExistingCheckStatus]:
        return uploader.check_remote_files_exist_async(["absent"], 0.0, 0.01)

    assert look().result(10) is RemoteFilesExistingCheckStatus.TIMEOUT

    def refuse(name: str) -> int:
        raise PermissionError(name)

    monkeypatch.setattr(uploader.remote_backend, "get_object_size", refuse)
    assert look().result(10) is RemoteFilesExistingCheckStatus.ERROR
    uploader.wait_and_close()


def test_stores_by_uri_and_arguments() -> None:
    assert store_of("s3://bucket/run", {"prefix": "p"}).get_uri("a") == "s3://bucket/p/a"
    assert store_of("sftp://me@server/run", {"cwd": "data"}).get_uri("a") == "sftp://me@server:22/data/a"
    assert store_of("memory://bucket", {"skip_instance_cache": True}).list_objects() == []
    with pytest.raises(ValueError, match="is a local path"):
        store_of("runs")
