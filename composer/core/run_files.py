"""Files that a run writes, beside those of earlier runs."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["set_aside"]


def set_aside(path: Path, copy: bool = False) -> Path:
    """Move a file out of the way, to the first free of ``name.1.csv``, ``name.2.csv``, ...; return where it is.

    Args:
        path: The file.
        copy: Whether to leave the file and make a copy.

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
