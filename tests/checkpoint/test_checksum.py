"""CRC-32 by whatever is installed is that of zlib."""

from __future__ import annotations

import sys
import zlib
from collections.abc import Generator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.checkpoint import checksum, file_format
from composer.checkpoint.checksum import fast_crc32

# Around the sizes where implementations change their loop, the blocks of a record, and none at all.
SIZES = [0, 1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 255, 1023, 1024, 4097, (1 << 18) - 1, (1 << 18) + 1]


@pytest.fixture(params=["zlib", "isal"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """Compute checksums by one implementation; the other one is not used."""
    if request.param == "isal":
        pytest.importorskip("isal.isal_zlib")
        monkeypatch.setattr(zlib, "crc32", None)
    else:
        monkeypatch.setitem(sys.modules, "isal", None)
    checksum._implementation.cache_clear()
    yield request.param
    checksum._implementation.cache_clear()


def bitwise(data: bytes, value: int = 0) -> int:
    """Compute a CRC-32 bit by bit, by its definition."""
    value ^= 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = (value >> 1) ^ (0xEDB88320 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


@pytest.mark.parametrize("offset", [0, 1, 3, 8, 13])
def test_sizes_and_offsets(offset, by) -> None:
    block = torch.arange(1 << 19).mul(2654435761).bitwise_right_shift(7).to(torch.uint8).numpy()
    whole = memoryview(block)
    for size in SIZES:
        found = fast_crc32(whole[offset : offset + size])
        assert found == fast_crc32(whole[offset + size // 3 : offset + size], fast_crc32(whole[offset:][: size // 3]))
        if size < 2000:
            assert found == bitwise(bytes(whole[offset : offset + size]))


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 0xFFFFFFFF))
def test_parts_and_start_values(first, second, start) -> None:
    assert fast_crc32(second, fast_crc32(first, start)) == bitwise(first + second, start)


def test_each_bit_of_a_block_is_noticed(by) -> None:
    block = bytearray(range(256)) * 2
    right = fast_crc32(block)
    for bit in range(8 * len(block)):
        block[bit // 8] ^= 1 << bit % 8
        assert fast_crc32(block) != right
        block[bit // 8] ^= 1 << bit % 8
    assert fast_crc32(block) == right


def test_files_are_read_and_damage_is_found(by, tmp_path) -> None:
    file_format.write({"weight": torch.arange(100_000.0), "bias": torch.ones(3)}, path := tmp_path / "a.pt")
    assert file_format.read(path)["weight"][-1] == 99_999
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(file_format.DamagedCheckpointError, match="checksums of 'weight' do not match"):
        file_format.read(path)


def test_a_folder_of_that_name_is_not_the_package(tmp_path, monkeypatch) -> None:
    (tmp_path / "isal").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "isal"]:
        monkeypatch.delitem(sys.modules, name)
    checksum._implementation.cache_clear()
    try:
        assert fast_crc32(b"weights") == 449999704
    finally:
        checksum._implementation.cache_clear()


def test_a_package_that_cannot_be_loaded_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "isal").mkdir()
    (tmp_path / "isal" / "__init__.py").touch()
    (tmp_path / "isal" / "isal_zlib.py").write_text("raise ImportError('its library is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "isal"]:
        monkeypatch.delitem(sys.modules, name)
    checksum._implementation.cache_clear()
    try:
        with pytest.raises(ImportError, match="its library is missing"):
            fast_crc32(b"weights")
    finally:
        checksum._implementation.cache_clear()
