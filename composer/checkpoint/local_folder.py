"""A local checkpoint folder of a run: the symlink to the newest checkpoint, listing, ordering and deletion."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from pathlib import Path

from composer.checkpoint.folder_conflicts import ensure_folder_has_no_conflicting_files
from composer.checkpoint.latest_symlink import link, link_target
from composer.checkpoint.name_templates import names_in
from composer.checkpoint.ordering import Found, newest_first
from composer.checkpoint.removal import find_checkpoint, remove_checkpoint, remove_partial_files
from composer.core.timestamp import Timestamp
from composer.ledger.ledger import FILENAME
from composer.storage.downloads import LINK_SUFFIX
from composer.storage.uris import is_remote, local_path

__all__ = ["LocalCheckpoints"]


class LocalCheckpoints:
    """A local folder, with the same methods as :class:`.RemoteCheckpoints` for a remote one.

    Checkpoints are named relative to the folder, with ``/`` as the separator. Nothing outside the folder is deleted,
    whatever a name contains, and no symbolic link below it is followed.

    Args:
        folder: The folder.

    >>> checkpoints = LocalCheckpoints(tmp_path)
    >>> (tmp_path / "ep1.pt").touch()
    >>> checkpoints.set_link("latest.pt", "ep1.pt")
    >>> [
    ...     one.name == str(tmp_path / "ep1.pt")
    ...     for one in checkpoints.candidates("ep{epoch}.pt", "latest.pt")
    ... ]
    [True]
    """

    def __init__(self, folder: Path) -> None:
        self.local = folder

    def probe(self) -> None:
        """Create the folder, so that a missing permission is an error before training.

        Raises:
            OSError: The folder cannot be created.
        """
        try:
            self.local.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = f"save_folder (folder of CheckpointSaver) cannot be created: {error.strerror}. Pass another"
            raise type(error)(error.errno, why, str(self.local)) from error

    def path_of(self, name: str) -> str:
        """Return the path of a checkpoint.

        Args:
            name: Its name in the folder.
        """
        return str(self.local / name)

    def name_of(self, path: str) -> str | None:
        """Return the name of the file that a path resolves to, or None if it is not in this folder.

        Args:
            path: Any path or URI.
        """
        if is_remote(path):
            return None
        try:
            found, folder = local_path(path).resolve(), self.local.resolve()
        except (OSError, RuntimeError, ValueError):  # not a valid file name, or a loop of symbolic links
            return None
        return found.relative_to(folder).as_posix() if found.is_relative_to(folder) else None

    def present(self, names: Iterable[str]) -> list[str]:
        """Return the names that have a checkpoint in this folder.

        Args:
            names: The names.
        """
        return [name for name in names if find_checkpoint(self.local, name) is not None]

    def candidates(self, template: str, latest: str | None) -> list[Found]:
        """Return the paths of the checkpoints to resume from, newest first; see :func:`.newest_first`.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Name of the link, or None.
        """
        ordered = newest_first(self._found(template), template, self._linked(latest))
        return [Found(self.path_of(one.name), one.modified / 1e9) for one in ordered]

    def raise_if_later(self, template: str, timestamp: Timestamp, except_for: Collection[str]) -> None:
        """Raise if the folder has checkpoints of a later training time, which must belong to another run.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            timestamp: The current training time.
            except_for: Names that are allowed.

        Raises:
            FileExistsError: There is a later checkpoint.
        """
        ensure_folder_has_no_conflicting_files(self.local, template, timestamp, except_for=except_for)

    def remove_partial_files(self, template: str, latest: str | None) -> None:
        """Delete temporary files that a killed process left.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Template of the link's name, or None.
        """
        for name in (template, FILENAME, *(() if latest is None else (latest, latest + LINK_SUFFIX))):
            remove_partial_files(self.local, name)

    def set_link(self, latest: str, name: str) -> None:
        """Set the link to a checkpoint.

        Args:
            latest: Name of the link.
            name: Name of the checkpoint.
        """
        link(self.local / latest, self.local / name)

    def remove(self, names: Iterable[str], template: str) -> None:
        """Delete checkpoints of this folder; other names are ignored with a warning.

        Args:
            names: Their names.
            template: The template that the names must match.
        """
        for name in names:
            remove_checkpoint(self.local, name, template)

    def finish(self, template: str, latest: str | None, damaged: Collection[str], to_delete: Iterable[str]) -> None:
        """Finish the work of a killed process: link the newest checkpoint, delete ``to_delete``.

        Args:
            template: Name of the checkpoints, with ``{epoch}``, ``{batch}`` and the like.
            latest: Name of the link; None leaves it unchanged.
            damaged: Names of corrupted checkpoints, to which the link is not set.
            to_delete: Names of the checkpoints to delete.
        """
        found, linked = self._found(template), self._linked(latest)
        there = {one.name for one in found}
        newest = next((one.name for one in newest_first(found, template, linked) if one.name in there), None)
        is_due = newest is not None and newest not in damaged and (linked is None or linked.name != newest)
        if latest is not None and newest is not None and is_due:
            self.set_link(latest, newest)
        self.remove((name for name in to_delete if name != newest), template)

    def _found(self, template: str) -> list[Found]:
        return [Found(name, (self.local / name).stat().st_mtime_ns) for name in names_in(self.local, template)]

    def _linked(self, latest: str | None) -> Found | None:
        """Return the name of the link's target in this folder, and when the link was written."""
        pointer = None if latest is None else self.local / latest
        target = None if pointer is None else link_target(pointer)
        if pointer is None or target is None:
            return None
        name = self.name_of(str(target))
        # A text file instead of a link may have been copied at any time.
        since = pointer.lstat().st_mtime_ns if os.path.lexists(pointer) else 0
        return Found(str(target) if name is None else name, since)
