"""Against a local S3 server."""

from __future__ import annotations

import pytest
from moto.server import ThreadedMotoServer

from composer.storage.downloads import fetched
from composer.storage.object_stores import S3ObjectStore
from composer.storage.uploads import UploadQueue
from composer.storage.uris import filesystem

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def endpoint():
    import logging

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def store(endpoint, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("S3_ENDPOINT_URL", endpoint)
    store = S3ObjectStore("bucket", "team", "us-east-1", endpoint)
    files, _ = filesystem("s3://bucket")
    files.mkdirs("bucket", exist_ok=True)
    return store


def test_round_trip(store, tmp_path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 200_000)
    store.upload_object("run/a", path)
    assert store.get_object_size("run/a") == 200_000
    assert store.list_objects("run/") == ["run/a"]
    store.download_object("run/a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == path.read_bytes()
    with fetched("s3://bucket/team/run/a") as local:
        assert local.read_bytes() == path.read_bytes()
    with pytest.raises(FileNotFoundError):
        store.download_object("absent", tmp_path / "c")


def test_multipart_upload_and_acl(store, endpoint, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("S3_CANNED_ACL", "public-read")
    path = tmp_path / "a"
    path.write_bytes(b"x" * 12_000_000)
    parts = S3ObjectStore("bucket", transfer_config={"multipart_chunksize": 5 << 20, "max_concurrency": 2})
    parts.upload_object("large", path)
    assert parts.get_object_size("large") == 12_000_000


def test_missing_bucket_fails_immediately(store, tmp_path) -> None:
    (tmp_path / "a").touch()
    calls = []

    def upload() -> None:
        calls.append(1)
        S3ObjectStore("nowhere").upload_object("a", tmp_path / "a")

    queue = UploadQueue(num_attempts=4, initial_backoff=0.001)
    queue.submit("upload of a", upload)
    with pytest.raises(FileNotFoundError):
        queue.close()
    assert calls == [1]


def test_files_of_a_run_with_integer_seconds(store) -> None:
    """The store's clock counts seconds, which orders files no finer."""
    folder = store.folder
    folder.write_text("ep1.pt", "x")
    folder.write_text("ep2.pt", "x")
    entries = {entry.name: entry.modified for entry in folder.entries()}
    assert set(entries) >= {"ep1.pt", "ep2.pt"}
    assert entries["ep2.pt"] >= entries["ep1.pt"] > 1e9
