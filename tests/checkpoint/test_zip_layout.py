"""The zip layout of torch.save, at all sizes and alignments; other layouts are rejected."""

from __future__ import annotations

import io
import struct
import zipfile
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.checkpoint.zip_layout import crc32_of, records
from tests.design import ROOT


def saved(content: Any) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def read(whole: bytes) -> dict[str, bytes]:
    found = records(io.BytesIO(whole), len(whole))
    assert all(crc32_of(io.BytesIO(whole), one) == one.crc32 for one in found)
    return {one.name: whole[one.offset : one.offset + one.size] for one in found}


def unpacked(whole: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        return {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}


@given(st.dictionaries(st.text("ab/.ü", min_size=1), st.integers(0, 3000), max_size=6))
def test_records_match_zipfile(sizes) -> None:
    whole = saved({name: torch.arange(count, dtype=torch.uint8) for name, count in sizes.items()})
    assert read(whole) == unpacked(whole)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests" / "data" / "checkpoints").glob("*.pt")), ids=lambda path: path.name
)
def test_files_of_composer_0_32(path) -> None:
    assert read(path.read_bytes()) == unpacked(path.read_bytes())


def test_other_names_and_alignments(tmp_path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "ü ö.pt")
    whole = (tmp_path / "ü ö.pt").read_bytes()
    assert read(whole) == unpacked(whole)
    settings: Any = pytest.importorskip("torch.utils.serialization").config.save
    before, settings.storage_alignment = settings.storage_alignment, 4096
    try:
        whole = saved({"a": torch.ones(3)})
    finally:
        settings.storage_alignment = before
    assert len(whole) > 4096
    assert read(whole) == unpacked(whole)


class Sparse(io.RawIOBase):
    """A file with a record of more than four gigabytes of zeros, of which only the rest takes memory."""

    def __init__(self, size: int) -> None:
        # As torch.save has written it (2.13), cut at the zeros.
        wide = struct.pack("<HHQQ", 1, 16, size, 0)
        head = struct.pack("<4s5HIIIHH", b"PK\x03\x04", 0, 0x808, 0, 0, 0, 0, 0, 0, 10, len(wide) + 4) + b"big/data/0"
        self.before = head + wide + b"FB\0\0"
        after = struct.pack("<4sIQQ", b"PK\x07\x08", 7, size, size)
        begin = len(self.before) + size + len(after)
        entry = struct.pack("<4s6H", b"PK\x01\x02", 0, 0, 0x808, 0, 0, 0)
        entry += struct.pack("<III5HII", 7, 0xFFFFFFFF, 0xFFFFFFFF, 10, 20, 0, 0, 0, 0, 0) + b"big/data/0"
        entry += struct.pack("<HHQQ", 1, 16, size, size)
        end = struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 0x31E, 45, 0, 0, 1, 1, len(entry), begin)
        end += struct.pack("<4sIQI", b"PK\x06\x07", 0, begin + len(entry), 1)
        end += struct.pack("<4s4HIIH", b"PK\x05\x06", 0, 0, 1, 1, len(entry), 0xFFFFFFFF, 0)
        self.after = after + entry + end
        self.at = len(self.before) + size
        self.place = 0
        self.length = self.at + len(self.after)

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self.place = offset
        return offset

    def read(self, size: int = -1, /) -> bytes:
        begin, self.place = self.place, self.place + size
        return self.before[begin : begin + size] if begin < len(self.before) else self.after[begin - self.at :][:size]


def test_more_than_four_gigabytes() -> None:
    file: Any = Sparse(5 << 30)
    (record,) = records(file, file.length)
    assert (record.name, record.size, record.offset) == ("data/0", 5 << 30, 64)
    file.after = file.after.replace(struct.pack("<Q", 5 << 30), struct.pack("<Q", 5 << 29))
    with pytest.raises(ValueError):
        records(file, file.length)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda whole: whole[:-1], "its end"),
        (lambda whole: whole + b"x", "its end"),
        (lambda whole: b"x" + whole, "its end|directory|begins"),
        (lambda whole: whole[:90], "its end is missing"),
        (lambda whole: whole.replace(b"data/1", b"data/0"), "two records 'archive/data/0'"),
        (lambda whole: whole.replace(b"archive/data/1", b"another/data/1"), "not in the folder 'archive'"),
        (lambda whole: whole.replace(b"ZZZZ", b"ZZZz", 1), "header of the record"),
    ],
)
def test_error_messages(change, said) -> None:
    whole = change(saved({"a": torch.ones(3), "b": torch.zeros(2)}))
    with pytest.raises(ValueError, match=said):
        records(io.BytesIO(whole), len(whole))
