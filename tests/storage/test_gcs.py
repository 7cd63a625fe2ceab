"""Against a local server of the Google Cloud Storage protocol."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from composer.storage.downloads import fetched
from composer.storage.folder import Folder
from composer.storage.object_stores import GCSObjectStore
from composer.storage.uploads import UploadQueue
from tests.common import without_ledger
from tests.trainer.resuming import build, shuffled

pytest.importorskip("gcsfs")
pytest.importorskip("gcp_storage_emulator")

pytestmark = pytest.mark.filterwarnings("ignore")


@dataclass
class Server:
    """A server, and what it answers to the next requests of a kind instead of doing them.

    Attributes:
        url: Where it listens.
        faults: Functions of the handler of a request, by "GET" and the like; "cut" ends the connection after half of
            what was asked for, a number is the status that is answered.
        asked: The methods and paths of all requests.
    """

    url: str
    faults: dict[str, list[int | str]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


def _faulty(server: Server, method: str, handle: Callable[[Any], None]) -> Callable[[Any], None]:
    def do(self: Any) -> None:
        server.asked.append(f"{method} {self.path}")
        waiting = server.faults.get(method, [])
        # What is looked up beside the content is left alone.
        if not waiting or (method == "GET" and "alt=media" not in self.path):
            handle(self)
            return
        fault = waiting.pop(0)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if fault == "cut":
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            self.wfile.write(b"half")
        else:
            self.send_error(int(fault))
        self.close_connection = True

    return do


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    from gcp_storage_emulator import server as emulator

    logging.getLogger("gcp_storage_emulator").setLevel(logging.ERROR)
    patch = pytest.MonkeyPatch()
    server = Server("")
    for method in ("GET", "POST", "PUT", "DELETE"):
        name = f"do_{method}"
        patch.setattr(emulator.RequestHandler, name, _faulty(server, method, getattr(emulator.RequestHandler, name)))
    patch.setattr(emulator.RequestHandler, "log_message", lambda *arguments: None)
    one = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
    one.start()
    while one._api._httpd is None:  # it says that it runs a moment before it has a port
        time.sleep(0.01)
    one._api._httpd.handle_error = lambda *arguments: None
    server.url = f"http://127.0.0.1:{one._api._httpd.server_address[1]}"
    yield server
    one.stop()
    patch.undo()


@pytest.fixture
def server(running: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    import gcsfs.core
    import gcsfs.retry

    async def at_once(seconds: float) -> None:
        pass

    # The other class first asks Google for the bucket type, by another protocol.
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "gs", gcsfs.core.GCSFileSystem)
    monkeypatch.setattr(gcsfs.retry, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": at_once}))
    monkeypatch.setattr(gcsfs.core.GCSFileSystem, "cachable", False)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", running.url)
    monkeypatch.setitem(sys.modules["fsspec.config"].conf, "gs", {"token": "anon"})
    running.faults.clear()
    running.asked.clear()
    return running


names = (f"run{number}" for number in itertools.count())


@pytest.fixture
def folder(server: Server) -> Folder:
    return Folder(f"gs://bucket/{next(names)}")


def test_round_trip(folder, tmp_path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 7_000_000)
    folder.upload(path, "deep/a")
    folder.write_text("b", "night")
    folder.write_text("b", "day")
    assert folder.names() == ["b", "deep/a"] and folder.names("deep/") == ["deep/a"]
    assert [(entry.name, entry.size) for entry in folder.entries()] == [("b", 3)]
    assert abs(folder.entry("b").modified - time.time()) < 3600
    assert folder.read_text("b") == "day" and not folder.exists("absent")
    folder.download("deep/a", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == path.read_bytes()
    with fetched(f"{folder.uri}/b") as local:
        assert local.read_text() == "day"
    with pytest.raises(FileNotFoundError):
        folder.download("absent", tmp_path / "d")
    folder.probe()
    folder.remove("b")
    folder.remove("b")
    folder.remove_all()
    assert folder.names() == []


def test_store_by_its_legacy_name(server, tmp_path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    store = GCSObjectStore("bucket", "team")
    store.upload_object("run/a", tmp_path / "a")
    assert store.list_objects("run/") == ["run/a"] and store.get_object_size("run/a") == 7
    store.download_object("run/a", tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"weights"


def test_missing_bucket_fails_immediately(server, tmp_path) -> None:
    (tmp_path / "a").touch()
    calls: list[int] = []

    def upload() -> None:
        calls.append(1)
        Folder("gs://nowhere/run").upload(tmp_path / "a", "a")

    queue = UploadQueue(num_attempts=4, initial_backoff=0.001)
    queue.submit("upload of a", upload)
    with pytest.raises(FileNotFoundError):
        queue.close()
    assert calls == [1]


@pytest.mark.parametrize("fault", [503, 429, 500])
def test_busy_server_is_retried(fault, folder, server) -> None:
    server.faults["POST"] = [fault, fault]
    folder.write_text("a", "night")
    server.faults["GET"] = [fault]
    assert folder.read_text("a") == "night"
    assert not any(server.faults.values())


def test_rejection_fails_immediately(folder, server, tmp_path) -> None:
    server.faults["POST"] = [403]
    queue = UploadQueue(num_attempts=4, initial_backoff=0.001)
    queue.submit("upload of a", lambda: folder.write_text("a", "night"))
    with pytest.raises(OSError, match=r"Forbidden|403"):
        queue.close()
    assert len([one for one in server.asked if one.startswith("POST")]) == 1
    assert not folder.exists("a")


def test_partial_download_is_an_error(folder, server, tmp_path) -> None:
    folder.write_text("a", "night")
    server.faults["GET"] = ["cut"] * 40  # more than the client tries
    with pytest.raises(Exception):  # noqa: B017 - the client's own
        folder.download("a", tmp_path / "a")
    assert list(tmp_path.iterdir()) == []
    server.faults["GET"] = []
    folder.download("a", tmp_path / "a")
    assert (tmp_path / "a").read_text() == "night"


def test_same_command_resumes_from_the_bucket(server) -> None:
    where = f"gs://bucket/{next(names)}/{{run_name}}/checkpoints"

    def trained(duration: str, **saving: Any) -> Any:
        trainer = build(shuffled(), schedulers=None, max_duration=duration, **saving)
        trainer.fit()
        trainer.close()
        return trainer.state

    saving = {"save_folder": where, "save_interval": "2ba", "autoresume": True, "save_num_checkpoints_to_keep": 2}
    straight = trained("9ba")
    trained("5ba", **saving)
    server.faults["POST"] = [503]
    resumed = trained("9ba", **saving)
    assert (resumed.timestamp.batch, resumed.timestamp.sample) == (straight.timestamp.batch, straight.timestamp.sample)
    assert resumed.load_path is not None and resumed.load_path.endswith("ep0-ba5-rank0.pt")
    expected = straight.model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in resumed.model.state_dict().items())
    left = without_ledger(Folder(where.format(run_name="night")).names())
    assert left == ["ep1-ba8-rank0.pt", "ep1-ba9-rank0.pt", "latest-rank0.pt.symlink"]
