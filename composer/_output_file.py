"""Check the path of a file to write before the work that it is for."""

from __future__ import annotations

from pathlib import Path

__all__ = ["output_file"]


def output_file(name: str, path: str | Path) -> Path:
    """Return the path of a file to write, before what it will have is measured.

    Args:
        name: Name of the argument.
        path: Its value.

    Raises:
        FileNotFoundError: Its folder does not exist.
        ValueError: It is a folder.

    >>> output_file("trace", "no/such/folder/trace.json")
    Traceback (most recent call last):
    FileNotFoundError: trace='no/such/folder/trace.json': there is no folder 'no/such/folder'. Create it first.
    """
    path, given = Path(path), str(path)
    if path.is_dir():
        raise ValueError(f"{name}={given!r} is a folder. Name a file in it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{name}={given!r}: there is no folder {str(path.parent)!r}. Create it first.")
    return path.absolute()
