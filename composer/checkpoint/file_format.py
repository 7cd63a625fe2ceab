"""Checkpoint files: written whole or not at all, checked when they are read, and read without running anything."""

from __future__ import annotations

import contextlib
import datetime
import functools
import io
import os
import pickle
import re
import secrets
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor
from torch.torch_version import TorchVersion

from composer.checkpoint.legacy_torch_file import check_legacy, is_legacy
from composer.checkpoint.pickle_outline import CodeError, outline
from composer.checkpoint.torch_index import check_index, paths_of_storages
from composer.checkpoint.zip_layout import crc32_of, records

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
# All that torch.save writes, of any release.
_RECORD = re.compile(
    r"data\.pkl|version|byteorder|\.format_version|\.storage_alignment|\.data/serialization_id|data/\d+"
)
_MOST_INDEX, _SMALL_INDEX = 1 << 28, 1 << 12


class DamagedCheckpointError(RuntimeError):
    """A checkpoint is not what was written.

    >>> issubclass(DamagedCheckpointError, RuntimeError)
    True
    """


class UnsafeCheckpointError(RuntimeError):
    """A checkpoint would run code when it is read.

    >>> issubclass(UnsafeCheckpointError, RuntimeError)
    True
    """


def write(content: dict[str, Any], path: Path | str) -> None:
    """Write a checkpoint under a temporary name and rename it when it is complete and on the disk.

    A crash at any moment leaves the file that was there before.

    Args:
        content: Tensors, numbers, text, and containers of them.
        path: Where to; its folder is made.

    Raises:
        OSError: The disk is full, or the folder may not be written to; no part is left behind then.

    >>> write({"state": {"model": {"weight": torch.ones(1)}}}, tmp_path / "ep1.pt")
    >>> read(tmp_path / "ep1.pt")
    {'state': {'model': {'weight': tensor([1.])}}}
    """
    with replacing(path) as temporary, temporary.open("wb") as file, with_checksums():
        try:
            torch.save(content, file)
        except RuntimeError as error:
            # What the system has said is hidden behind a torch that could not end its file.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise
        file.flush()
        os.fsync(file.fileno())


@contextlib.contextmanager
def with_checksums() -> Generator[None]:
    """Have torch write the checksums without which a file is not read, whatever the user has set.

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
    """Give a temporary path beside another, to which what stands there is moved when the block ends well.

    Args:
        path: Where the content is to be at last; its folder is made.

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
        path: A file written by :func:`write`, by the predecessor, or by :func:`torch.save` of plain content.
        map_location: Where its tensors go: a device, its name, or what else :func:`torch.load` takes.
        mapped: Whether its tensors come from the disk when they are used, where the format allows that.
        known: Further classes that it may hold; making one must not run anything that the file says.

    Raises:
        FileNotFoundError: There is no such file.
        DamagedCheckpointError: It was cut off or changed, or holds something else than a dict; the message names the
            parts.
        UnsafeCheckpointError: It holds objects whose reading would run code.

    >>> write({"state": {"weight": torch.ones(2)}}, tmp_path / "a.pt")
    >>> read(tmp_path / "a.pt")
    {'state': {'weight': tensor([1., 1.])}}
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint {str(path)!r}.")
    check(path)
    content = _loaded(path, repr(str(path)), map_location=map_location, known=known, mapped=mapped and _is_zip(path))
    if not isinstance(content, dict):
        raise DamagedCheckpointError(
            f"{str(path)!r} is no checkpoint: it holds a {type(content).__name__}, where a dict is due."
        )
    return cast("dict[str, Any]", content)


def read_tensor(file: io.BytesIO, name: str, *, checked: bool = False) -> Tensor:
    """Read a tensor out of what :func:`torch.save` has written of it alone.

    Args:
        file: What it has written.
        name: What it is called in errors.
        checked: Whether the content was compared with a checksum before.

    Raises:
        DamagedCheckpointError: It was cut off or changed.
        UnsafeCheckpointError: It is something whose reading would run code.

    >>> file = io.BytesIO()
    >>> torch.save(torch.ones(2), file)
    >>> read_tensor(file, "the weight")
    tensor([1., 1.])
    """
    _check_zip(file, file.getbuffer().nbytes, name, checksums=not checked)
    file.seek(0)
    tensor = _loaded(file, name)
    if type(tensor) is not Tensor:
        raise DamagedCheckpointError(f"{name} is damaged: it is a {type(tensor).__name__}, where a tensor is due.")
    return tensor


def check(path: Path | str) -> None:
    """Compare a checkpoint with what a writer leaves: its checksums, its structure, and what it says of its tensors.

    Args:
        path: The file.

    Raises:
        DamagedCheckpointError: They differ, or the file is cut off; the message names the damaged parts.
        UnsafeCheckpointError: Reading it would run code.

    >>> write({"state": {}}, tmp_path / "ep1.pt")
    >>> check(tmp_path / "ep1.pt")
    """
    path = Path(path)
    with path.open("rb") as file:
        begin = file.read(4)
        if begin == b"PK\x03\x04":
            _check_zip(file, path.stat().st_size, repr(str(path)))
            return
    if not is_legacy(begin):
        raise DamagedCheckpointError(
            f"{str(path)!r} is no complete checkpoint: its end is missing, or it never was one. Load an earlier one."
        )
    with damage_of(repr(str(path)), "its content"):
        check_legacy(path)


@contextlib.contextmanager
def damage_of(name: str, part: str) -> Generator[None]:
    """Tell whatever fails in the block as damage of a file; errors of the system stay what they are.

    Args:
        name: Of the file.
        part: What of it is read in the block.

    Raises:
        DamagedCheckpointError: Something failed.
        UnsafeCheckpointError: An instruction was found that makes objects.

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
        said = str(error).rstrip(".") if isinstance(error, (ValueError, RuntimeError)) else repr(error)
        raise DamagedCheckpointError(f"{name} is damaged in {part}: {said}.") from error


def _is_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"


def _check_zip(file: BinaryIO, size: int, name: str, *, checksums: bool = True) -> None:
    with damage_of(name, "its structure"):
        found = records(file, size)
        index = next((one for one in found if one.name == "data.pkl"), None)
        if strange := [one.name for one in found if not _RECORD.fullmatch(one.name)]:
            raise ValueError(f"it has the record {strange[0]!r}, which torch.save does not write")
        if index is None:
            raise ValueError("it has no index, which torch.save writes as 'data.pkl'")
        keys = [one.name.removeprefix(_DATA) for one in found if one.name.startswith(_DATA)]
        # No checksum shows that names were exchanged. Older releases sort the numbers as text.
        if keys not in (sorted(keys, key=int), sorted(keys)):
            raise ValueError("its records are not in the order in which torch.save writes them")
    if all(not one.crc32 for one in found):
        raise DamagedCheckpointError(
            f"{name} was written without checksums, so that damage could not be noticed. Read it with torch.load, and "
            f"save it again after torch.serialization.set_crc32_options(True)."
        )
    if checksums and crc32_of(file, index) != index.crc32:
        raise DamagedCheckpointError(_told(name, ["its index"]))
    with damage_of(name, "its index"):
        if index.size > _MOST_INDEX:
            raise ValueError(f"it has {index.size} bytes")
        file.seek(index.offset)
        content = file.read(index.size)
        storages = {one.name.removeprefix(_DATA): one.size for one in found if one.name.startswith(_DATA)}
        # Those of the tensors in a folder are alike.
        check = _check_small_index if index.size < _SMALL_INDEX else _check_index
        check(content, tuple(storages.items()))
    damaged = [one.name for one in found if checksums and crc32_of(file, one) != one.crc32]
    if damaged:
        keys = {name.removeprefix(_DATA) for name in damaged if name.startswith(_DATA)}
        parts = [repr(path) for path, key in paths_of_storages(outline(content).root) if key in keys]
        raise DamagedCheckpointError(_told(name, parts or [f"the record {one!r}" for one in damaged]))


def _check_index(content: bytes, storages: tuple[tuple[str, int], ...]) -> None:
    described = outline(content)
    if described.end != len(content):
        raise ValueError(f"it ends {len(content) - described.end} bytes before its end")
    check_index(described, dict(storages))


_check_small_index = functools.lru_cache(maxsize=256)(_check_index)


def _told(name: str, parts: list[str]) -> str:
    return (
        f"{name} is damaged: the checksums of {', '.join(parts)} are not those of what was written. Load an earlier "
        f"checkpoint, or leave these parts out by copying the others."
    )


def _loaded(file: Any, name: str, *, map_location: Any = "cpu", known: Sequence[Any] = (), mapped: bool = False) -> Any:
    if isinstance(map_location, (str, torch.device)):
        torch.empty(0, device=map_location)  # a device that is not there is no damage of the file
    try:
        # Sparse tensors whose indices are outside are found only so; those who use them would write anywhere.
        sparse = torch.sparse.check_sparse_tensor_invariants()
        with torch.serialization.safe_globals([*_allowed(), *known]), sparse:
            return torch.load(file, map_location=map_location, weights_only=True, mmap=mapped or None)
    except pickle.UnpicklingError as error:
        raise UnsafeCheckpointError(
            f"{name} holds more than tensors, numbers, text and containers of them, and is not read, because "
            f"that could run code: {_reason(error)}"
        ) from error
    except (OSError, MemoryError, torch.OutOfMemoryError, Warning):
        raise
    except Exception as error:
        if "allocate memory" in str(error):  # of what is there, as the sizes were compared with the file before
            raise
        raise DamagedCheckpointError(f"{name} cannot be read as a checkpoint: {_reason(error)}") from error


@functools.lru_cache(maxsize=1)
def _allowed() -> list[Any]:
    """The types beside torch's own that checkpoints hold; making one runs no code of the file."""
    allowed: list[Any] = [datetime.timedelta, TorchVersion, bytes]  # which torch leaves out where they are empty
    try:
        import numpy as np
    except ModuleNotFoundError:
        return allowed
    dtypes = [type(np.dtype(kind)) for kind in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")]
    rebuild = np.ndarray.__reduce__(np.zeros(1))[0]
    scalar = np.float64(0).__reduce__()[0]
    # Files written with NumPy 1 name the module without an underscore.
    old = [(rebuild, "numpy.core.multiarray._reconstruct"), (scalar, "numpy.core.multiarray.scalar")]
    return [*allowed, np.ndarray, np.dtype, *dtypes, rebuild, scalar, *old]


def _reason(error: Exception) -> str:
    """What torch says is not allowed, without its advice to allow it."""
    text = str(error)
    found = re.search(r"unsupported .*?(?=$|\. |\.$)", text, flags=re.IGNORECASE | re.MULTILINE)
    return f"{found[0] if found else text.partition('. ')[0].partition(chr(10))[0].rstrip('.')}."


def sync_folder(folder: Path) -> None:
    """Have new names on the disk too; where a folder cannot be opened as a file, the system takes care of it.

    Args:
        folder: Has the names.

    >>> sync_folder(tmp_path)
    """
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
