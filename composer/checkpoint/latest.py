"""The link to the newest checkpoint."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from composer.checkpoint.archive import replacing
from composer.checkpoint.folders import counters, matching_files
from composer.storage.transfer import copy_file, named_in
from composer.storage.uris import is_remote, local_path

__all__ = ["create_symlink_file", "extract_path_from_symlink", "link", "newest_in", "resolve", "settle"]

_SUFFIX = ".symlink"


def link(path: Path, target: Path) -> None:
    """Point a link at a file, in one step: there is no moment without a link.

    Where the file system has no links, a small text file ``<path>.symlink`` holds the name.

    Args:
        path: The link.
        target: What it points at; found relative to the link, so that the folder can be moved.

    >>> (tmp_path / "ep1.pt").touch()
    >>> link(tmp_path / "latest.pt", tmp_path / "ep1.pt")
    >>> resolve(tmp_path / "latest.pt").name
    'ep1.pt'
    """
    relative = os.path.relpath(target, path.parent)
    try:
        with replacing(path) as temporary:
            temporary.symlink_to(relative)
    except (OSError, NotImplementedError):
        create_symlink_file(relative, path.with_name(path.name + _SUFFIX))


def resolve(path: Path) -> Path | None:
    """Return the file that a link points at, or that has the path itself; None if there is none.

    Args:
        path: The link or file.

    >>> resolve(tmp_path / "latest.pt") is None
    True
    """
    if path.exists():
        return path.resolve()
    text = path.with_name(path.name + _SUFFIX)
    if not text.is_file():
        return None
    target = path.parent / extract_path_from_symlink(text)
    return target if target.exists() else None


def newest_in(folder: Path, filename: str, pointer: Path | None) -> Path | None:
    """Return the newest checkpoint in a folder; None if there is none.

    That is what the link points at, unless a crash has come between a checkpoint and its link.

    Args:
        folder: The folder; may be absent.
        filename: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
        pointer: The link; None where there is to be none.

    >>> (tmp_path / "ep1.pt").touch()
    >>> link(tmp_path / "latest.pt", tmp_path / "ep1.pt")
    >>> newest_in(tmp_path, "ep{epoch}.pt", tmp_path / "latest.pt").name
    'ep1.pt'
    """
    linked = None if pointer is None else resolve(pointer)
    since = 0 if linked is None or pointer is None or not os.path.lexists(pointer) else pointer.lstat().st_mtime_ns
    come = () if linked is None else counters(linked.name, filename)
    # Later by the clock alone is what a copy of the folder may make of any; further alone, what another run left.
    later = [
        (path.stat().st_mtime_ns, path)
        for path in matching_files(folder, filename)
        if path.stat().st_mtime_ns > since and (counters(path.name, filename) > come or not come)
    ]
    return max(later)[1] if later else linked


def settle(folder: Path, filename: str, pointer: Path | None) -> Path | None:
    """Point the link at the newest checkpoint, where a crash has come between the two; return what it points at.

    Args:
        folder: The folder.
        filename: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
        pointer: The link; None where there is to be none.

    >>> for name in ("ep1.pt", "ep2.pt"):
    ...     (tmp_path / name).touch()
    ...     link(tmp_path / "latest.pt", tmp_path / "ep1.pt")
    >>> os.utime(tmp_path / "ep2.pt", (4e9, 4e9))
    >>> settle(tmp_path, "ep{epoch}.pt", tmp_path / "latest.pt").name
    'ep2.pt'
    >>> resolve(tmp_path / "latest.pt").name
    'ep2.pt'
    """
    newest = newest_in(folder, filename, pointer)
    if pointer is None or newest is None:
        return None
    linked = resolve(pointer)
    if linked is None or not linked.samefile(newest):
        link(pointer, newest)
    return folder / newest.name


def create_symlink_file(existing_path: str, destination_filename: Path | str) -> None:
    """Write a text file that holds the name of another file.

    Args:
        existing_path: The name.
        destination_filename: The text file; its name ends in ".symlink".

    Raises:
        ValueError: The name does not end so.

    >>> create_symlink_file("ep1.pt", tmp_path / "latest.pt.symlink")
    >>> extract_path_from_symlink(tmp_path / "latest.pt.symlink")
    'ep1.pt'
    """
    destination = Path(destination_filename)
    if destination.suffix != _SUFFIX:
        raise ValueError(f"destination_filename must end in {_SUFFIX!r}; got {str(destination)!r}.")
    with replacing(destination) as temporary:
        temporary.write_text(existing_path, encoding="utf-8")


def extract_path_from_symlink(source_path: Path | str, object_store: Any = None) -> str:
    """Return the name in a text file of :func:`create_symlink_file`.

    Args:
        source_path: The text file: a path, a URI, or a name in the object store.
        object_store: An :class:`.ObjectStore` or a logger that keeps files; None where the path says all.

    >>> _ = (tmp_path / "latest.pt.symlink").write_text("ep1.pt")
    >>> extract_path_from_symlink(tmp_path / "latest.pt.symlink")
    'ep1.pt'
    """
    if object_store is None and not is_remote(source_path):
        return named_in(local_path(source_path))
    with tempfile.TemporaryDirectory(prefix="composer-") as folder:
        text = Path(folder, "link")
        # Not through a link of its own.
        copy_file(os.fspath(source_path), text, object_store, progress_bar=False)
        return named_in(text)
