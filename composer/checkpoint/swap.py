"""Exchanging what two names stand for, in one step."""

from __future__ import annotations

import ctypes
import errno
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["exchange"]

# From <fcntl.h> and <linux/fs.h>.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2

# What kernels and file systems answer that do not know how.
_UNABLE = frozenset({errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP})


def exchange(one: Path, other: Path) -> bool:
    """Exchange two files or folders: at each moment both names stand for something.

    Args:
        one: The path of a file or folder.
        other: Another on the same file system.

    Returns:
        Whether it is done; otherwise the system cannot do that, and nothing has changed.

    Raises:
        OSError: One of them is not there, or may not be renamed.

    >>> (tmp_path / "a").touch(), (tmp_path / "b").mkdir()
    (None, None)
    >>> exchange(tmp_path / "a", tmp_path / "b") == (tmp_path / "a").is_dir()
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
    """The function of the C library, where it has one."""
    if os.name != "posix":
        return None
    library: Any = ctypes.CDLL(None, use_errno=True)
    found = getattr(library, "renameat2", None)
    if found is not None:
        found.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]
    return found
