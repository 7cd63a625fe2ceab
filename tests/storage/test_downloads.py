from __future__ import annotations

import http.server
import threading
from pathlib import Path

import pytest

from composer.checkpoint.latest_symlink import create_symlink_file, extract_path_from_symlink
from composer.storage.downloads import fetched, get_file, link_targets, modified, remove
from composer.storage.folder import Folder
from composer.storage.object_store import UriObjectStore
from tests.storage.faulty import HalfError


@pytest.fixture
def server(tmp_path):
    """A web server on this machine with the files of a folder; a name that starts with a number is that status."""
    root = tmp_path / "www"
    root.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args) -> None:
            super().__init__(*args, directory=str(root))

        def do_GET(self) -> None:
            if self.path[1:4].isdigit():
                self.send_error(int(self.path[1:4]))
            elif self.path == "/half":
                self.send_response(200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(b"half")
            else:
                super().do_GET()

        def log_message(self, *args) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        thread = threading.Thread(target=found.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{found.server_address[1]}", root
        found.shutdown()
        thread.join()


def test_local_files_are_neither_copied_nor_removed(tmp_path) -> None:
    path = tmp_path / "a.pt"
    path.write_text("weights")
    for name in (path, str(path), f"file://{path}"):
        with fetched(name) as local:
            assert local == path
    assert path.exists()


def test_remote_files_are_downloaded_and_removed() -> None:
    Folder("memory://bucket").write_text("run/ep1.pt", "weights")
    with fetched("memory://bucket/run/ep1.pt") as local:
        assert (local.name, local.read_text()) == ("ep1.pt", "weights")
    assert not local.parent.exists()


def test_file_missing_everywhere(tmp_path) -> None:
    for place, store in (
        ("memory://bucket/a.pt", None),
        ("a.pt", UriObjectStore("memory://bucket")),
        (str(tmp_path / "a"), None),
    ):
        with pytest.raises(FileNotFoundError):
            get_file(place, tmp_path / "b", store)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("given", ["latest.pt", "latest.pt.symlink"])
@pytest.mark.parametrize("target", ["ep1.pt", "../run/ep1.pt", "run/ep1.pt", "memory://bucket/run/ep1.pt"])
def test_links_are_followed(given, target) -> None:
    """Beside the link, or counted from the bucket as the predecessor does."""
    folder = Folder("memory://bucket")
    folder.write_text("run/ep1.pt", "weights")
    folder.write_text("run/latest.pt.symlink", target)
    with fetched(f"memory://bucket/run/{given}") as local:
        assert (local.name, local.read_text()) == ("latest.pt", "weights")


def test_links_in_a_store_and_locally_are_followed(tmp_path) -> None:
    folder = Folder("memory://bucket")
    folder.write_text("run/ep1.pt", "weights")
    folder.write_text("run/latest.pt.symlink", "run/ep1.pt")
    get_file("run/latest.pt", tmp_path / "a", UriObjectStore("memory://bucket"))
    (tmp_path / "ep1.pt").write_text("here")
    create_symlink_file("ep1.pt", tmp_path / "latest.symlink")
    get_file(str(tmp_path / "latest"), tmp_path / "b")
    assert [(tmp_path / name).read_text() for name in "ab"] == ["weights", "here"]
    assert extract_path_from_symlink("run/latest.pt.symlink", UriObjectStore("memory://bucket")) == "run/ep1.pt"
    assert extract_path_from_symlink("memory://bucket/run/latest.pt.symlink") == "run/ep1.pt"


def test_dangling_link(tmp_path) -> None:
    Folder("memory://bucket").write_text("latest.pt.symlink", "gone.pt")
    with pytest.raises(FileNotFoundError):
        get_file("memory://bucket/latest.pt", tmp_path / "a")


def test_existing_files_are_replaced_only_on_request(tmp_path) -> None:
    Folder("memory://bucket").write_text("a", "new")
    here = tmp_path / "a"
    here.write_text("old")
    with pytest.raises(FileExistsError, match="overwrite=True"):
        get_file("memory://bucket/a", here)
    assert here.read_text() == "old"
    get_file("memory://bucket/a", here, overwrite=True)
    assert here.read_text() == "new"


@pytest.mark.parametrize("faults", [[HalfError, ConnectionError()], [TimeoutError()]])
def test_failed_transfer_is_retried(faulty, tmp_path, faults) -> None:
    Folder("faulty://bucket").write_text("a", "content")
    faulty.gets.extend(faults)
    get_file("faulty://bucket/a", tmp_path / "a", progress_bar=False)
    assert (tmp_path / "a").read_text() == "content"
    assert not faulty.gets


def test_rejected_transfer_is_not_retried(faulty, tmp_path) -> None:
    Folder("faulty://bucket").write_text("a", "content")
    faulty.gets.extend([PermissionError("no"), None])
    with pytest.raises(PermissionError):
        get_file("faulty://bucket/a", tmp_path / "a")
    assert len(faulty.gets) == 1


def test_from_a_web_server(server, tmp_path) -> None:
    url, root = server
    (root / "a.pt").write_bytes(b"x" * 3_000_000)
    get_file(f"{url}/a.pt", tmp_path / "a.pt")
    assert (tmp_path / "a.pt").read_bytes() == b"x" * 3_000_000
    for name, error in (("b.pt", FileNotFoundError), ("403", PermissionError), ("503", OSError), ("half", OSError)):
        with pytest.raises(error):
            get_file(f"{url}/{name}", tmp_path / "b.pt")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.pt", "www"]


def test_time_and_removal(tmp_path) -> None:
    Folder("memory://bucket").write_text("a", "text")
    (tmp_path / "a").write_text("text")
    for place in ("memory://bucket/a", str(tmp_path / "a")):
        assert modified(place) > 1e9
        remove(place)
        remove(place)
        with pytest.raises(FileNotFoundError):
            modified(place)


def _fetch(source: str) -> tuple[list, int]:
    found: list = []
    _Counting.calls = 0
    for name in ("a.pt", "absent.pt"):
        try:
            with fetched(f"{source}/{name}", _Counting(), progress_bar=False) as local:
                found.append((local.read_text(), local.parent.name))
        except Exception as error:
            found.append(type(error).__name__)
    return found, _Counting.calls


class _Counting:
    calls = 0

    def download_object(self, name: str, filename: str, overwrite: bool = False, callback=None) -> None:
        _Counting.calls += 1
        if not Path(name).exists():
            raise FileNotFoundError(name)
        Path(filename).write_text(Path(name).read_text())


def test_one_rank_per_node_downloads(two_ranks, tmp_path) -> None:
    (tmp_path / "a.pt").write_text("weights")
    (first, calls), (second, none) = two_ranks.run(_fetch, str(tmp_path))
    assert first[0] == second[0]
    assert first[0][0] == "weights"
    assert (first[1], second[1]) == ("FileNotFoundError", "RuntimeError")
    assert (calls, none) == (3, 0)  # of an absent file, the link is asked for too


@pytest.mark.parametrize("kind", ["uri", "link", "store", "logger"])
def test_a_folder(kind, tmp_path) -> None:
    folder = Folder("memory://folders/run")
    for name in ("ep1/a.txt", "ep1/deep/b.txt", "ep10/c.txt"):
        folder.write_text(name, name)
    folder.write_text("latest.symlink", "ep1")

    class Keeper:
        def download_file(self, name: str, destination: str, **_: object) -> None:
            folder.download(name, destination)

        def list_files(self, name: str) -> list[str]:
            return [one.removeprefix(f"{name}/") for one in folder.names(f"{name}/")]

    path, store = {
        "uri": ("memory://folders/run/ep1", None),
        "link": ("memory://folders/run/latest", None),
        "store": ("run/ep1", UriObjectStore("memory://folders")),
        "logger": ("ep1", Keeper()),
    }[kind]
    get_file(path, tmp_path / "got", store, progress_bar=False)
    files = {one.relative_to(tmp_path / "got").as_posix(): one.read_text() for one in tmp_path.rglob("*.txt")}
    assert files == {"a.txt": "ep1/a.txt", "deep/b.txt": "ep1/deep/b.txt"}
    assert [one.name for one in tmp_path.iterdir()] == ["got"]
    with fetched(path, store, progress_bar=False) as local:
        assert (local / "deep" / "b.txt").read_text() == "ep1/deep/b.txt"
    with pytest.raises(FileNotFoundError):
        get_file("memory://folders/run/absent", tmp_path / "other", progress_bar=False)


@pytest.mark.parametrize(
    ("link", "name", "in_store"),
    [
        ("s3://bucket/latest.symlink", "http://localhost/ep1.pt", False),
        ("s3://bucket/latest.symlink", "s3://other/ep1.pt", False),
        ("s3://bucket/latest.symlink", "/etc/ep1.pt", False),
        ("latest.symlink", "s3://bucket/ep1.pt", True),
        ("latest.symlink", "/etc/ep1.pt", True),
        ("/runs/latest.symlink", "http://localhost/ep1.pt", False),
    ],
)
def test_HostileFiles_link_cannot_point_to_another_store(link, name, in_store) -> None:
    with pytest.raises(FileNotFoundError, match="is in another location and is not followed"):
        link_targets(link, name, in_store=in_store)


def test_a_link_may_name_a_uri_of_its_own_store() -> None:
    assert link_targets("s3://bucket/run/latest.symlink", "s3://bucket/run/ep1.pt") == ["s3://bucket/run/ep1.pt"]
