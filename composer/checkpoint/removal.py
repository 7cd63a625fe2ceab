"""Delete checkpoints inside the checkpoint folder of a run, and nothing outside it."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
from pathlib import Path

from composer.checkpoint.folder_conflicts import MANIFEST
from composer.checkpoint.name_templates import is_plain, partial_files, pattern

__all__ = ["find_checkpoint", "remove_checkpoint", "remove_partial_files"]

_log = logging.getLogger(__name__)


def find_checkpoint(folder: Path, name: str) -> Path | None:
    """Return the path of a checkpoint in a folder, or None if there is none or it is outside the folder.

    Neither the checkpoint nor a folder on the path to it may be a symbolic link. A folder counts as a checkpoint if it
    has the file that is written last.

    Args:
        folder: The folder, which may itself be a link.
        name: Name of the checkpoint relative to it.

    >>> (tmp_path / "ep1.pt").touch()
    >>> find_checkpoint(tmp_path, "ep1.pt").name
    'ep1.pt'
    >>> find_checkpoint(tmp_path / "run", "../ep1.pt") is None
    True
    """
    if not is_plain(name):
        return None
    path = folder
    for part in name.split("/"):
        path = path / part
        if path.is_symlink():
            return None
    is_there = path.is_file() or (path.is_dir() and (path / MANIFEST).is_file())
    # Catches other types of links, such as junctions on Windows.
    return path if is_there and path.resolve() == folder.resolve() / name else None


def remove_checkpoint(folder: Path, name: str, template: str) -> None:
    """Delete a checkpoint file or folder of this run, if it is there; a partly deleted one never looks complete.

    Args:
        folder: The folder that a run saves to.
        name: Name of the checkpoint relative to it.
        template: Template of the run's checkpoint names. Empty folders whose name has a placeholder are deleted too.

    >>> (tmp_path / "ep1").mkdir()
    >>> (tmp_path / "ep1" / "ba4.pt").touch()
    >>> remove_checkpoint(tmp_path, "ep1/ba4.pt", "ep{epoch}/ba{batch}.pt")
    >>> list(tmp_path.iterdir())
    []
    """
    is_named_so = is_plain(name) and pattern(template).fullmatch(name) is not None
    if is_named_so and not os.path.lexists(folder / name):
        return  # it was deleted before, as by an earlier call of fit or a process that was killed then
    path = find_checkpoint(folder, name) if is_named_so else None
    if path is None:
        _log.warning("%s is not removed from %s: it is not a checkpoint of this run.", name, folder)
        return
    if path.is_dir():
        path = path.rename(path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp"))
    _remove(path)
    # Folders in the name that differ between checkpoints, the innermost first.
    levels = template.split("/")
    for depth in range(len(levels) - 1, 0, -1):
        if "{" not in levels[depth - 1]:
            break
        try:
            Path(folder, *name.split("/")[:depth]).rmdir()
        except OSError:  # there is something else in it
            break


def remove_partial_files(folder: Path | str, template: str) -> None:
    """Delete temporary files that a killed process left.

    Args:
        folder: The folder; need not exist.
        template: Template of the file names, with ``{epoch}``, ``{batch}`` and the like.

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
