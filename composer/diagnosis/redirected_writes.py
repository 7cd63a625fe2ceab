"""Redirect the files that callbacks and loggers of a program write into the folder of a trial, and refuse networks."""

from __future__ import annotations

import builtins
import contextlib
import io
import os
import shutil
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

__all__ = ["RefusedConnectionError", "redirect_writes"]

_WRITES = frozenset("wax+")
_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# A larger file is not copied before it is changed.
_MAX_COPIED = 64 * 2**20
_LOCAL = ("127.", "::1", "localhost")
# Functions of os whose first argument is the path that they change.
_CHANGES = ("mkdir", "rmdir", "remove", "unlink", "truncate", "utime", "chmod")
_MOVES = ("rename", "replace", "link", "symlink")


class RefusedConnectionError(ConnectionRefusedError):
    """A connection to another host, which trials do not make.

    >>> issubclass(RefusedConnectionError, OSError)
    True
    """


class _Redirection:
    """Maps paths that are written to paths in a folder.

    Args:
        folder: The folder.
        active: Whether the calling thread is to be redirected.
    """

    def __init__(self, folder: Path, active: Callable[[], bool]) -> None:
        self._folder, self._active = os.path.realpath(folder), active
        self._free = (self._folder + os.sep, "/dev/", "/proc/")
        self.used = False

    def path(self, path: Any, *, writes: bool) -> Any:
        """Return the path to use instead."""
        if not isinstance(path, (str, os.PathLike)) or not self._active():
            return path
        real = os.path.realpath(os.fspath(path))
        if not isinstance(real, str) or real.startswith(self._free):
            return path
        moved = f"{self._folder}{os.sep}redirected{real}"
        if writes:
            self.used = True
            _makedirs(moved.rpartition(os.sep)[0], exist_ok=True)
            is_small = Path(real).is_file() and Path(real).stat().st_size < _MAX_COPIED
            if is_small and not os.path.lexists(moved):
                shutil.copyfile(real, moved)  # it may be appended to, renamed or removed
            return moved
        return moved if self.used and os.path.lexists(moved) else path

    def opener(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``open`` with redirected paths."""

        def redirected(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            return function(self.path(file, writes=bool(_WRITES & set(mode))), mode, *args, **kwargs)

        return redirected

    def os_open(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``os.open`` with redirected paths."""

        def redirected(path: Any, flags: int, *args: Any, **kwargs: Any) -> Any:
            return function(self.path(path, writes=bool(flags & _FLAGS)), flags, *args, **kwargs)

        return redirected

    def changer(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that changes a path, with redirected ones."""

        def redirected(path: Any, *args: Any, **kwargs: Any) -> Any:
            return function(self.path(path, writes=True), *args, **kwargs)

        return redirected

    def mover(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function with a source and a target, with redirected ones."""

        def redirected(source: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
            return function(self.path(source, writes=True), self.path(target, writes=True), *args, **kwargs)

        return redirected


_makedirs = os.makedirs
_makes = threading.local()


@contextlib.contextmanager
def redirect_writes(folder: Path, active: Callable[[], bool]) -> Generator[None]:
    """Redirect files that are opened for writing to copies in a folder, and refuse connections to other hosts.

    Files that code in C++ opens are not redirected; paths in the folder itself are left alone.

    Args:
        folder: The folder.
        active: Returns whether what the calling thread does is to be redirected.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, redirect_writes(Path(folder), lambda: True):
    ...     _ = Path("/no/such/folder.txt").write_text("kept")
    """

    def now() -> bool:
        if getattr(_makes, "busy", False):
            return False
        _makes.busy = True
        try:
            return active()
        finally:
            _makes.busy = False

    made = _Redirection(folder, now)
    before: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, wrapper: Callable[[Any], Any]) -> None:
        before.append((owner, name, getattr(owner, name)))
        setattr(owner, name, wrapper(before[-1][2]))

    replace(builtins, "open", made.opener)
    replace(io, "open", made.opener)
    replace(os, "open", made.os_open)
    for name in _CHANGES:
        replace(os, name, made.changer)
    for name in _MOVES:
        replace(os, name, made.mover)
    connected = [True]

    def refuse(event: str, args: tuple[Any, ...]) -> None:
        if event == "socket.connect" and connected and now():
            address = args[1]
            if isinstance(address, tuple) and not str(address[0]).startswith(_LOCAL):
                raise RefusedConnectionError(f"A trial does not connect to other hosts: {address}")

    sys.addaudithook(refuse)
    try:
        yield
    finally:
        connected.clear()
        for owner, name, value in reversed(before):
            setattr(owner, name, value)
