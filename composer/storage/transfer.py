"""Fetching files to this machine."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

__all__ = ["fetched", "is_remote"]


def is_remote(path: Path | str) -> bool:
    """Tell whether a path is a URI of another place than this machine's folders.

    Args:
        path: A path or URI.

    >>> is_remote("s3://bucket/run/ep1.pt"), is_remote("runs/ep1.pt"), is_remote("file:///runs/ep1.pt")
    (True, False, False)
    """
    scheme, found, _ = str(path).partition("://")
    return bool(found) and scheme not in ("file", "local")


@contextlib.contextmanager
def fetched(path: Path | str, object_store: Any = None, *, progress_bar: bool = True) -> Generator[Path]:
    """Give the path of a file on this machine, which is fetched first if it is elsewhere and removed afterwards.

    Args:
        path: A path, any URI that fsspec knows, or a name in the object store.
        object_store: Has ``download_object(name, filename)``; None where the path says all.
        progress_bar: Whether to show how far the transfer is.

    Raises:
        FileNotFoundError: There is no such file.

    >>> import fsspec
    >>> with fsspec.open("memory://run/weights.pt", "wb") as file:
    ...     _ = file.write(b"weights")
    >>> with fetched("memory://run/weights.pt", progress_bar=False) as local:
    ...     local.read_bytes()
    b'weights'
    """
    if object_store is None and not is_remote(path):
        yield Path(str(path).removeprefix("file://").removeprefix("local://"))
        return
    with tempfile.TemporaryDirectory(prefix="composer-") as folder:
        local = Path(folder) / Path(str(path)).name
        if object_store is not None:
            object_store.download_object(str(path), str(local))
        else:
            _download(str(path), local, progress_bar)
        yield local


def _download(uri: str, local: Path, progress_bar: bool) -> None:
    import fsspec
    from fsspec.callbacks import NoOpCallback, TqdmCallback

    files, name = fsspec.core.url_to_fs(uri)
    shown = {"desc": name, "unit": "B", "unit_scale": True}
    files.get_file(name, str(local), callback=TqdmCallback(tqdm_kwargs=shown) if progress_bar else NoOpCallback())
