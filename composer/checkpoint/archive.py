"""Checkpoint files: written whole or not at all, checked when they are read, and read without running anything."""

from __future__ import annotations

import collections
import contextlib
import datetime
import io
import os
import pickle
import re
import secrets
import zipfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch.torch_version import TorchVersion

__all__ = ["DamagedCheckpointError", "UnsafeCheckpointError", "check", "read", "replacing", "sync_folder", "write"]


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
    with replacing(path) as temporary, temporary.open("wb") as file:
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


def read(path: Path | str, map_location: str = "cpu", *, mapped: bool = False) -> dict[str, Any]:
    """Read a checkpoint.

    Args:
        path: A file written by :func:`write`, by the predecessor, or by :func:`torch.save` of plain content.
        map_location: Where its tensors go.
        mapped: Whether its tensors come from the disk when they are used, where the format allows that.

    Raises:
        FileNotFoundError: There is no such file.
        DamagedCheckpointError: It was cut off or changed; the message names the parts.
        UnsafeCheckpointError: It holds objects whose reading would run code.
        ValueError: It holds something else than a dict.

    >>> write({"state": {"weight": torch.ones(2)}}, tmp_path / "a.pt")
    >>> read(tmp_path / "a.pt")
    {'state': {'weight': tensor([1., 1.])}}
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"There is no checkpoint {str(path)!r}.")
    check(path)
    torch.empty(0, device=map_location)  # a device that is not there is no damage of the file
    try:
        with torch.serialization.safe_globals(_allowed()):
            mapped = mapped and zipfile.is_zipfile(path)
            content = torch.load(path, map_location=map_location, weights_only=True, mmap=mapped or None)
    except pickle.UnpicklingError as error:
        raise UnsafeCheckpointError(
            f"{str(path)!r} holds more than tensors, numbers, text and containers of them, and is not read, because "
            f"that could run code: {_reason(error)}"
        ) from error
    except (OSError, Warning):
        raise
    except Exception as error:  # the old format of torch, which has no checksums, fails in many ways when it is cut off
        raise DamagedCheckpointError(f"{str(path)!r} cannot be read as a checkpoint: {_reason(error)}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{str(path)!r} is no checkpoint: it holds a {type(content).__name__}, where a dict is due.")
    return cast("dict[str, Any]", content)


def check(path: Path | str) -> None:
    """Compare the checksums of a checkpoint with its content.

    Args:
        path: The file.

    Raises:
        DamagedCheckpointError: They differ, or the file is cut off; the message names the damaged parts.

    >>> write({"state": {}}, tmp_path / "ep1.pt")
    >>> check(tmp_path / "ep1.pt")
    """
    if not zipfile.is_zipfile(path):
        with Path(path).open("rb") as file:
            if file.read(2) in (b"\x80\x02", b"\x80\x03", b"\x80\x04"):
                return  # the old format of torch, which has no checksums
        raise DamagedCheckpointError(
            f"{str(path)!r} is no complete checkpoint: its end is missing, or it never was one. Load an earlier one."
        )
    with zipfile.ZipFile(path) as archive:
        damaged = [name for name in archive.namelist() if not _is_intact(archive, name)]
        if not damaged:
            return
        parts = _parts_of(archive, damaged)
    raise DamagedCheckpointError(
        f"{str(path)!r} is damaged: the checksums of {', '.join(parts)} are not those of what was written. Load an "
        f"earlier checkpoint, or leave these parts out by copying the others."
    )


def _is_intact(archive: zipfile.ZipFile, name: str) -> bool:
    try:
        with archive.open(name) as record:
            while record.read(1 << 22):  # the checksum is compared at the end
                pass
    except (zipfile.BadZipFile, OSError, EOFError):
        return False
    return True


def _parts_of(archive: zipfile.ZipFile, damaged: list[str]) -> list[str]:
    """The paths in the checkpoint of the tensors that damaged records hold."""
    index = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
    if index in damaged:
        return ["its index"]
    found: list[str] = []
    # An index that was not written by us may describe anything; the damage is told in any case.
    with contextlib.suppress(Exception):
        tree = _Outline(io.BytesIO(archive.read(index or ""))).load()
        keys = {name.rpartition("/")[2] for name in damaged}
        found = [f"'{path}'" for path, key in _storages(tree, "") if key in keys]
    return found or [f"the record {name!r}" for name in damaged]


class _Stub:
    """Stands for any object of an index that is only looked at."""

    parts: tuple[Any, ...] = ()

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __call__(self, *parts: Any) -> _Stub:
        return _Stub(*parts)

    def __setstate__(self, state: Any) -> None:
        self.parts = (*self.parts, state)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.parts = (*self.parts, {key: value})


class _Outline(pickle.Unpickler):
    """Reads an index without making any of the objects that it describes."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        return _Stub

    def persistent_load(self, pid: Any, /) -> Any:
        return _Storage(str(pid[2]))


class _Storage:
    def __init__(self, key: str) -> None:
        self.key = key


def _storages(node: Any, path: str) -> Iterator[tuple[str, str]]:
    """The path and the record of each tensor."""
    if isinstance(node, _Storage):
        yield path, node.key
    elif isinstance(node, dict):
        for key, value in cast("dict[Any, Any]", node).items():
            yield from _storages(value, f"{path}/{key}".lstrip("/"))
    elif isinstance(node, (list, tuple)):
        for number, value in enumerate(cast("list[Any]", node)):
            yield from _storages(value, f"{path}/{number}".lstrip("/"))
    elif isinstance(node, _Stub):
        for part in node.parts:
            yield from _storages(part, path)


def _allowed() -> list[Any]:
    """The types beside torch's own that checkpoints hold; making one runs no code of the file."""
    allowed: list[Any] = [datetime.timedelta, TorchVersion]
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
