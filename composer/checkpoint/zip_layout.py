"""Check the zip layout of ``torch.save`` files: every byte outside the records must be as torch writes it.

torch's reader trusts the central directory of a file and verifies no checksums. One flipped bit there (attribute, size,
method or offset) can make it skip a record and return uninitialized memory as weights. These fields are fully
determined in every release of torch since 1.6: records are stored uncompressed and without gaps, each between a local
header and a data descriptor, and the directory repeats the same values. So the fields are not validated one by one: the
headers that torch would write for the given names, sizes and checksums are constructed and compared byte by byte.
InCollective with the checksum of each record, this covers every byte of a file.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, cast

from composer.checkpoint.checksum import fast_crc32

__all__ = ["Record", "crc32_of", "records"]

_LOCAL, _CENTRAL, _DESCRIPTOR = b"PK\x03\x04", b"PK\x01\x02", b"PK\x07\x08"
_CENTRAL_SIZE, _END_SIZE = 46, 98
_MOST16, _MOST32 = 0xFFFF, 0xFFFFFFFF
# Flags: names are UTF-8; a data descriptor follows a record that is not empty.
_UTF8, _FOLLOWED = 0x800, 0x8
# Padding of the headers, which aligns the records.
_PADDING_ID, _PADDING = b"FB", b"Z"
_BLOCK = 1 << 18


@dataclass(frozen=True)
class Record:
    """A record of a zip file.

    Attributes:
        name: Name without the common top-level folder.
        offset: Offset of the content.
        size: Size of the content in bytes.
        crc32: Checksum of the content according to the directory.

    >>> Record("data/0", 64, 4, 0).size
    4
    """

    name: str
    offset: int
    size: int
    crc32: int


def records(file: BinaryIO, size: int) -> list[Record]:
    """Return the records of a file in order, after checking all bytes outside them.

    Args:
        file: The file.
        size: Size of the file in bytes.

    Raises:
        ValueError: Some bytes differ from what ``torch.save`` writes; the message names the first difference.

    >>> import io
    >>> file = io.BytesIO()
    >>> torch.save({"weight": torch.ones(2)}, file)
    >>> [record.name for record in records(file, file.tell())][:2]
    ['data.pkl', '.format_version']
    """
    found: list[Record] = []
    names: set[str] = set()
    position, folder = 0, ""
    begin, entries = _directory(file, size)
    for name, crc32, length, offset in entries:
        if offset != position:
            raise ValueError(f"the record {name!r} begins at {offset}, and the one before ends at {position}")
        above, _, last = name.partition("/")
        if not last or (found and above != folder):
            raise ValueError(f"the record {name!r} is not in the folder {folder!r} of the others")
        if name.lower() in names:  # torch's reader ignores case
            raise ValueError(f"there are two records {name!r}")
        names.add(name.lower())
        folder = above
        content = _content(file, name, length, offset, crc32, begin)
        found.append(Record(last, content, length, crc32))
        position = content + length + len(_descriptor(length, offset, crc32))
    if position != begin:
        raise ValueError(f"the last record ends at {position}, and the directory begins at {begin}")
    return found


def crc32_of(file: BinaryIO, record: Record, into: memoryview | None = None) -> int:
    """Compute the CRC-32 of the content of a record; -1 if the file ends before it.

    Args:
        file: The file.
        record: One of its records.
        into: Writable memory of the size of the record that receives the content, or None.

    >>> import io
    >>> file = io.BytesIO(b"weights")
    >>> crc32_of(file, Record("data/0", 0, 7, 0))
    449999704
    """
    source = cast("io.BytesIO", file)  # of all binary files only some types declare readinto
    source.seek(record.offset)
    block = memoryview(bytearray(min(record.size, _BLOCK))) if into is None else into
    value, done = 0, 0
    while done < record.size:
        begin = 0 if into is None else done
        part = block[begin : begin + min(record.size - done, _BLOCK)]
        count = source.readinto(part)
        if not count:
            return -1
        # While it is in the CPU cache.
        value, done = fast_crc32(part[:count], value), done + count
    return value


def _directory(file: BinaryIO, size: int) -> tuple[int, list[tuple[str, int, int, int]]]:
    """Return the offset of the central directory, and name, checksum, size and offset of each record in it."""
    if size < _END_SIZE:
        raise ValueError("its end is missing")
    end = _bytes(file, size - _END_SIZE, _END_SIZE)
    if end[76:80] != b"PK\x05\x06" or end[:4] != b"PK\x06\x06":
        raise ValueError("its end is missing, or differs from what torch.save writes")
    count, length, begin = struct.unpack_from("<QQQ", end, 32)
    if end != _end(count, length, begin, size) or begin + length != size - _END_SIZE:
        raise ValueError("the end of its directory differs from what torch.save writes")
    directory = _bytes(file, begin, length)
    entries = list(_entries(directory))
    if len(entries) != count:
        raise ValueError(f"its directory has {len(entries)} records of {count}")
    return begin, entries


def _end(count: int, length: int, begin: int, size: int) -> bytes:
    """Return the bytes that follow the central directory."""
    return (
        struct.pack("<4sQHHIIQQQQ", b"PK\x06\x06", 44, 0x31E, 45, 0, 0, count, count, length, begin)
        + struct.pack("<4sIQI", b"PK\x06\x07", 0, size - _END_SIZE, 1)
        + struct.pack(
            "<4s4HIIH", b"PK\x05\x06", 0, 0, *[min(count, _MOST16)] * 2, min(length, _MOST32), min(begin, _MOST32), 0
        )
    )


def _entries(directory: bytes) -> Iterator[tuple[str, int, int, int]]:
    position = 0
    while position < len(directory):
        if position + _CENTRAL_SIZE > len(directory):
            raise ValueError("its directory is cut off")
        crc32, _, size, name_length, extra_length = struct.unpack_from("<IIIHH", directory, position + 16)
        (offset,) = struct.unpack_from("<I", directory, position + 42)
        name_end = position + _CENTRAL_SIZE + name_length
        raw, extra = directory[position + _CENTRAL_SIZE : name_end], directory[name_end : name_end + extra_length]
        if extra:
            wide = iter(struct.unpack(f"<{(len(extra) - 4) // 8}Q", extra[4:]))
            if size == _MOST32:
                size, _ = next(wide, 0), next(wide, 0)
            if offset == _MOST32:
                offset = next(wide, 0)
        name = raw.decode()
        written = _central(raw, crc32, size, offset)
        if directory[position : position + len(written)] != written:
            raise ValueError(f"the entry of {name!r} in its directory differs from what torch.save writes")
        yield name, crc32, size, offset
        position += len(written)


def _central(name: bytes, crc32: int, size: int, offset: int) -> bytes:
    extra = _wide(size, size, offset)
    sizes = [min(size, _MOST32)] * 2
    head = struct.pack("<4s6H", _CENTRAL, 0, 0, _flags(size), 0, 0, 0)
    tail = struct.pack("<5HII", len(name), len(extra), 0, 0, 0, 0, min(offset, _MOST32))
    return head + struct.pack("<III", crc32, *sizes) + tail + name + extra


def _content(file: BinaryIO, name: str, size: int, offset: int, crc32: int, end: int) -> int:
    """Return the offset of the content of a record, after checking its local header and data descriptor."""
    raw = name.encode()
    if offset + 30 + len(raw) + size > end:
        raise ValueError(f"the record {name!r} is longer than the file")
    head = _bytes(file, offset, 30)
    (extra_length,) = struct.unpack_from("<H", head, 28)
    extra = _bytes(file, offset + 30 + len(raw), extra_length)
    # torch writes 0 as the compressed size here.
    wide = _wide(size, 0, offset)
    padding = extra_length - len(wide) - 4
    written = struct.pack("<4s5HIIIHH", _LOCAL, 0, _flags(size), 0, 0, 0, 0, 0, 0, len(raw), extra_length) + raw
    begin = offset + len(written) + extra_length
    if (
        head + _bytes(file, offset + 30, len(raw)) != written
        or padding < 0
        or extra != wide + _PADDING_ID + struct.pack("<H", padding) + _PADDING * padding
    ):
        raise ValueError(f"the header of the record {name!r} differs from what torch.save writes")
    after = _descriptor(size, offset, crc32)
    if begin + size + len(after) > end or _bytes(file, begin + size, len(after)) != after:
        raise ValueError(f"what follows the record {name!r} differs from what torch.save writes")
    return begin


def _descriptor(size: int, offset: int, crc32: int) -> bytes:
    """Return the data descriptor that follows a record."""
    if not size:
        return b""
    return struct.pack("<4sIQQ" if _wide(size, size, offset) else "<4sIII", _DESCRIPTOR, crc32, size, size)


def _wide(size: int, stored: int, offset: int) -> bytes:
    """Return the zip64 extra field, for numbers of a header that need 64 bits."""
    numbers = [*([size, stored] if size >= _MOST32 else []), *([offset] if offset >= _MOST32 else [])]
    return struct.pack(f"<HH{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""


def _flags(size: int) -> int:
    return _UTF8 | (_FOLLOWED if size else 0)


def _bytes(file: BinaryIO, offset: int, length: int) -> bytes:
    file.seek(offset)
    content = file.read(length)
    if len(content) != length:
        raise ValueError("it is cut off")
    return content
