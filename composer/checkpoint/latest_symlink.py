"""Set, resolve and upload the symlink to the newest checkpoint (``latest-rank0.pt``), or a text file in its place."""

from __future__ import annotations

import os
import posixpath
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from composer.checkpoint.file_format import replacing
from composer.storage.downloads import LINK_SUFFIX, copy_file, read_link_file
from composer.storage.uris import is_remote, local_path

if TYPE_CHECKING:
    from composer.core.logger import Logger

__all__ = ["create_symlink_file", "extract_path_from_symlink", "link", "link_target", "resolve", "upload_copy"]


def link(path: Path, target: Path) -> None:
    """Set a symlink atomically, so that it exists at any time.

    If the file system does not support symlinks, a small text file ``<path>.symlink`` holds the name.

    Args:
        path: The symlink.
        target: Its target; stored relative to the symlink, so that the folder can be moved.

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
        create_symlink_file(relative, path.with_name(path.name + LINK_SUFFIX))


def resolve(path: Path) -> Path | None:
    """Return the target of a symlink, or the path itself if it is a file; None if it does not exist.

    Args:
        path: The link or file.

    >>> resolve(tmp_path / "latest.pt") is None
    True
    """
    if path.exists():
        return path.resolve()
    text = path.with_name(path.name + LINK_SUFFIX)
    if not text.is_file():
        return None
    target = path.parent / extract_path_from_symlink(text)
    return target if target.exists() else None


def link_target(path: Path) -> Path | None:
    """Return the target of a symlink, existing or not; the path itself if it is a file; None if it does not exist.

    Args:
        path: The link or file.

    >>> (tmp_path / "latest.pt").symlink_to("gone.pt")
    >>> link_target(tmp_path / "latest.pt").name
    'gone.pt'
    """
    if path.is_symlink():
        return path.parent / path.readlink()
    if path.exists():
        return path
    text = path.with_name(path.name + LINK_SUFFIX)
    return path.parent / extract_path_from_symlink(text) if text.is_file() else None


def create_symlink_file(existing_path: str, destination_filename: Path | str) -> None:
    """Write a text file with the name of another file, as a portable symlink.

    Args:
        existing_path: The name.
        destination_filename: The text file; its name must end in ".symlink".

    Raises:
        ValueError: ``destination_filename`` has another extension.

    >>> create_symlink_file("ep1.pt", tmp_path / "latest.pt.symlink")
    >>> extract_path_from_symlink(tmp_path / "latest.pt.symlink")
    'ep1.pt'
    """
    destination = Path(destination_filename)
    if destination.suffix != LINK_SUFFIX:
        raise ValueError(f"destination_filename must end in {LINK_SUFFIX!r}; got {str(destination)!r}.")
    with replacing(destination) as temporary:
        temporary.write_text(existing_path, encoding="utf-8")


def extract_path_from_symlink(source_path: Path | str, object_store: Any = None) -> str:
    """Return the name in a text file of :func:`create_symlink_file`.

    Args:
        source_path: The text file: a path, a URI, or a name in the object store.
        object_store: An :class:`.ObjectStore` or a logger that stores files; None for a path or URI.

    >>> _ = (tmp_path / "latest.pt.symlink").write_text("ep1.pt")
    >>> extract_path_from_symlink(tmp_path / "latest.pt.symlink")
    'ep1.pt'
    """
    if object_store is None and not is_remote(source_path):
        return read_link_file(local_path(source_path))
    with tempfile.TemporaryDirectory(prefix="composer-") as folder:
        text = Path(folder, "link")
        # Without following another link.
        copy_file(os.fspath(source_path), text, object_store, progress_bar=False)
        return read_link_file(text)


def upload_copy(logger: Logger, path: Path, name: str | None, latest: str | None) -> None:
    """Upload a checkpoint, and then a text file that names it, to the destinations that store files.

    Args:
        logger: The logger with the destinations.
        path: The checkpoint.
        name: Its remote name; None uploads nothing.
        latest: Name of the link, to which ``.symlink`` is appended; None uploads no link.

    >>> from composer import Logger, State
    >>> upload_copy(Logger(State(torch.nn.Linear(1, 1))), tmp_path / "ep1.pt", None, None)
    """
    if name is None:
        return
    logger.upload_file(name, path, overwrite=True)
    if latest is not None:
        with tempfile.TemporaryDirectory(prefix="composer-") as folder:
            text = Path(folder, f"{Path(latest).name}{LINK_SUFFIX}")
            create_symlink_file(posixpath.relpath(name, posixpath.dirname(latest) or "."), text)
            logger.upload_file(f"{latest}{LINK_SUFFIX}", text, overwrite=True)
