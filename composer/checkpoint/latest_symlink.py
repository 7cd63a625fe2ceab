"""The link to the newest checkpoint."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from composer.checkpoint.file_format import replacing
from composer.storage.downloads import copy_file, named_in
from composer.storage.uris import is_remote, local_path

__all__ = ["create_symlink_file", "extract_path_from_symlink", "link", "resolve", "target_of"]

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


def target_of(path: Path) -> Path | None:
    """Return what a link points at, there or not; the path itself if it is no link, None if there is none.

    Args:
        path: The link or file.

    >>> (tmp_path / "latest.pt").symlink_to("gone.pt")
    >>> target_of(tmp_path / "latest.pt").name
    'gone.pt'
    """
    if path.is_symlink():
        return path.parent / path.readlink()
    if path.exists():
        return path
    text = path.with_name(path.name + _SUFFIX)
    return path.parent / extract_path_from_symlink(text) if text.is_file() else None


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
