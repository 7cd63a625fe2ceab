"""A temporary folder for trials, which is removed also if its process is killed: by the next process that makes one.

A process that is ended by SIGKILL, as when memory is exhausted, cannot remove its folder. Each folder has a file that
its process keeps locked: the system releases the lock when the process has ended in any way.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

__all__ = ["keep_temporary_files_in", "temporary_folder"]

_PREFIX = "composer-trials-"
_LOCK_FILE = "owner.lock"
# Paths of sockets have about 100 characters, and multiprocessing adds up to 40.
_LONGEST_PATH = 60


@contextlib.contextmanager
def temporary_folder() -> Generator[Path]:
    """Make a temporary folder, which is removed at the end; also remove those whose processes were killed.

    >>> with temporary_folder() as folder:
    ...     folder.is_dir()
    True
    >>> folder.exists()
    False
    """
    with contextlib.ExitStack() as stack:
        if sys.platform != "win32":
            _remove_stale(Path(tempfile.gettempdir()))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=_PREFIX)))
        if sys.platform != "win32":
            stack.callback(os.close, _locked(folder / _LOCK_FILE, os.O_CREAT | os.O_EXCL))
        yield folder


def keep_temporary_files_in(folder: str) -> None:
    """Let this process and its children make their temporary folders in a folder, rather than beside it.

    A process that is killed removes none of them, such as a data worker that shares tensors by sockets.
    ``tempfile.gettempdir()`` stays: programs may keep data there. With a path that is too long for the sockets in it,
    nothing changes.

    Args:
        folder: The folder.

    >>> keep_temporary_files_in("/tmp/trial")  # doctest: +SKIP
    """
    if len(os.fsencode(folder)) > _LONGEST_PATH:
        return
    # Where multiprocessing makes its sockets; spawned processes inherit it too.
    multiprocessing.current_process()._config["tempdir"] = folder  # pyright: ignore
    make = tempfile.mkdtemp

    def mkdtemp(suffix: Any = None, prefix: Any = None, dir: Any = None) -> Any:
        if dir is None:
            dir = os.fsencode(folder) if isinstance(suffix or prefix, bytes) else folder
        return make(suffix, prefix, dir)

    tempfile.mkdtemp = mkdtemp


def _remove_stale(parent: Path) -> None:
    """Remove the folders of this user whose processes have ended."""
    for folder in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # another process removes it, or it has no lock yet
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            lock = _locked(folder / _LOCK_FILE)
            try:
                # The lock is last: what cannot be removed now is still known to be stale later.
                for path in folder.iterdir():
                    if path.name != _LOCK_FILE:
                        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                shutil.rmtree(folder)
            finally:
                os.close(lock)


def _locked(path: Path, flags: int = 0) -> int:
    """Return the descriptor of a file that this process has locked.

    Raises:
        BlockingIOError: Another process has locked it.
    """
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
