"""Against a local SFTP server."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("paramiko")

import paramiko

from composer.storage.folder import Folder
from composer.storage.object_stores import SFTPObjectStore
from composer.storage.uploads import UploadQueue
from tests.storage.servers import sftp_server

pytestmark = pytest.mark.filterwarnings("ignore:.*TripleDES.*")


@pytest.fixture
def server(tmp_path):
    logging.getLogger("paramiko").setLevel(logging.CRITICAL)
    with sftp_server(tmp_path) as server:
        yield server


def store_at(server, **arguments) -> SFTPObjectStore:
    given = {
        "port": server.port,
        "username": "me",
        "password": "secret",
        "known_hosts_filename": str(server.known_hosts),
        "connect_kwargs": {"look_for_keys": False, "allow_agent": False},
        **arguments,
    }
    return SFTPObjectStore("127.0.0.1", **given)


def test_round_trip(server, tmp_path) -> None:
    path = tmp_path / "a"
    path.write_text("text")
    with store_at(server, cwd="data/team") as store:
        store.upload_object("run/a", path)
        store.upload_object("run/a", path)
        assert (server.root / "data" / "team" / "run" / "a").read_text() == "text"
        assert store.list_objects("run/") == ["run/a"]
        assert store.get_object_size("run/a") == 4
        store.download_object("run/a", tmp_path / "b")
        with pytest.raises(FileNotFoundError):
            store.get_object_size("run/absent")
    assert (tmp_path / "b").read_text() == "text"


def test_by_uri(server) -> None:
    options = {"known_hosts_filename": str(server.known_hosts), "look_for_keys": False, "allow_agent": False}
    folder = Folder(f"sftp://me:secret@127.0.0.1:{server.port}/run", options)
    folder.write_text("a", "text")
    assert [(entry.name, entry.modified > 1e9) for entry in folder.entries()] == [("a", True)]
    assert folder.read_text("a") == "text"
    folder.remove("a")
    assert folder.entries() == []
    folder.close()


def test_unknown_host_key_is_rejected_unless_allowed(server, tmp_path) -> None:
    (tmp_path / "none").touch()
    with pytest.raises(paramiko.SSHException, match="not found in known_hosts"):
        store_at(server, known_hosts_filename=str(tmp_path / "none")).list_objects()
    with store_at(
        server, known_hosts_filename=str(tmp_path / "none"), missing_host_key_policy="AutoAddPolicy"
    ) as store:
        assert store.list_objects() == []


def test_wrong_password_is_not_retried(server, tmp_path) -> None:
    (tmp_path / "a").touch()
    queue = UploadQueue(num_attempts=5, initial_backoff=0.001)
    store = store_at(server, password="wrong")
    queue.submit("upload of a", lambda: store.upload_object("a", tmp_path / "a"))
    with pytest.raises(paramiko.AuthenticationException):
        queue.close()
    assert server.connections == 1


@pytest.mark.parametrize("fault", ["refuse", "cut"])
def test_failed_write_is_detected(server, tmp_path, fault) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100_000)
    queue = UploadQueue(num_attempts=3, initial_backoff=0.001)
    store = store_at(server)
    server.faults.append(fault)
    queue.submit("upload of a", lambda: store.upload_object("a", path))
    queue.close()
    assert (server.root / "a").read_bytes() == b"x" * 100_000
    assert server.connections == 2
    store.close()
