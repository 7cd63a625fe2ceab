"""The folder and the fork server of the trials of one call, such as of ``composer.verify``."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import NamedTuple

from composer._cpus import cpus_of_node
from composer.trials.fork_server import ForkServer, can_fork
from composer.trials.temporary_folder import temporary_folder

__all__ = ["Workspace", "threads_each", "workspace"]


class Workspace(NamedTuple):
    """Where trials are kept, and what forks them; a :class:`.Study` takes both.

    Attributes:
        folder: Folder of the records.
        server: The fork server; None where processes cannot be forked safely.

    >>> Workspace(Path("runs"), None).folder.name
    'runs'
    """

    folder: Path
    server: ForkServer | None


@contextlib.contextmanager
def workspace(folder: str | Path | None, probes: Sequence[str], threads: int = 0) -> Generator[Workspace]:
    """Start a fork server that has imported some probes, and make a temporary folder if none is given.

    Args:
        folder: Folder of the records; None for a temporary one.
        probes: Import paths of the probes, such as ``package.module:Class``.
        threads: Number of threads of each trial; 0 for torch's own choice.

    Raises:
        ValueError: The folder cannot be made, or nothing can be written in it.

    >>> with workspace(None, []) as (folder, server):  # doctest: +SKIP
    ...     Study(folder, server=server).run(trials)
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(temporary_folder()) if folder is None else _usable(folder)
        modules = [path.partition(":")[0] for path in probes]
        server = stack.enter_context(ForkServer(modules, threads)) if can_fork() else None
        yield Workspace(Path(folder), server)


def _usable(folder: str | Path) -> str | Path:
    """Make a folder if it does not exist, and return it; an error names it before anything runs."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError as error:
        raise ValueError(
            f"folder={str(folder)!r} cannot hold records: {error.strerror or error}. Name a folder that can be written."
        ) from error


def threads_each(processes: int) -> int:
    """Return the number of threads of each of some processes that share the cores; 0 if the user has set it.

    Args:
        processes: Number of processes at the same time.

    >>> threads_each(10**6) in (0, 1)
    True
    """
    return 0 if "OMP_NUM_THREADS" in os.environ else max(1, cpus_of_node() // processes)
