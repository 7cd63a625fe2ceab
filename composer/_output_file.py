"""Check the path of a file to write before the work that it is for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

__all__ = ["output_file"]


def output_file(name: str, path: str | Path, replaces: Callable[[Path], bool], kind: str) -> Path:
    """Return the path of a file to write, before what it will have is measured.

    A file that exists is replaced only if it is of the kind that is written, or empty: a slip in a command line must
    not cost a log. A symbolic link is resolved to its target.

    Args:
        name: Name of the argument.
        path: Its value.
        replaces: Whether an existing file may be replaced.
        kind: What such a file is, with an article.

    Raises:
        FileExistsError: The file exists, and is of another kind.
        FileNotFoundError: Its folder does not exist.
        ValueError: It is a folder.

    >>> output_file("trace", "no/such/folder/trace.json", lambda file: False, "a trace")
    Traceback (most recent call last):
    FileNotFoundError: trace='no/such/folder/trace.json': there is no folder 'no/such/folder'. Create it first.
    """
    path, given = Path(path), str(path)
    if path.is_symlink():
        path = path.resolve()
    if path.is_dir():
        raise ValueError(f"{name}={given!r} is a folder. Name a file in it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{name}={given!r}: there is no folder {str(path.parent)!r}. Create it first.")
    if path.exists() and not (path.is_file() and path.stat().st_size == 0) and not replaces(path):
        raise FileExistsError(f"{name}={given!r} exists, and is not {kind}. Delete the file, or name another.")
    return path.absolute()
