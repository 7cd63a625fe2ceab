from __future__ import annotations

import threading

import pytest
import torch

from composer.core import Logger, State
from composer.loggers import RemoteUploaderDownloader
from composer.loggers.remote_uploader_downloader import maybe_create_remote_uploader_downloader_from_uri
from tests.storage.faulty import cleared

CASE = {"make": lambda: RemoteUploaderDownloader("memory://contract")}


@pytest.fixture
def faulty():
    yield from cleared()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("text")
    return path


def started(uploader: RemoteUploaderDownloader) -> tuple[State, Logger]:
    state = State(torch.nn.Linear(1, 1), run_name="night", callbacks=[uploader])
    logger = Logger(state, uploader, on_error="raise")
    uploader.init(state, logger)
    return state, logger


def test_files_of_loggers_are_uploaded_and_downloaded(faulty, path, tmp_path) -> None:
    uploader = RemoteUploaderDownloader("faulty://bucket/team", file_path_format_string="{run_name}/{remote_file_name}")
    state, logger = started(uploader)
    assert logger.has_file_upload_destination()
    logger.upload_file("{run_name}.txt", path)
    path.unlink()
    uploader.wait_for_workers(state.device)
    assert uploader.get_uri_for_file("night.txt") == "faulty://bucket/team/night/night.txt"
    assert uploader.has_file("night.txt")
    assert not uploader.has_file("other.txt")
    uploader.download_file("night.txt", str(tmp_path / "b.txt"), progress_bar=False)
    assert (tmp_path / "b.txt").read_text() == "text"
    with pytest.raises(FileExistsError):
        uploader.download_file("night.txt", str(tmp_path / "b.txt"))
    uploader.close(state, logger)
    assert [name for name in uploader.remote_backend.list_objects() if "credentials" not in name] == [
        "team/night/night.txt"
    ]


def test_uris_are_for_their_own_bucket(faulty, path, tmp_path) -> None:
    uploader = RemoteUploaderDownloader("faulty://bucket")
    state, logger = started(uploader)
    logger.upload_file("faulty://bucket/run/a.txt", path)
    logger.upload_file("faulty://other/run/b.txt", path)
    uploader.close(state, logger)
    assert uploader.remote_backend.list_objects("run") == ["run/a.txt"]
    assert uploader.has_file("faulty://bucket/run/a.txt")
    assert not uploader.has_file("faulty://other/run/b.txt")
    with pytest.raises(FileNotFoundError, match="is not in 'faulty://bucket'"):
        uploader.download_file("faulty://other/run/b.txt", str(tmp_path / "b"))


def test_wrong_credentials_are_refused_before_training(faulty) -> None:
    faulty.puts.append(PermissionError("wrong key"))
    with pytest.raises(PermissionError, match="wrong key"):
        started(RemoteUploaderDownloader("faulty://bucket"))


@pytest.mark.parametrize("event", ["batch_end", "epoch_end"])
def test_a_failure_is_raised_soon(faulty, path, event) -> None:
    uploader = RemoteUploaderDownloader("faulty://bucket")
    state, logger = started(uploader)
    faulty.puts.append(PermissionError("no"))
    logger.upload_file("a.txt", path)
    while uploader._queue.pending:
        threading.Event().wait(0.001)
    with pytest.raises(PermissionError) as caught:
        getattr(uploader, event)(state, logger)
    assert caught.value.__notes__ == ["The upload of faulty://bucket/a.txt failed."]
    uploader.close(state, logger)


def test_every_loop_waits_for_uploads_at_its_end(faulty, path) -> None:
    for event in ("fit_end", "eval_standalone_end", "predict_end"):
        uploader = RemoteUploaderDownloader("faulty://bucket")
        state, logger = started(uploader)
        gate = threading.Event()
        faulty.puts.append(gate)
        logger.upload_file(event, path)
        threading.Timer(0.02, gate.set).start()
        getattr(uploader, event)(state, logger)
        assert uploader.has_file(event)
        uploader.close(state, logger)


def test_files_added_by_other_callbacks_on_close(faulty, path) -> None:
    uploader = RemoteUploaderDownloader("faulty://bucket")
    state, logger = started(uploader)
    uploader.close(state, logger)
    logger.upload_file("late.txt", path)
    uploader.post_close()
    assert uploader.has_file("late.txt")


def test_staging_folder(faulty, path, tmp_path) -> None:
    uploader = RemoteUploaderDownloader("faulty://bucket", upload_staging_folder=str(tmp_path / "staging"))
    state, logger = started(uploader)
    gate = threading.Event()
    faulty.puts.append(gate)
    logger.upload_file("a.txt", path)
    assert [one.read_text() for one in (tmp_path / "staging").rglob("a.txt")] == ["text"]
    gate.set()
    uploader.close(state, logger)
    assert not list((tmp_path / "staging").iterdir())


def test_one_uploader_per_bucket() -> None:
    first = maybe_create_remote_uploader_downloader_from_uri("memory://one/run/a", [])
    assert first is not None
    assert maybe_create_remote_uploader_downloader_from_uri("memory://one/other", [first]) is None
    second = maybe_create_remote_uploader_downloader_from_uri("memory://two/run", [first])
    assert second is not None and second.bucket_uri == "memory://two"
    assert maybe_create_remote_uploader_downloader_from_uri("runs/a", []) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs"], "local path"),
        (["memory://b", None, "{name}"], "unknown placeholder {name}"),
        (["memory://b", None, "{remote_file_name}", 0], "num_concurrent_uploads"),
        (["memory://b", None, "{remote_file_name}", 1, None, True, 0], "num_attempts"),
    ],
)
def test_refuses(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        RemoteUploaderDownloader(*arguments)


def test_the_files_of_a_folder(faulty, path, tmp_path) -> None:
    uploader = RemoteUploaderDownloader("faulty://bucket/team", file_path_format_string="{run_name}/{remote_file_name}")
    state, logger = started(uploader)
    (tmp_path / "ep1").mkdir()
    for name in ("a.txt", "b.txt"):
        (tmp_path / "ep1" / name).write_text(name)
    logger.upload_file("ep1", tmp_path / "ep1")
    logger.upload_file("ep10.txt", path)
    uploader.fit_end(state, logger)
    assert uploader.list_files("ep1") == ["a.txt", "b.txt"]
    assert uploader.list_files("absent") == uploader.list_files("memory://other/ep1") == []
    uploader.close(state, logger)
