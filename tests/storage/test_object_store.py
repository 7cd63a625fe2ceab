from __future__ import annotations

import pytest

from composer.storage.errors import ObjectStoreTransientError
from composer.storage.object_store import (
    ObjectStore,
    UriObjectStore,
    build_remote_backend,
    list_remote_objects,
    maybe_create_object_store_from_uri,
    validate_credentials,
)
from composer.storage.object_stores import GCSObjectStore, OCIObjectStore, S3ObjectStore, SFTPObjectStore
from composer.storage.remote_uploader import RemoteUploader
from tests.storage.faulty import HalfError


def test_round_trip(tmp_path) -> None:
    path = tmp_path / "a"
    path.write_text("text")
    told: list[tuple[int, int]] = []
    with UriObjectStore("memory://bucket/team") as store:
        store.upload_object("run/a", path, lambda done, total: told.append((done, total)))
        assert store.get_object_size("run/a") == 4
        assert store.list_objects() == store.list_objects("ru") == ["run/a"]
        assert store.list_objects("x") == []
        assert store.get_uri("run/a") == "memory://bucket/team/run/a"
        with pytest.raises(FileExistsError, match="overwrite=True"):
            store.download_object("run/a", path)
        store.download_object("run/a", tmp_path / "b")
        path.write_text("other")
        store.download_object("run/a", path, overwrite=True)
        for action in (store.get_object_size, lambda name: store.download_object(name, tmp_path / "c")):
            with pytest.raises(FileNotFoundError):
                action("absent")
    assert path.read_text() == (tmp_path / "b").read_text() == "text"
    assert told[-1] == (4, 4)


def test_partial_upload_is_reported(faulty, tmp_path) -> None:
    (tmp_path / "a").write_text("text")
    faulty.puts.append(HalfError)
    with pytest.raises(ObjectStoreTransientError, match="only 2 of 4 bytes"):
        UriObjectStore("faulty://bucket").upload_object("a", tmp_path / "a")


def test_custom_store_must_implement_a_method() -> None:
    class Mine(ObjectStore):
        def get_uri(self, object_name: str) -> str:
            return f"mine://{object_name}"

    with Mine() as store:
        assert store.get_uri("a") == "mine://a"
        with pytest.raises(NotImplementedError, match="Mine must override"):
            store.list_objects()


@pytest.mark.parametrize(
    ("uri", "kind", "name"),
    [
        ("s3://bucket/run/a.pt", S3ObjectStore, "s3://bucket/x"),
        ("gs://bucket/run", GCSObjectStore, "gs://bucket/x"),
        ("oci://bucket@space/run", OCIObjectStore, "oci://bucket@space/x"),
        ("azure://box/run", UriObjectStore, "azure://box/x"),
        ("hf://datasets/me", UriObjectStore, "hf://datasets/x"),
        ("sftp://me@server:2222/run", UriObjectStore, "sftp://me@server:2222/x"),
    ],
)
def test_by_uri(uri, kind, name) -> None:
    store = maybe_create_object_store_from_uri(uri)
    assert type(store) is kind
    assert store.get_uri("x") == name


@pytest.mark.parametrize("uri", ["", "runs/a.pt", "/runs/a.pt", "file:///runs/a.pt"])
def test_local_paths_have_no_store(uri) -> None:
    assert maybe_create_object_store_from_uri(uri) is None


@pytest.mark.parametrize("uri", ["wandb://run/a", "dbfs:/Volumes/a", "nothing://a"])
def test_schemes_without_a_store(uri) -> None:
    with pytest.raises(NotImplementedError, match="is not supported"):
        maybe_create_object_store_from_uri(uri)


def test_by_name() -> None:
    assert isinstance(build_remote_backend("s3", {"bucket": "b"}), S3ObjectStore)
    assert isinstance(build_remote_backend("sftp", {"host": "server"}), SFTPObjectStore)
    with pytest.raises(ValueError, match="Did you mean 'sftp'"):
        build_remote_backend("stfp", {})


def test_credentials_and_listing(faulty) -> None:
    store = UriObjectStore("faulty://bucket")
    validate_credentials(store, "run/.valid")
    assert list_remote_objects("faulty://bucket/run") == ["run/.valid"]
    with pytest.raises(ValueError, match="is a local path"):
        list_remote_objects("runs")
    faulty.puts.append(PermissionError("no"))
    with pytest.raises(PermissionError):
        validate_credentials(store, "run/.valid")


def test_arguments_reach_the_file_system(monkeypatch) -> None:
    seen = {}

    def fake(uri, options):
        seen[uri] = options
        raise ConnectionError

    monkeypatch.setattr("composer.storage.folder.filesystem", fake)
    monkeypatch.setenv("GCS_KEY", "k")
    monkeypatch.setenv("GCS_SECRET", "s")
    monkeypatch.setenv("COMPOSER_SFTP_KEY_FILE", "key")
    stores: list[ObjectStore] = [
        S3ObjectStore("s3://b", "p/", "eu", "http://here", "k", "s", "t", {"retries": 1}, {"max_concurrency": 3}),
        S3ObjectStore("c", transfer_config={"multipart_chunksize": 5}),
        GCSObjectStore("g"),
        OCIObjectStore("o@n"),
        SFTPObjectStore("server", 2222, "me", "pw", "known", cwd="data", connect_kwargs={"timeout": 3}),
    ]
    for store in stores:
        with pytest.raises(ConnectionError):
            store.list_objects()
    assert seen == {
        "s3://b/p": {
            "endpoint_url": "http://here",
            "key": "k",
            "secret": "s",
            "token": "t",
            "client_kwargs": {"region_name": "eu"},
            "config_kwargs": {"retries": 1},
            "max_concurrency": 3,
        },
        "s3://c": {"default_block_size": 5},
        "s3://g": {"endpoint_url": "https://storage.googleapis.com", "key": "k", "secret": "s"},
        "oci://o@n": {},
        "sftp://me@server:2222/data": {
            "username": "me",
            "password": "pw",
            "known_hosts_filename": "known",
            "key_filename": "key",
            "missing_host_key_policy": "RejectPolicy",
            "timeout": 3,
        },
    }


def test_invalid_arguments() -> None:
    with pytest.raises(ValueError, match="Did you mean 'max_concurrency'"):
        S3ObjectStore("b", transfer_config={"max_concurency": 1})
    with pytest.raises(ValueError, match="missing_host_key_policy"):
        SFTPObjectStore("server", missing_host_key_policy="Reject")


def test_attributes_that_scripts_read(monkeypatch) -> None:
    monkeypatch.setenv("COMPOSER_SFTP_KEY_FILE", "key")
    server = SFTPObjectStore("localhost", 23, "test_user", known_hosts_filename="hosts", cwd="x")
    assert (server.key_filename, server.known_hosts_filename, server.cwd) == ("key", "hosts", "x")
    assert SFTPObjectStore("localhost", 23, "test_user").get_uri("name") == "sftp://test_user@localhost:23/name"
    assert SFTPObjectStore("localhost", 23, "a@b").get_uri("name") == "sftp://a%40b@localhost:23/name"
    assert SFTPObjectStore("sftp://me@localhost/x", username="you").get_uri("name").startswith("sftp://me@localhost")
    assert S3ObjectStore("my-bucket", prefix="folder/subfolder").get_key("name") == "folder/subfolder/name"
    assert S3ObjectStore("my-bucket").get_key("a/name") == "a/name"
    bucket = GCSObjectStore("gs://g", "p/")
    assert (bucket.bucket_name, bucket.get_key("name")) == ("g", "p/name")
    uploader = RemoteUploader("memory://bucket/run", num_attempts=2)
    assert (uploader.remote_backend_name, uploader.remote_bucket_name, uploader.path) == ("memory", "bucket", "run")
    assert (uploader.backend_kwargs, uploader.num_attempts) == ({}, 2)
