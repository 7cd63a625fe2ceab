"""Run something once per node, on local rank 0, while the other ranks of the node wait: downloads, caches."""

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
    """Run the body on local rank 0 of each node first, then on the others: for caches that one rank must fill.

    Raises:
        RuntimeError: The world size is above 1 and the process group is not initialized.

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
        # Also after an error here, or the other ranks would hang.
        if first:
            barrier()


@contextmanager
def local_rank_zero_download_and_wait(expected_file_path: str | os.PathLike[str]) -> Generator[None]:
    """Run the body immediately on local rank 0 of each node, and on the other ranks once a file exists.

    The other ranks poll for the file, so a long download does not exceed a collective timeout.

    Args:
        expected_file_path: The file that the body creates on local rank 0; rename it into place when complete.

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
    """Run the body on all ranks, then block each rank until local rank 0 of its node has finished the body.

    The ranks poll for a file, so the body of local rank 0 may take longer than the collective timeout.

    Args:
        dir_path: Folder on the node for that file; the working directory if ``None``.

    Raises:
        RuntimeError: The world size is above 1 and the process group is not initialized.

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
    """Return a unique file name that is the same on all ranks of this node.

    >>> get_node_signal_file_name().endswith("_node_0")
    True
    """
    # Not from `random`, which would advance the user's random state.
    names = [f".{uuid.uuid4().hex[:12]}"]
    broadcast_object_list(names)
    return f"{names[0]}_node_{get_node_rank()}"


def write_signal_file(signal_file_name: str, dir_path: str | os.PathLike[str] | None = None) -> str:
    """Write the file that the other ranks of this node wait for, on local rank 0, and return its path.

    Args:
        signal_file_name: From :func:`get_node_signal_file_name`.
        dir_path: Folder of the file, created if missing; the working directory if ``None``.

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
