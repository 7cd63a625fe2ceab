"""The file of a ledger in a checkpoint folder."""

from __future__ import annotations

import os
import resource
import shutil

import pytest

from composer.checkpoint.ledger_file import LocalLedgerFile, RemoteLedgerFile, ledger_file_of
from composer.checkpoint.local_folder import LocalCheckpoints
from composer.checkpoint.remote_folder import RemoteCheckpoints
from composer.ledger import Segment
from composer.ledger.category import MEASURED
from composer.ledger.ledger import parse_segments
from tests.storage.faulty import cleared


def lines(file) -> list[str]:
    return [line.strip() for line in file.read().splitlines()]


def test_each_process_rewrites_its_own_line(tmp_path) -> None:
    one, other = LocalLedgerFile(tmp_path), LocalLedgerFile(tmp_path)
    assert one.read() == ""
    one.write("one")
    other.write("other")
    one.write("one, longer than before")
    other.write("o")
    assert lines(one) == ["one, longer than before", "o"]
    size = (tmp_path / "ledger.jsonl").stat().st_size
    for _ in range(100):
        one.write("one again")
    assert (tmp_path / "ledger.jsonl").stat().st_size == size


def test_a_line_that_outgrows_its_room_raises_and_overwrites_nothing(tmp_path) -> None:
    one, other = LocalLedgerFile(tmp_path), LocalLedgerFile(tmp_path)
    one.write("one")
    other.write("other")
    with pytest.raises(OSError, match="grew"):
        one.write("x" * 1000)
    assert lines(one) == ["one", "other"]


def test_begins_a_line_after_a_torn_one(tmp_path) -> None:
    (tmp_path / "ledger.jsonl").write_text('{"torn')
    file = LocalLedgerFile(tmp_path)
    file.write("one")
    file.write("two")
    assert lines(file) == ['{"torn', "two"]


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_linked_copy_of_a_folder_leaves_the_original_alone(tmp_path, link) -> None:
    original, copy = tmp_path / "run", tmp_path / "copy"
    original.mkdir()
    copy.mkdir()
    LocalLedgerFile(original).write("one")
    before = (original / "ledger.jsonl").read_bytes()
    link(original / "ledger.jsonl", copy / "ledger.jsonl")
    file = LocalLedgerFile(copy)
    file.write("two")
    file.write("three")
    assert lines(file) == ["one", "three"]
    assert (original / "ledger.jsonl").read_bytes() == before
    assert [path.name for path in copy.iterdir()] == ["ledger.jsonl"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_other_kinds_of_files_raise(tmp_path, make) -> None:
    make(tmp_path / "ledger.jsonl")
    with pytest.raises(OSError, match="not a regular file"):
        LocalLedgerFile(tmp_path).read()


def test_tells_a_copied_folder_from_a_moved_one(tmp_path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    LocalLedgerFile(run).write('{"segment": "a1"}')
    shutil.copytree(run, tmp_path / "copy")
    assert LocalLedgerFile(tmp_path / "copy").is_copy_of(str(run), "a1")
    assert not LocalLedgerFile(tmp_path / "copy").is_copy_of(str(run), "b2")  # another run took the place
    (tmp_path / "mounted").symlink_to(run)
    assert not LocalLedgerFile(tmp_path / "mounted").is_copy_of(str(run), "a1")
    run.rename(tmp_path / "moved")
    assert not LocalLedgerFile(tmp_path / "moved").is_copy_of(str(run), "a1")
    assert not LocalLedgerFile(tmp_path / "moved").is_copy_of("\0", "a1")
    assert LocalLedgerFile(tmp_path / "moved").is_copy_of("s3://bucket/run", "a1")


def test_a_folder_that_is_gone_raises(tmp_path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    file = LocalLedgerFile(folder)
    file.write("one")
    shutil.rmtree(folder)
    with pytest.raises(FileNotFoundError):
        file.write("two")


@pytest.fixture
def faulty(monkeypatch):
    monkeypatch.setattr("composer.storage.retrying.sleep", lambda seconds: None)
    yield from cleared()


def test_a_remote_file_keeps_earlier_lines(faulty) -> None:
    for text in ("one", "two"):
        store = RemoteCheckpoints("faulty://bucket/night/ck")
        file = ledger_file_of(store)
        file.write("started")
        file.write(text)
        store.close()
    assert file.read() == "one\ntwo\n"
    assert isinstance(file, RemoteLedgerFile)
    assert file.is_copy_of("/somewhere", "a1")


def test_a_failed_upload_does_not_stop_the_checkpoints(faulty, caplog) -> None:
    store = RemoteCheckpoints("faulty://bucket/night/ck")
    file = ledger_file_of(store)
    faulty.puts.append(PermissionError("quota"))
    file.write("one")
    store.wait()
    assert "quota" in caplog.text
    file.write("two")
    store.close()
    assert file.read() == "two\n"


def test_the_uri_is_kept_without_its_password() -> None:
    store = RemoteCheckpoints("sftp://night:hunter2@host/ck")
    assert "hunter2" not in ledger_file_of(store).folder


def test_a_local_folder_is_absolute(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ck").mkdir()
    assert ledger_file_of(LocalCheckpoints(tmp_path / "ck")).folder == str(tmp_path / "ck")


def test_a_disk_that_fills_up_leaves_the_lines_of_others(tmp_path) -> None:
    LocalLedgerFile(tmp_path).write("one")
    path, file = tmp_path / "ledger.jsonl", LocalLedgerFile(tmp_path)
    before, limit = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, limit[1]))  # a part of the line fits
    try:
        with pytest.raises(OSError, match="No space left"):
            file.write("two")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    file.write("two again")
    file.write("two at last")
    assert path.read_bytes().startswith(before)
    assert lines(file) == ["one", "two", "two at last"]


@pytest.mark.parametrize("number", [1, 8, 512])
def test_the_times_of_many_ranks_have_room_to_grow(number, tmp_path) -> None:
    def line(seconds: float) -> str:
        ranks = tuple(dict.fromkeys(MEASURED, seconds) for _ in range(number))
        return Segment("a", 0.0, ranks[0], last_batch=int(seconds), ranks=ranks if number > 1 else ()).line()

    file = LocalLedgerFile(tmp_path)
    file.write(line(0.0))
    file.write(line(1234567.891))  # two weeks
    assert len(parse_segments(file.read())) == 1
    assert file.read().split() == line(1234567.891).split()
