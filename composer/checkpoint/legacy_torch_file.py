"""Check files in the legacy format of ``torch.save`` (before 1.6) from the first byte to the last.

Such a file is a sequence of pickles (magic number, version, system information, content, keys of the storages), and
then the length and the bytes of each storage. It has no checksums, so a changed weight cannot be detected. A missing
storage can, which ``torch.load`` leaves as uninitialized memory.
"""

from __future__ import annotations

import mmap
import tarfile
from pathlib import Path
from typing import Any

from composer.checkpoint.pickle_nodes import Persistent
from composer.checkpoint.pickle_outline import outline
from composer.checkpoint.torch_index import Storage, check_index, storage_of

__all__ = ["check_legacy", "is_legacy"]

_MAGIC, _VERSION = 0x1950A86A20F9469CFC6C, 1001


def is_legacy(begin: bytes) -> bool:
    """Return whether a file begins with a pickle, as files in the legacy format do.

    Args:
        begin: The first bytes of the file.

    >>> is_legacy(b"\\x80\\x02"), is_legacy(b"PK")
    (True, False)
    """
    return begin[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")


def check_legacy(path: Path | str) -> None:
    """Check that a file in the legacy format is complete and consistent.

    Args:
        path: The file.

    Raises:
        ValueError: It is not; the message names the problem.

    >>> torch.save({"weight": torch.ones(2)}, tmp_path / "a.pt", _use_new_zipfile_serialization=False)
    >>> check_legacy(tmp_path / "a.pt")
    """
    if tarfile.is_tarfile(path):  # torch would read it as one
        raise ValueError("it is a tar file")
    with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        magic = outline(data)
        version = outline(data, magic.end)
        system = outline(data, version.end)
        content = outline(data, system.end)
        keys = outline(data, content.end)
        if (magic.root, version.root) != (_MAGIC, _VERSION):
            raise ValueError("it does not begin as a file of torch does")
        found = [storage_of(node) for node in content.nodes if type(node) is Persistent]
        storages: dict[str, Storage] = {}
        for one in found:
            if storages.setdefault(one.key, one) != one:
                raise ValueError(f"it describes its storage {one.key!r} in two ways")
        check_index(content, _sizes(data, keys.root, keys.end, storages))
        for node in content.nodes:
            if type(node) is Persistent and len(node.key) == 6 and node.key[5] is not None:
                raise ValueError("it has a view of a storage, which torch has not written since 0.4")


def _sizes(data: Any, keys: Any, position: int, storages: dict[str, Storage]) -> dict[str, int]:
    """Return the number of bytes of each storage, after checking that all bytes are present."""
    sizes: dict[str, int] = {}
    # Python 2 wrote strings as bytes.
    names = [key.decode() if type(key) is bytes else key for key in keys] if type(keys) is list else []
    if len(names) != len(storages) or set(names) != set(storages):
        raise ValueError("its storages are not those of its tensors")
    for key in names:
        count = int.from_bytes(data[position : position + 8], "little")
        sizes[key] = count * storages[key].itemsize
        position += 8 + sizes[key]
        if position > len(data):
            raise ValueError(f"its storage {key!r} is cut off")
    if position != len(data):
        raise ValueError(f"it has {len(data) - position} bytes more than it describes")
    return sizes
