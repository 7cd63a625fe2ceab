"""Checkpoint files in ``torch.save`` format: written atomically, verified by checksums, read without running code."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import pickle
import re
import secrets
import sys
import zlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor, UntypedStorage

from composer.checkpoint.legacy_torch_file import check_legacy, is_legacy
from composer.checkpoint.outline_values import OtherFormError, allowed_globals, has_plain_calls, value_of
from composer.checkpoint.pickle_nodes import Persistent
from composer.checkpoint.pickle_outline import CodeError, Outline, collector_paused, outline
from composer.checkpoint.record_reader import read_records
from composer.checkpoint.torch_index import check_index, paths_of_storages, storage_of
from composer.checkpoint.zip_layout import Record, crc32_of, records

__all__ = [
    "DamagedCheckpointError",
    "UnsafeCheckpointError",
    "check",
    "damage_of",
    "read",
    "read_tensor",
    "replacing",
    "sync_folder",
    "with_checksums",
    "write",
]

_DATA = "data/"
# All records that torch.save writes, in any release.
_RECORD = re.compile(
    r"data\.pkl|version|byteorder|\.format_version|\.storage_alignment|\.data/serialization_id|data/\d+"
)
_MOST_INDEX, _SMALL_INDEX = 1 << 28, 1 << 12
_BYTE_ORDER = zlib.crc32(sys.byteorder.encode())  # of the record that names it
_OTHER_FORM = object()


class DamagedCheckpointError(RuntimeError):
    """A checkpoint is corrupted: it differs from what was written.

    >>> issubclass(DamagedCheckpointError, RuntimeError)
    True
    """


class UnsafeCheckpointError(RuntimeError):
    """Reading a checkpoint would run code.

    >>> issubclass(UnsafeCheckpointError, RuntimeError)
    True
    """


def write(content: dict[str, Any], path: Path | str) -> None:
    """Write a checkpoint atomically: under a temporary name, renamed when it is complete and on disk.

    A crash at any time leaves the previous file.

    Args:
        content: Tensors, numbers, text, and containers of them.
        path: The destination; its folder is created.

    Raises:
        OSError: The disk is full, or the folder is not writable; no partial file is left.

    >>> write({"state": {"model": {"weight": torch.ones(1)}}}, tmp_path / "ep1.pt")
    >>> read(tmp_path / "ep1.pt")
    {'state': {'model': {'weight': tensor([1.])}}}
    """
    with replacing(path) as temporary, temporary.open("wb") as file, with_checksums():
        try:
            torch.save(content, file)
        except RuntimeError as error:
            # torch hides the OSError behind its own error about the unfinished file.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def with_checksums() -> Generator[None]:
    """Make torch write checksums, which reading requires, regardless of the user's setting.

    >>> with with_checksums():
    ...     torch.save({}, tmp_path / "a.pt")
    """
    settings: Any = torch.serialization
    if not hasattr(settings, "set_crc32_options") or settings.get_crc32_options():
        yield  # releases without the option always write them
        return
    settings.set_crc32_options(True)
    try:
        yield
    finally:
        settings.set_crc32_options(False)


@contextlib.contextmanager
def replacing(path: Path | str) -> Generator[Path]:
    """Yield a temporary path, which is renamed to the given path if the block succeeds.

    Args:
        path: The final path; its folder is created.

    >>> with replacing(tmp_path / "a.txt") as temporary:
    ...     _ = temporary.write_text("whole")
    >>> [path.name for path in tmp_path.iterdir()]
    ['a.txt']
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def read(
    path: Path | str, map_location: Any = "cpu", *, mapped: bool = False, known: Sequence[Any] = ()
) -> dict[str, Any]:
    """Read a checkpoint.

    Args:
        path: A file written by :func:`write`, by MosaicML Composer, or by :func:`torch.save` of plain content.
        map_location: Device of the tensors, or anything else that :func:`torch.load` accepts.
        mapped: Whether to memory-map the tensors, if the format allows it.
        known: Further allowed classes; constructing one must not run code from the file.

    Raises:
        FileNotFoundError: The file does not exist.
        DamagedCheckpointError: It is truncated or changed, or is not a dict; the message names the corrupted entries.
        UnsafeCheckpointError: It has objects whose construction would run code.

    >>> write({"state": {"weight": torch.ones(2)}}, tmp_path / "a.pt")
    >>> read(tmp_path / "a.pt")
    {'state': {'weight': tensor([1., 1.])}}
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint {str(path)!r}.")
    content = _OTHER_FORM
    if not mapped and map_location in ("cpu", torch.device("cpu")) and _is_zip(path):
        with collector_paused():
            content = _read_zip(path)
    else:
        check(path)
    if content is _OTHER_FORM:
        content = _loaded(
            path, repr(str(path)), map_location=map_location, known=known, mapped=mapped and _is_zip(path)
        )
    if not isinstance(content, dict):
        raise DamagedCheckpointError(
            f"{str(path)!r} is not a checkpoint: it holds a {type(content).__name__}, but must hold a dict."
        )
    return cast("dict[str, Any]", content)


def read_tensor(file: io.BytesIO, name: str, *, checked: bool = False) -> Tensor:
    """Read a single tensor that :func:`torch.save` has written.

    Args:
        file: The content of the file.
        name: Name of the tensor in error messages.
        checked: Whether the checksum was verified before.

    Raises:
        DamagedCheckpointError: It is truncated or changed.
        UnsafeCheckpointError: It is an object whose construction would run code.

    >>> file = io.BytesIO()
    >>> torch.save(torch.ones(2), file)
    >>> read_tensor(file, "the weight")
    tensor([1., 1.])
    """
    _check_zip(file, file.getbuffer().nbytes, name, checksums=not checked)
    file.seek(0)
    tensor = _loaded(file, name)
    if type(tensor) is not Tensor:
        raise DamagedCheckpointError(f"{name} is damaged: it is a {type(tensor).__name__}, not a tensor.")
    return tensor


def check(path: Path | str) -> None:
    """Verify a checkpoint: its checksums, its structure, and the description of its tensors.

    Args:
        path: The file.

    Raises:
        DamagedCheckpointError: It is corrupted or truncated; the message names the corrupted entries.
        UnsafeCheckpointError: Reading it would run code.

    >>> write({"state": {}}, tmp_path / "ep1.pt")
    >>> check(tmp_path / "ep1.pt")
    """
    path = Path(path)
    with path.open("rb") as file:
        begin = file.read(4)
        if begin == b"PK\x03\x04":
            found, content = _structure(file, path.stat().st_size, repr(str(path)))
            with damage_of(repr(str(path)), "its index"):
                _check_index(content, _sizes(found))
            _compare(read_records(path, found, {}), found, content, repr(str(path)))
            return
    if not is_legacy(begin):
        raise DamagedCheckpointError(
            f"{str(path)!r} is not a complete checkpoint: it is truncated or another type of file. Load an earlier one."
        )
    with damage_of(repr(str(path)), "its content"):
        check_legacy(path)


@contextlib.contextmanager
def damage_of(name: str, part: str) -> Generator[None]:
    """Raise any failure in the block as a corrupted file; system errors are raised unchanged.

    Args:
        name: Name of the file.
        part: The component of the file that the block reads.

    Raises:
        DamagedCheckpointError: The block failed.
        UnsafeCheckpointError: An instruction that constructs objects was found.

    >>> with damage_of("'ep1.pt'", "its index"):
    ...     raise ValueError("it is cut off")
    Traceback (most recent call last):
    composer.checkpoint.file_format.DamagedCheckpointError: 'ep1.pt' is damaged in its index: it is cut off.
    """
    try:
        yield
    except (DamagedCheckpointError, UnsafeCheckpointError, OSError, MemoryError, Warning):
        raise
    except CodeError as error:
        raise UnsafeCheckpointError(f"{name} is not read, because that could run code: {error}.") from error
    except Exception as error:
        reason = str(error).rstrip(".") if isinstance(error, (ValueError, RuntimeError)) else repr(error)
        raise DamagedCheckpointError(f"{name} is damaged in {part}: {reason}.") from error


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _read_zip(path: Path) -> Any:
    """Return the content of a file after verifying it, or _OTHER_FORM if only torch.load reads its form."""
    name = repr(str(path))
    with path.open("rb") as file:
        found, content = _structure(file, path.stat().st_size, name)
    with damage_of(name, "its index"):
        described = _check_index(content, _sizes(found))
    byte_order = next((one for one in found if one.name == "byteorder"), None)
    if not has_plain_calls(described) or byte_order is None or byte_order.crc32 != _BYTE_ORDER:
        _compare(read_records(path, found, {}), found, content, name)
        return _OTHER_FORM
    # What no tensor refers to is verified and not kept.
    used = {_DATA + storage_of(node).key for node in described.nodes if type(node) is Persistent}
    storages = {one.name: UntypedStorage(one.size, device="cpu") for one in found if one.name in used}
    _compare(read_records(path, found, storages), found, content, name)
    with damage_of(name, "its index"):
        try:
            return value_of(described, {key.removeprefix(_DATA): storage for key, storage in storages.items()})
        except OtherFormError:
            return _OTHER_FORM


def _check_zip(file: BinaryIO, size: int, name: str, *, checksums: bool = True) -> None:
    found, content = _structure(file, size, name, checksums=checksums)
    # The indexes of the tensors in a sharded folder are alike.
    check = _check_small_index if len(content) < _SMALL_INDEX else _check_index
    with damage_of(name, "its index"):
        check(content, _sizes(found))
    if checksums:
        _compare([crc32_of(file, one) for one in found], found, content, name)


def _structure(file: BinaryIO, size: int, name: str, *, checksums: bool = True) -> tuple[list[Record], bytes]:
    """Return the records and the pickled index of a file, after verifying all bytes outside the other records."""
    with damage_of(name, "its structure"):
        found = records(file, size)
        index = next((one for one in found if one.name == "data.pkl"), None)
        if strange := [one.name for one in found if not _RECORD.fullmatch(one.name)]:
            raise ValueError(f"it has the record {strange[0]!r}, which torch.save does not write")
        if index is None:
            raise ValueError("it has no index, which torch.save writes as 'data.pkl'")
        keys = [one.name.removeprefix(_DATA) for one in found if one.name.startswith(_DATA)]
        # Checksums do not detect swapped names. Older releases sort the numbers as text.
        if keys not in (sorted(keys, key=int), sorted(keys)):
            raise ValueError("its records are not in the order in which torch.save writes them")
    if all(not one.crc32 for one in found):
        raise DamagedCheckpointError(
            f"{name} was written without checksums, so corruption could not be detected. Read it with torch.load, and "
            f"save it again after torch.serialization.set_crc32_options(True)."
        )
    if checksums and crc32_of(file, index) != index.crc32:
        raise DamagedCheckpointError(_damage_message(name, ["its index"]))
    if index.size > _MOST_INDEX:
        raise DamagedCheckpointError(f"{name} is damaged in its index: it has {index.size} bytes.")
    file.seek(index.offset)
    return found, file.read(index.size)


def _sizes(found: Sequence[Record]) -> tuple[tuple[str, int], ...]:
    return tuple((one.name.removeprefix(_DATA), one.size) for one in found if one.name.startswith(_DATA))


def _check_index(content: bytes, storages: tuple[tuple[str, int], ...]) -> Outline:
    described = outline(content)
    if described.end != len(content):
        raise ValueError(f"it ends {len(content) - described.end} bytes before its end")
    check_index(described, dict(storages))
    return described


@functools.lru_cache(maxsize=256)
def _check_small_index(content: bytes, storages: tuple[tuple[str, int], ...]) -> None:
    _check_index(content, storages)


def _compare(checksums: Sequence[int], found: Sequence[Record], content: bytes, name: str) -> None:
    """Raise with the entries whose checksums differ from those in the directory."""
    damaged = [one.name for one, crc32 in zip(found, checksums, strict=True) if crc32 != one.crc32]
    if damaged:
        keys = {name.removeprefix(_DATA) for name in damaged if name.startswith(_DATA)}
        parts = [repr(path) for path, key in paths_of_storages(outline(content).root) if key in keys]
        raise DamagedCheckpointError(_damage_message(name, parts or [f"the record {one!r}" for one in damaged]))


def _damage_message(name: str, parts: list[str]) -> str:
    return (
        f"{name} is damaged: the checksums of {', '.join(parts)} do not match. Load an earlier checkpoint, or copy the "
        f"other entries to a new one."
    )


def _loaded(file: Any, name: str, *, map_location: Any = "cpu", known: Sequence[Any] = (), mapped: bool = False) -> Any:
    if isinstance(map_location, (str, torch.device)):
        torch.empty(0, device=map_location)  # a missing device is not a corrupted file
    try:
        # Without this check, sparse tensors with out-of-range indices could write anywhere in memory.
        sparse = torch.sparse.check_sparse_tensor_invariants()
        with torch.serialization.safe_globals([*allowed_globals(), *known]), sparse:
            return torch.load(file, map_location=map_location, weights_only=True, mmap=mapped or None)
    except pickle.UnpicklingError as error:
        raise UnsafeCheckpointError(
            f"{name} holds more than tensors, numbers, text and containers of them, and is not read because "
            f"that could run code: {_reason(error)}"
        ) from error
    except (OSError, MemoryError, torch.OutOfMemoryError, Warning):
        raise
    except Exception as error:
        if "allocate memory" in str(error):  # not corruption, since the sizes were verified before
            raise
        raise DamagedCheckpointError(f"{name} cannot be read as a checkpoint: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Return what torch rejects, without its advice to allow it."""
    text = str(error)
    found = re.search(r"unsupported .*?(?=$|\. |\.$)", text, flags=re.IGNORECASE | re.MULTILINE)
    return f"{found[0] if found else text.partition('. ')[0].partition(chr(10))[0].rstrip('.')}."


def sync_folder(folder: Path) -> None:
    """Flush new directory entries to disk (``fsync``); does nothing on systems other than POSIX.

    Args:
        folder: The directory.

    >>> sync_folder(tmp_path)
    """
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
