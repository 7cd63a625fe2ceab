"""Move a file of an earlier run aside ("metrics.1.csv") before a run writes a file of that name."""

from __future__ import annotations

import shutil
from pathlib import Path

__all__ = ["set_aside"]


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
