"""Atomically swap two files or directories (``renameat2`` with ``RENAME_EXCHANGE``)."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["swap_paths"]

# From <fcntl.h> and <linux/fs.h>.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

# Errors of kernels and file systems that do not support it.
_UNABLE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def swap_paths(one: Path, other: Path) -> bool:
    """Swap two files or folders atomically, so that both paths exist at any time.

    Args:
        one: The path of a file or folder.
        other: Another on the same file system.

    Returns:
        Whether they were swapped; otherwise the system does not support it, and nothing has changed.

    Raises:
        OSError: A path does not exist, or may not be renamed.

    >>> (tmp_path / "a").touch(), (tmp_path / "b").mkdir()
    (None, None)
    >>> swap_paths(tmp_path / "a", tmp_path / "b") == (tmp_path / "a").is_dir()
    True
    """
    rename = _renameat2()
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNABLE:
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    """Return the function of the C library, or None if it has none."""
    if os.name != "posix":
        return None
    library: Any = ctypes.CDLL(None, use_errno=True)
    found = getattr(library, "renameat2", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return found
