"""The list of checkpoints that a run has saved in its folder; retention deletes those that it does not keep.

The list is part of each checkpoint, so that a resumed run continues it. A loaded list is not trusted to name files to
delete: see :meth:`SavedList.load_state_dict`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from composer.checkpoint.local_folder import LocalCheckpoints
from composer.checkpoint.name_templates import is_plain, pattern
from composer.checkpoint.remote_folder import RemoteCheckpoints
from composer.checkpoint.retention import BestCheckpoint, Retention, SavedCheckpoint

__all__ = ["SavedList", "folder_key"]

_log = logging.getLogger(__name__)

_Lists = tuple[list[SavedCheckpoint], list[str], list[str]]


class SavedList:
    """The checkpoints of a folder: those to keep, those to delete, and those that could not be read.

    Args:
        retention: Decides which checkpoints are kept.
        folder_key: Identifies the folder and its checkpoint names among several savers of a run, also after the run is
            copied to another folder; see :func:`folder_key`.

    Attributes:
        entries: Checkpoints to keep, oldest first.
        obsolete: Names of checkpoints to delete once the newest checkpoint is complete.
        damaged: Names of newer checkpoints that could not be read, so that the run resumed from an earlier one.

    >>> saved = SavedList(Retention(newest=1))
    >>> for batch in (1, 2):
    ...     _ = saved.add(f"ba{batch}.pt", batch, None)
    >>> [one.name for one in saved.entries], saved.obsolete
    (['ba2.pt'], ['ba1.pt'])
    """

    def __init__(self, retention: Retention, folder_key: str = "") -> None:
        self.retention = retention
        self.folder_key = folder_key
        self.begin(None, (), None)

    def begin(
        self, folder: LocalCheckpoints | RemoteCheckpoints | None, templates: Sequence[str], run_name: str | None
    ) -> None:
        """Start an empty list.

        Args:
            folder: The folder of the checkpoints; None before the run is known.
            templates: Templates of the checkpoint names.
            run_name: The run name that the user gave; None if it is generated on each start.
        """
        self._folder, self._templates, self._run_name = folder, tuple(templates), run_name
        self._saved_folder_key = self.folder_key
        self.entries: list[SavedCheckpoint] = []
        self.obsolete: list[str] = []
        self.damaged: list[str] = []
        self._number = 0

    @property
    def paths(self) -> list[str]:
        """Paths or URIs of the checkpoints to keep, oldest first."""
        return [self._path(one.name) for one in self.entries]

    @property
    def best(self) -> BestCheckpoint | None:
        """The checkpoint with the best score, or None if none has a score."""
        one = next(iter(self.retention.ranked(self.entries)), None)
        return None if one is None or one.score is None else BestCheckpoint(self._path(one.name), one.score)

    def add(self, name: str, batch: int, score: float | None) -> _Lists:
        """Add a checkpoint that is about to be written, and mark those that it makes obsolete.

        Args:
            name: Its name in the folder.
            batch: Number of batches trained.
            score: Value of the monitored metric, or None.

        Returns:
            The lists before, for :meth:`put_back` if writing fails.
        """
        before = self.entries, self.obsolete, self.damaged
        # A checkpoint that is saved again, to record how the run ended, keeps its number.
        number = next((one.number for one in self.entries if one.name == name), self._number)
        entries = [one for one in self.entries if one.name != name]
        entries.append(SavedCheckpoint(name, batch, number, score))
        self._number += number == self._number
        to_delete = self.retention.to_delete(entries)
        self.entries = [one for one in entries if one not in to_delete]
        self.obsolete = [one.name for one in to_delete if one.name != name]
        self.damaged = [one for one in self.damaged if one != name]
        return before

    def put_back(self, before: _Lists) -> None:
        """Undo :meth:`add`.

        Args:
            before: What :meth:`add` returned.
        """
        self.entries, self.obsolete, self.damaged = before

    def snapshot(self, *, present_only: bool = False) -> _Lists:
        """Return the lists, for other ranks or for :meth:`put_back`.

        Args:
            present_only: Whether to leave out checkpoints that are missing in the folder.
        """
        entries = self.entries
        if present_only and self._folder is not None:
            there = set(self._folder.present(one.name for one in entries))
            entries = [one for one in entries if one.name in there]
        return entries, self.obsolete, self.damaged

    def pass_over(self, paths: Sequence[str]) -> None:
        """Record checkpoints that could not be read.

        Args:
            paths: Their paths or URIs; those outside the folder are ignored.
        """
        names = [] if self._folder is None else [name for path in paths if (name := self._folder.name_of(path))]
        self.damaged = list(dict.fromkeys([*self.damaged, *names]))

    def state_dict(self) -> dict[str, Any]:
        """Return the lists, the run name and the folder key."""
        return {
            "saved": [one.state_dict() for one in self.entries],
            "obsolete": list(self.obsolete),
            "damaged": list(self.damaged),
            "number": self._number,
            "run_name": self._run_name,
            "place": self._saved_folder_key,
        }

    def load_state_dict(self, state: dict[str, Any]) -> bool:
        """Restore the list of an earlier process of the same run; return whether it is of the same run.

        A checkpoint may come from another run, from a copy of its folder, or from an untrusted source. So only entries
        that belong to this run, match its checkpoint names, and are inside its folder are kept. Lists of earlier
        versions hold paths instead of names, and no run name.

        Args:
            state: What :meth:`state_dict` returned.
        """
        if self._folder is None:  # before the run is known, the saved name stays
            self._run_name = state.get("run_name")
        self.begin(self._folder, self._templates, self._run_name)
        if self._folder is None:
            self._saved_folder_key = state.get("place", self.folder_key)
        if state.get("run_name", self._run_name) != self._run_name:
            _log.info("The checkpoint is of another run, whose checkpoints are left alone.")
            return False
        number = state.get("number", 0)
        self._number = number if isinstance(number, int) else 0
        has_paths = "run_name" not in state

        def accepted_name(value: Any) -> str | None:
            if has_paths and isinstance(value, str):
                value = self.name_of(value)
            return value if isinstance(value, str) and self._matches_run(value) else None

        def names(key: str) -> list[str]:
            values = state.get(key, ())
            return (
                [name for one in values if (name := accepted_name(one)) is not None] if isinstance(values, list) else []
            )

        self.obsolete, self.damaged = names("obsolete"), names("damaged")
        saved = state.get("saved", ())
        for entry in saved if isinstance(saved, list) else ():
            made = SavedCheckpoint.from_state(entry)
            name = None if made is None else accepted_name(made.name)
            if made is not None and name is not None:
                self.entries.append(replace(made, name=name))
        if isinstance(self._folder, LocalCheckpoints):  # a remote folder is listed when training begins
            self.entries = self.snapshot(present_only=True)[0]
        return True

    def path_of(self, name: str) -> str:
        """Return the path or URI of a checkpoint in the folder; any other name is returned unchanged.

        Args:
            name: Its name relative to the folder.
        """
        return self._path(name) if self._matches_run(name) else name

    def name_of(self, path: str) -> str | None:
        """Return the name of a checkpoint relative to the folder; None if it is not in the folder.

        Args:
            path: Its path or URI.
        """
        return None if self._folder is None else self._folder.name_of(path)

    def _matches_run(self, name: str) -> bool:
        """Return whether a name matches the checkpoint names of this run."""
        is_named_so = self._folder is None or any(pattern(one).fullmatch(name) for one in self._templates)
        return is_plain(name) and is_named_so

    def _path(self, name: str) -> str:
        return name if self._folder is None else self._folder.path_of(name)


def folder_key(folder: str, filename: str) -> str:
    """Return the last component of a folder with the checkpoint name template: the same for a copy of the run.

    Args:
        folder: A path or URI with placeholders; user and password are left out.
        filename: Template of the checkpoint names.

    >>> (
    ...     folder_key("/data/night/best", "ep{epoch}.pt"),
    ...     folder_key("sftp://ann:secret@host/", "ep{epoch}.pt"),
    ... )
    ('best/ep{epoch}.pt', 'host/ep{epoch}.pt')
    """
    return f"{folder.rstrip('/').rpartition('/')[2].rpartition('@')[2]}/{filename}"
