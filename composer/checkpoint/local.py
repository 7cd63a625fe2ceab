"""The checkpoint folder of a run on this host's file systems: link, order, retention and removal of its own files."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from composer.checkpoint.folders import ensure_folder_has_no_conflicting_files
from composer.checkpoint.latest import link, target_of
from composer.checkpoint.ordering import Found, newest_first
from composer.checkpoint.removal import own_checkpoint, remove_checkpoint, remove_partial_files
from composer.checkpoint.templates import names_in
from composer.core.timestamp import Timestamp
from composer.storage.transfer import LINK_SUFFIX
from composer.storage.uris import is_remote, local_path

__all__ = ["LocalCheckpoints"]


class LocalCheckpoints:
    """A folder of this host, with the methods that :class:`.RemoteCheckpoints` has for one elsewhere.

    Checkpoints are named relative to the folder, with ``/`` between levels. Whatever a name says, nothing outside of
    the folder is removed, and no symbolic link below it is followed.

    Args:
        folder: The folder.

    >>> checkpoints = LocalCheckpoints(tmp_path)
    >>> (tmp_path / "ep1.pt").touch()
    >>> checkpoints.point("latest.pt", "ep1.pt")
    >>> [
    ...     one.name == str(tmp_path / "ep1.pt")
    ...     for one in checkpoints.candidates("ep{epoch}.pt", "latest.pt")
    ... ]
    [True]
    """

    def __init__(self, folder: Path) -> None:
        self.local = folder

    def probe(self) -> None:
        """Make the folder, which tells now whether it can be written to.

        Raises:
            OSError: It cannot.
        """
        self.local.mkdir(parents=True, exist_ok=True)

    def path_of(self, name: str) -> str:
        """Return the path of a checkpoint.

        Args:
            name: Its name here.
        """
        return str(self.local / name)

    def name_of(self, path: str) -> str | None:
        """Return the name of what a path leads to, None if that is not in this folder.

        Args:
            path: Any path or URI.
        """
        if is_remote(path):
            return None
        try:
            found, folder = local_path(path).resolve(), self.local.resolve()
        except (OSError, RuntimeError, ValueError):  # no name that a file can have, or links that lead in a circle
            return None
        return found.relative_to(folder).as_posix() if found.is_relative_to(folder) else None

    def present(self, names: Iterable[str]) -> list[str]:
        """Return those of some names under which there is a checkpoint of this folder's own.

        Args:
            names: The names.
        """
        return [name for name in names if own_checkpoint(self.local, name) is not None]

    def candidates(self, template: str, latest: str | None) -> list[Found]:
        """Return the checkpoints to resume from, by their paths, the newest first, see :func:`.newest_first`.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Name of the link, or None.
        """
        ordered = newest_first(self._found(template), template, self._linked(latest))
        return [Found(self.path_of(one.name), one.modified / 1e9) for one in ordered]

    def refuse_later(self, template: str, timestamp: Timestamp, except_for: Collection[str]) -> None:
        """Refuse a folder with checkpoints of a later time than now, which must be of another run.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            timestamp: Now.
            except_for: Names that may be there.

        Raises:
            FileExistsError: There is a later checkpoint.
        """
        ensure_folder_has_no_conflicting_files(self.local, template, timestamp, except_for=except_for)

    def remove_partial_files(self, template: str, latest: str | None) -> None:
        """Remove what a process that was killed had begun to write.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Template of the link's name, or None.
        """
        for name in (template, *(() if latest is None else (latest, latest + LINK_SUFFIX))):
            remove_partial_files(self.local, name)

    def point(self, latest: str, name: str) -> None:
        """Point the link at a checkpoint.

        Args:
            latest: Name of the link.
            name: Name of the checkpoint.
        """
        link(self.local / latest, self.local / name)

    def remove(self, names: Iterable[str], template: str) -> None:
        """Remove checkpoints, as far as they are this folder's own.

        Args:
            names: Their names.
            template: What the names must match.
        """
        for name in names:
            remove_checkpoint(self.local, name, template)

    def finish(self, template: str, latest: str | None, damaged: Collection[str], superfluous: Iterable[str]) -> None:
        """Do what a killed process had left to do: point the link at the newest checkpoint, then remove others.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Name of the link; None where it is to be left alone.
            damaged: Names of checkpoints that cannot be read, to which no link is moved.
            superfluous: Names of those to remove.
        """
        found, linked = self._found(template), self._linked(latest)
        there = {one.name for one in found}
        newest = next((one.name for one in newest_first(found, template, linked) if one.name in there), None)
        is_due = newest is not None and newest not in damaged and (linked is None or linked.name != newest)
        if latest is not None and newest is not None and is_due:
            self.point(latest, newest)
        self.remove((name for name in superfluous if name != newest), template)

    def _found(self, template: str) -> list[Found]:
        return [Found(name, (self.local / name).stat().st_mtime_ns) for name in names_in(self.local, template)]

    def _linked(self, latest: str | None) -> Found | None:
        """What the link points at, by its name here, and when the link was written."""
        pointer = None if latest is None else self.local / latest
        target = None if pointer is None else target_of(pointer)
        if pointer is None or target is None:
            return None
        name = self.name_of(str(target))
        # A text file in place of the link may have been copied at any time.
        since = pointer.lstat().st_mtime_ns if os.path.lexists(pointer) else 0
        return Found(str(target) if name is None else name, since)
