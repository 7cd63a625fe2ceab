"""Delete checkpoints of a run's own folder, and nothing that lies outside of it."""

from __future__ import annotations

import contextlib
import logging
import secrets
import shutil
from pathlib import Path

from composer.checkpoint.folders import REST
from composer.checkpoint.templates import is_plain, partial_files, pattern

__all__ = ["own_checkpoint", "remove_checkpoint", "remove_partial_files"]

_log = logging.getLogger(__name__)


def own_checkpoint(folder: Path, name: str) -> Path | None:
    """Return the path of a checkpoint in a folder; None if there is none, or if it lies elsewhere.

    Neither the checkpoint nor a folder on the way to it may be a symbolic link, which could lead anywhere. A folder is
    a checkpoint if it has the file that is written last.

    Args:
        folder: The folder, which may itself be a link.
        name: Name of the checkpoint relative to it.

    >>> (tmp_path / "ep1.pt").touch()
    >>> own_checkpoint(tmp_path, "ep1.pt").name
    'ep1.pt'
    >>> own_checkpoint(tmp_path / "run", "../ep1.pt") is None
    True
    """
    if not is_plain(name):
        return None
    path = folder
    for part in name.split("/"):
        path = path / part
        if path.is_symlink():
            return None
    is_there = path.is_file() or (path.is_dir() and (path / REST).is_file())
    # Where links have other kinds, such as junctions.
    return path if is_there and path.resolve() == folder.resolve() / name else None


def remove_checkpoint(folder: Path, name: str, template: str) -> None:
    """Remove a checkpoint, a file or a folder, if it is one of ours; none is left that looks complete and is not.

    Args:
        folder: The folder that a run saves to.
        name: Name of the checkpoint relative to it.
        template: The names of the run's checkpoints. Folders that are named by a placeholder go when they are empty.

    >>> (tmp_path / "ep1").mkdir()
    >>> (tmp_path / "ep1" / "ba4.pt").touch()
    >>> remove_checkpoint(tmp_path, "ep1/ba4.pt", "ep{epoch}/ba{batch}.pt")
    >>> list(tmp_path.iterdir())
    []
    """
    path = own_checkpoint(folder, name) if pattern(template).fullmatch(name) else None
    if path is None:
        _log.warning("%s is not removed from %s: it is not a checkpoint of this run.", name, folder)
        return
    if path.is_dir():
        path = path.rename(path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp"))
    _remove(path)
    # The folders of the name that differ from checkpoint to checkpoint, the innermost first.
    levels = template.split("/")
    for depth in range(len(levels) - 1, 0, -1):
        if "{" not in levels[depth - 1]:
            break
        try:
            Path(folder, *name.split("/")[:depth]).rmdir()
        except OSError:  # there is something else in it
            break


def remove_partial_files(folder: Path | str, template: str) -> None:
    """Remove what a process that was killed had begun to write.

    Args:
        folder: The folder; may be absent.
        template: Name of the files, with ``{epoch}``, ``{batch}`` and the like.

    >>> (tmp_path / ".ep3.pt.0123abcd.tmp").touch()
    >>> remove_partial_files(tmp_path, "ep{epoch}.pt")
    >>> list(tmp_path.iterdir())
    []
    """
    for path in partial_files(Path(folder), template):
        _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
