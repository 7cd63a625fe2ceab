"""Find the line of the user's code that a thread executes, below the training loop."""

from __future__ import annotations

import functools
import os
import sysconfig
from pathlib import Path
from types import FrameType

__all__ = ["in_user_code", "in_user_handler", "is_user_file", "user_line"]

_PACKAGE = f"{Path(__file__).absolute().parents[1]}{os.sep}"
_LOOP = f"{_PACKAGE}trainer{os.sep}"
_ENGINE = tuple(f"{_PACKAGE}core{os.sep}{name}.py" for name in ("engine", "logger"))
_LIBRARIES = tuple(
    f"{path}{os.sep}"
    for path in {*sysconfig.get_paths().values(), *map(os.path.realpath, sysconfig.get_paths().values())}
)


@functools.cache
def is_user_file(path: str) -> bool:
    """Return whether code is the user's: neither of this package, nor of an installed one, nor of Python.

    Args:
        path: The file name of the code.

    >>> is_user_file(__file__), is_user_file("train.py"), is_user_file("<string>")
    (False, True, False)
    """
    installed = f"{os.sep}site-packages{os.sep}" in path or path.startswith((_PACKAGE, *_LIBRARIES))
    return not installed and not path.startswith("<")


def user_line(frame: FrameType | None) -> tuple[str, int, str] | None:
    """Return file, line and function of the innermost frame of the user's code within the training loop, if any.

    Args:
        frame: The innermost frame.

    >>> user_line(None)
    """
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_LOOP):
            return None
        if is_user_file(code.co_filename):
            return code.co_filename, frame.f_lineno, code.co_qualname
        frame = frame.f_back
    return None


def in_user_code(frame: FrameType | None) -> bool:
    """Return whether any function of the user's code is being called, as in a thread that it has started.

    Args:
        frame: The innermost frame.

    >>> in_user_code(None)
    False
    """
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def in_user_handler(frame: FrameType | None) -> bool:
    """Return whether the training loop calls a callback or logger of the user's code.

    Args:
        frame: The innermost frame.

    >>> in_user_handler(None)
    False
    """
    is_own = False
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(_LOOP):
            return False
        if path in _ENGINE:
            return is_own
        is_own = is_own or is_user_file(path)
        frame = frame.f_back
    return False
