"""Letting the first process of each node do something once for all processes there."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from composer.dist.collectives import barrier, broadcast_object_list, communicates
from composer.dist.ranks import get_local_rank, get_node_rank

__all__ = [
    "busy_wait_for_local_rank_zero",
    "get_node_signal_file_name",
    "local_rank_zero_download_and_wait",
    "run_local_rank_zero_first",
    "write_signal_file",
]


@contextmanager
def run_local_rank_zero_first() -> Generator[None]:
    """Run the body on the first process of each node, then on the others: for caches that one must fill.

    Raises:
        RuntimeError: Several processes run and the process group is not set up.

    >>> with run_local_rank_zero_first():
    ...     print("downloaded")
    downloaded
    """
    first = not communicates() or get_local_rank() == 0
    if not first:
        barrier()
    try:
        yield
    finally:
        # Also after an error here, or the others would wait for ever.
        if first:
            barrier()


@contextmanager
def local_rank_zero_download_and_wait(expected_file_path: str | os.PathLike[str]) -> Generator[None]:
    """Run the body at once on the first process of each node, and on the others when a file has appeared.

    The others look for the file now and then, so a long download exceeds no timeout of a collective.

    Args:
        expected_file_path: The file that the body makes on the first process; rename it into place when complete.

    >>> with local_rank_zero_download_and_wait("data.bin"):
    ...     print("downloading")
    downloading
    """
    if get_local_rank() != 0:
        while not Path(expected_file_path).exists():
            time.sleep(0.1)
    yield


@contextmanager
def busy_wait_for_local_rank_zero(dir_path: str | os.PathLike[str] | None = None) -> Generator[None]:
    """Run the body everywhere, then hold each process until the first of its node is through with it.

    They wait by looking for a file, so the body of the first may take longer than the timeout of collectives.

    Args:
        dir_path: Folder on the node for that file; the working directory if ``None``.

    Raises:
        RuntimeError: Several processes run and the process group is not set up.

    >>> with busy_wait_for_local_rank_zero():
    ...     print("uploading")
    uploading
    """
    if not communicates():
        yield
        return
    name = get_node_signal_file_name()
    try:
        yield
    finally:
        signal = Path(write_signal_file(name, dir_path))
        with local_rank_zero_download_and_wait(signal):
            barrier()
        if get_local_rank() == 0:
            signal.unlink(missing_ok=True)


def get_node_signal_file_name() -> str:
    """Return a file name that the processes of this node agree on and nobody else uses.

    >>> get_node_signal_file_name().endswith("_node_0")
    True
    """
    # Not from `random`: the user's seeds must draw what they drew before.
    names = [f".{uuid.uuid4().hex[:12]}"]
    broadcast_object_list(names)
    return f"{names[0]}_node_{get_node_rank()}"


def write_signal_file(signal_file_name: str, dir_path: str | os.PathLike[str] | None = None) -> str:
    """Write the file that the other processes of this node wait for, on its first process, and return its path.

    Args:
        signal_file_name: As from :func:`get_node_signal_file_name`.
        dir_path: Folder of the file, made if missing; the working directory if ``None``.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     Path(write_signal_file("done", folder)).exists()
    True
    """
    path = Path.cwd() / (dir_path or "") / signal_file_name
    if get_local_rank() == 0:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("done\n")
    return str(path)
