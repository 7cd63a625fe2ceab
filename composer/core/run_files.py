"""Files that a run writes: move one of an earlier run aside ("metrics.1.csv"), and find its last complete line."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import BinaryIO

__all__ = ["is_file_in", "line_end", "set_aside"]

_BLOCK = 1 << 20


def is_file_in(folder: Path, path: Path) -> bool:
    """Return whether a path is a regular file within a folder, rather than a pipe or a link that leads out of it.

    Args:
        folder: The folder.
        path: The path.

    >>> (tmp_path / "run").mkdir()
    >>> (tmp_path / "secret").touch()
    >>> (tmp_path / "run" / "log.csv").symlink_to(tmp_path / "secret")
    >>> (
    ...     is_file_in(tmp_path / "run", tmp_path / "run" / "log.csv"),
    ...     is_file_in(tmp_path, tmp_path / "secret"),
    ... )
    (False, True)
    """
    try:
        return path.is_file() and path.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # no permission, a loop of links, a null character
        return False


def line_end(file: BinaryIO, end: int | None = None) -> int:
    r"""Return the offset behind the last line break before an offset; 0 if there is none.

    Args:
        file: The file.
        end: The offset; None for the end of the file.

    >>> import io
    >>> line_end(io.BytesIO(b"one\ntorn")), line_end(io.BytesIO(b"torn"))
    (4, 0)
    """
    end = file.seek(0, os.SEEK_END) if end is None else end
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def set_aside(path: Path, copy: bool = False) -> Path:
    """Move a file to the first unused name of ``name.1.csv``, ``name.2.csv``, ...; return the new path.

    Args:
        path: The file.
        copy: Whether to copy the file instead of moving it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "metrics.csv")
    ...     path.touch()
    ...     set_aside(path).name
    'metrics.1.csv'
    """
    number = 1
    while (free := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    if copy:
        shutil.copy2(path, free)
    else:
        path.replace(free)
    return free
