"""Records are read and verified by several threads: nothing wrong is returned, and no thread or file is left open."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import UntypedStorage

from composer.checkpoint import file_format, record_reader
from composer.checkpoint.file_format import DamagedCheckpointError
from composer.checkpoint.record_reader import read_records
from composer.checkpoint.zip_layout import Record, crc32_of, records
from tests.checkpoint.content import same

CONTENT: dict[str, Any] = {
    "state": {"model": {str(number): torch.arange(number * 100.0) for number in range(12)}},
    "rng": [{"python": random.Random(1).getstate(), "torch": torch.Generator().get_state()}],
}


@pytest.fixture
def path(tmp_path) -> Path:
    file_format.write(CONTENT, tmp_path / "a.pt")
    return tmp_path / "a.pt"


@pytest.fixture
def threaded(monkeypatch) -> None:
    """Small files are read by one thread otherwise."""
    monkeypatch.setattr(record_reader, "_num_threads", lambda num_bytes: 3)


def records_of(path: Path) -> list[Record]:
    with path.open("rb") as file:
        return records(file, path.stat().st_size)


def num_left() -> tuple[int, int]:
    readers = sum("checkpoint-reader" in thread.name for thread in threading.enumerate())
    files = Path("/proc/self/fd")
    return readers, len(list(files.iterdir())) if files.is_dir() else 0


@pytest.mark.parametrize("threads", [None, 1, 2, 7])
def test_content_and_checksums(threads, path) -> None:
    found = records_of(path)
    storages = {one.name: UntypedStorage(one.size) for one in found if one.name.startswith("data/")}
    checksums = read_records(path, found, storages, threads)
    assert checksums == [one.crc32 for one in found]
    whole = path.read_bytes()
    for one in found:
        if one.name in storages:
            assert bytes(storages[one.name].tolist()) == whole[one.offset : one.offset + one.size]


@pytest.mark.usefixtures("threaded")
def test_round_trip_by_threads(path) -> None:
    before = num_left()
    assert same(file_format.read(path), CONTENT)
    assert num_left() == before


@pytest.mark.usefixtures("threaded")
def test_a_flip_in_any_part_is_detected(path) -> None:
    before = num_left()
    whole = path.read_bytes()
    found = records_of(path)
    places = {end for one in found if one.size for end in (one.offset, one.offset + one.size - 1)}
    between = {place for one in found for place in (one.offset - 1, one.offset + one.size)}
    for place in sorted({*places, *between, 0, len(whole) - 1, *range(7, len(whole), len(whole) // 50)}):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(DamagedCheckpointError):
            file_format.read(path)
        with pytest.raises(DamagedCheckpointError):
            file_format.check(path)
    assert num_left() == before


@pytest.mark.usefixtures("threaded")
def test_all_corrupted_entries_are_named(path) -> None:
    whole = bytearray(path.read_bytes())
    data = [one for one in records_of(path) if one.name in ("data/3", "data/11")]
    for one in data:
        whole[one.offset + one.size - 1] ^= 1
    path.write_bytes(whole)
    with pytest.raises(DamagedCheckpointError, match="'state/model/3', 'state/model/11'"):
        file_format.read(path)


@pytest.mark.usefixtures("threaded")
@pytest.mark.parametrize("name", ["data/11", "data/2", "version"])
def test_an_error_in_a_thread_is_raised(name, path, monkeypatch) -> None:
    def fail(file: Any, record: Record, into: Any = None) -> int:
        if record.name == name:
            raise OSError(5, "Input/output error")
        return crc32_of(file, record, into)

    before = num_left()
    monkeypatch.setattr(record_reader, "crc32_of", fail)
    with pytest.raises(OSError, match="Input/output error"):
        file_format.read(path)
    assert num_left() == before


@pytest.mark.usefixtures("threaded")
def test_a_file_that_is_cut_while_it_is_read(path, monkeypatch) -> None:
    """Its structure was complete before, so only the threads can tell."""

    def cut(*arguments: Any) -> list[int]:
        os.truncate(path, records_of(path)[5].offset + 1)
        return read_records(*arguments)

    monkeypatch.setattr(file_format, "read_records", cut)
    with pytest.raises(DamagedCheckpointError, match="the checksums of"):
        file_format.read(path)


@pytest.mark.usefixtures("threaded")
@pytest.mark.parametrize("change", ["overwritten", "truncated", "deleted"])
def test_the_file_is_not_needed_after_the_load(change, path) -> None:
    read = file_format.read(path)
    if change == "deleted":
        path.unlink()
    else:
        with path.open("r+b") as file:
            file.write(b"\xff" * path.stat().st_size) if change == "overwritten" else file.truncate(0)
    assert same(read, CONTENT)


def test_large_records_are_read_in_blocks(tmp_path) -> None:
    weight = torch.randn(300_001)
    file_format.write({"weight": weight, "again": weight[5:7]}, tmp_path / "a.pt")
    read = file_format.read(tmp_path / "a.pt")
    assert torch.equal(read["weight"], weight)
    assert read["again"].untyped_storage().data_ptr() == read["weight"].untyped_storage().data_ptr()


def test_number_of_threads(monkeypatch) -> None:
    monkeypatch.setattr(record_reader, "usable_cpus", lambda: frozenset(range(16)))
    monkeypatch.setattr(record_reader, "cpu_quota", lambda: None)
    assert [record_reader._num_threads(size << 20) for size in (0, 7, 8, 20, 1000)] == [1, 1, 2, 5, 8]
    monkeypatch.setattr(record_reader.dist, "get_local_world_size", lambda: 8)
    assert record_reader._num_threads(1 << 30) == 2
    monkeypatch.setattr(record_reader, "cpu_quota", lambda: 1.5)
    assert record_reader._num_threads(1 << 30) == 1
