"""Refuse changes of existing files while a step is replayed: a callback of the program may open those of the run."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from composer.core.callback import Callback

__all__ = ["FileRefusedError", "changed_files", "unchanged_files"]

_WRITES = os.O_WRONLY | os.O_RDWR
_PACKAGE = str(Path(__file__).parents[2])
# Folders of code that writes for others.
_LIBRARIES = tuple({_PACKAGE, *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))})
_active: _Guard | None = None
_is_hooked = False


class FileRefusedError(PermissionError):
    """A program would change an existing file while one of its steps is replayed.

    >>> issubclass(FileRefusedError, OSError)
    True
    """


@contextlib.contextmanager
def unchanged_files(
    folders: Iterable[str | Path], remedy: str, *, callback_remedy: str = "", own_thread: bool = False
) -> Generator[list[FileRefusedError]]:
    """Refuse to write, remove, rename or truncate existing files below folders for the duration of a ``with`` block.

    New files are allowed, and so are caches: hidden files and folders, ``__pycache__``, locks, temporary files. What
    Python itself does not open is not seen, such as files of libraries in other languages, except ``torch.save``.

    Args:
        folders: The folders.
        remedy: What to do instead.
        callback_remedy: What to do instead if a callback changes the file; "{name}" stands for its class.
        own_thread: Whether only the current thread is refused.

    Yields:
        What was refused so far: programs may catch the errors.

    Raises:
        FileRefusedError: In the block: the program would change a file.

    >>> path = tmp_path / "metrics.csv"
    >>> _ = path.write_text("step,loss")
    >>> with unchanged_files([tmp_path], "Write to another file."):
    ...     path.open("w")
    Traceback (most recent call last):
    ...
    composer.trainer.replay.file_guard.FileRefusedError: ... opens '...metrics.csv' for writing, ...
    """
    global _active, _is_hooked
    if _active is not None:  # of the command, around the whole program
        yield _active.refused
        return
    if not _is_hooked:
        sys.addaudithook(_audit)  # stays until the process ends
        _is_hooked = True
    guard = _Guard([Path(folder).resolve() for folder in folders], remedy, callback_remedy, own_thread)
    _active = guard
    try:
        with _audited_torch_save():
            yield guard.refused
    finally:
        _active = None


@contextlib.contextmanager
def changed_files() -> Generator[None]:
    """Allow to change files again for the duration of a ``with`` block: those that the caller asks for.

    >>> with changed_files():
    ...     pass
    """
    global _active
    guard, _active = _active, None
    try:
        yield
    finally:
        _active = guard


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _active is not None and (check := _EVENTS.get(event)) is not None:
        check(_active, *arguments)


@contextlib.contextmanager
def _audited_torch_save() -> Generator[None]:
    """Announce the files of ``torch.save``, which it opens in C++."""
    save = torch.save

    def announced(obj: object, f: Any, *positional: Any, **named: Any) -> None:
        if isinstance(f, str | os.PathLike):
            sys.audit("open", os.fspath(f), "wb", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        save(obj, f, *positional, **named)

    torch.save = torch.serialization.save = announced
    try:
        yield
    finally:
        torch.save = torch.serialization.save = save


class _Guard:
    """What may not change."""

    def __init__(self, folders: list[Path], remedy: str, callback_remedy: str, own_thread: bool) -> None:
        self.refused: list[FileRefusedError] = []
        self._folders, self._remedy, self._callback_remedy = folders, remedy, callback_remedy or remedy
        self._temporary = Path(tempfile.gettempdir()).resolve()
        self._created: set[Path] = set()
        self._thread = threading.get_ident() if own_thread else None

    def open(self, path: Any, mode: str | None, flags: int) -> None:
        """Check a call of ``open`` or ``os.open``."""
        if not flags & (_WRITES | os.O_TRUNC | os.O_APPEND) or not isinstance(path, str | bytes | os.PathLike):
            return
        is_update = not flags & (os.O_TRUNC | os.O_APPEND | os.O_WRONLY)
        if is_update and _is_called_by_numpy():  # memory-maps data so, to read it
            return
        self._check("opens {} for writing", path)

    def remove(self, path: Any, folder: int) -> None:
        """Check ``os.remove``; paths that are relative to a descriptor are those of ``shutil.rmtree``."""
        if folder == -1:
            self._check("removes {}", path)

    def remove_tree(self, path: Any, folder: Any = None) -> None:
        """Check ``shutil.rmtree``."""
        self._check("removes the folder {}", path)

    def rename(self, path: Any, new: Any, folder: int, new_folder: int) -> None:
        """Check ``os.rename`` and ``os.replace``."""
        if folder == new_folder == -1:
            self._check("renames {}", path)
            self._check("replaces {}", new)

    def truncate(self, path: Any, length: int) -> None:
        """Check ``os.truncate``."""
        if not isinstance(path, int):
            self._check("truncates {}", path)

    def create_folder(self, path: Any, mode: int, folder: int) -> None:
        """Note a new folder, whose files are new."""
        made = Path(os.fsdecode(path)).absolute()
        if folder == -1 and not made.exists():
            self._created.add(made)

    def _check(self, what: str, path: Any) -> None:
        """Refuse a change of an existing file; note a new one."""
        if self._thread not in (None, threading.get_ident()):
            return
        given = Path(os.fsdecode(path)).absolute()
        if not self._created.isdisjoint((given, *given.parents)):
            return
        if not given.exists():
            self._created.add(given)
            return
        found = given.resolve()
        if (found.is_file() or found.is_dir()) and self._is_protected(found):
            error = FileRefusedError(self._message(what.format(repr(os.fsdecode(path)))))
            self.refused.append(error)
            raise error

    def _is_protected(self, path: Path) -> bool:
        for folder in self._folders:
            if not path.is_relative_to(folder):
                continue
            is_temporary = self._temporary.is_relative_to(folder) and path.is_relative_to(self._temporary)
            parts = path.relative_to(folder).parts
            is_cache = any(part.startswith(".") or part == "__pycache__" for part in parts) or path.suffix == ".lock"
            if not is_temporary and not is_cache:
                return True
        return False

    def _message(self, does: str) -> str:
        writer, place = _writer()
        if writer is None:
            return f"{place} {does}, a file that exists. {self._remedy}"
        remedy = self._callback_remedy.replace("{name}", writer.partition(".")[0])
        return f"{writer} ({place}) {does}, a file that exists. {remedy}"


_EVENTS: dict[str, Callable[..., None]] = {
    "open": _Guard.open,
    "os.remove": _Guard.remove,
    "os.rename": _Guard.rename,
    "os.truncate": _Guard.truncate,
    "os.mkdir": _Guard.create_folder,
    "shutil.rmtree": _Guard.remove_tree,
}


def _frames() -> Generator[FrameType]:
    """Yield the frames of the current thread, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_called_by_numpy() -> bool:
    names = (str(frame.f_globals.get("__name__", "")) for frame in _frames())
    return any(name.partition(".")[0] == "numpy" for name in names)


def _writer() -> tuple[str | None, str]:
    """Return the method of a callback that changes a file, if one does, and the line of the program."""
    place, name = "", None
    for frame in _frames():
        path = frame.f_code.co_filename
        if not place and not path.startswith((*_LIBRARIES, "<")):
            place = f"{path}, line {frame.f_lineno},"
        one = frame.f_locals.get("self")
        if isinstance(one, Callback) and not type(one).__module__.startswith("composer."):
            name = f"{type(one).__name__}.{frame.f_code.co_name}"
    return name, (place or "The program").removesuffix("," if name else "")
