"""The list of the checkpoints that a run has saved in its folder, by which retention removes the superfluous ones.

The list is part of each checkpoint, so that a resumed run goes on with it. What is loaded is never trusted to name
files: see :meth:`SavedList.load_state_dict`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from composer.checkpoint.local import LocalCheckpoints
from composer.checkpoint.remote import RemoteCheckpoints
from composer.checkpoint.retention import BestCheckpoint, Retention, SavedCheckpoint
from composer.checkpoint.templates import is_plain, pattern

__all__ = ["SavedList", "place_of"]

_log = logging.getLogger(__name__)

_Lists = tuple[list[SavedCheckpoint], list[str], list[str]]


class SavedList:
    """The checkpoints that are kept in a folder, those that are to be removed, and those that could not be read.

    Args:
        retention: Which are kept.
        place: Tells the folder and the names of its checkpoints from those of other savers of the run, also where the
            run is copied elsewhere.

    Attributes:
        entries: What is kept, oldest first.
        obsolete: Names of what is to be removed once the newest checkpoint is complete.
        damaged: Names of newer checkpoints that resumption has passed over, since they could not be read.

    >>> saved = SavedList(Retention(newest=1))
    >>> for batch in (1, 2):
    ...     _ = saved.add(f"ba{batch}.pt", batch, None)
    >>> [one.name for one in saved.entries], saved.obsolete
    (['ba2.pt'], ['ba1.pt'])
    """

    def __init__(self, retention: Retention, place: str = "") -> None:
        self.retention = retention
        self.place = place
        self.begin(None, (), None)

    def begin(
        self, folder: LocalCheckpoints | RemoteCheckpoints | None, templates: Sequence[str], run_name: str | None
    ) -> None:
        """Begin an empty list.

        Args:
            folder: Where the checkpoints are; None as long as the run is unknown.
            templates: What the names match.
            run_name: The name that was given to the run, None for one that is made anew with each start.
        """
        self._folder, self._templates, self._run_name = folder, tuple(templates), run_name
        self._saved_place = self.place
        self.entries: list[SavedCheckpoint] = []
        self.obsolete: list[str] = []
        self.damaged: list[str] = []
        self._number = 0

    @property
    def paths(self) -> list[str]:
        """Paths or URIs of what is kept, oldest first."""
        return [self._path(one.name) for one in self.entries]

    @property
    def best(self) -> BestCheckpoint | None:
        """The checkpoint with the best score; None if none has one."""
        one = next(iter(self.retention.ranked(self.entries)), None)
        return None if one is None or one.score is None else BestCheckpoint(self._path(one.name), one.score)

    def add(self, name: str, batch: int, score: float | None) -> _Lists:
        """Add a checkpoint that is about to be written, and note what is superfluous with it.

        Args:
            name: Its name in the folder.
            batch: After how many batches of training.
            score: Value of the monitored metric, or None.

        Returns:
            What :meth:`put_back` takes, if it cannot be written.
        """
        before = self.entries, self.obsolete, self.damaged
        # One that is written again, with how the run ended, keeps its number.
        number = next((one.number for one in self.entries if one.name == name), self._number)
        entries = [one for one in self.entries if one.name != name]
        entries.append(SavedCheckpoint(name, batch, number, score))
        self._number += number == self._number
        superfluous = self.retention.superfluous(entries)
        self.entries = [one for one in entries if one not in superfluous]
        self.obsolete = [one.name for one in superfluous if one.name != name]
        self.damaged = [one for one in self.damaged if one != name]
        return before

    def put_back(self, before: _Lists) -> None:
        """Take back what :meth:`add` has done.

        Args:
            before: What that returned.
        """
        self.entries, self.obsolete, self.damaged = before

    def snapshot(self, *, present_only: bool = False) -> _Lists:
        """Return the lists, for other processes or for :meth:`put_back`.

        Args:
            present_only: Whether to leave out what the folder does not have.
        """
        entries = self.entries
        if present_only and self._folder is not None:
            there = set(self._folder.present(one.name for one in entries))
            entries = [one for one in entries if one.name in there]
        return entries, self.obsolete, self.damaged

    def pass_over(self, paths: Sequence[str]) -> None:
        """Note checkpoints that could not be read.

        Args:
            paths: Their paths or URIs; those that are not in the folder are left out.
        """
        names = [] if self._folder is None else [name for path in paths if (name := self._folder.name_of(path))]
        self.damaged = list(dict.fromkeys([*self.damaged, *names]))

    def state_dict(self) -> dict[str, Any]:
        """Return the lists, the name of the run and the place."""
        return {
            "saved": [one.state_dict() for one in self.entries],
            "obsolete": list(self.obsolete),
            "damaged": list(self.damaged),
            "number": self._number,
            "run_name": self._run_name,
            "place": self._saved_place,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the list of an earlier process of the same run.

        A checkpoint may come from another run, from a copy of its folder, or from a stranger. So only those entries are
        kept that belong to this run, have a name that its checkpoints can have, and lie in this run's folder. Lists of
        earlier versions hold paths in place of names, and no name of the run.

        Args:
            state: What :meth:`state_dict` returned.
        """
        if self._folder is None:  # as long as the run is unknown, it is as it was saved
            self._run_name = state.get("run_name")
        self.begin(self._folder, self._templates, self._run_name)
        if self._folder is None:
            self._saved_place = state.get("place", self.place)
        if state.get("run_name", self._run_name) != self._run_name:
            _log.info("The checkpoint is of another run, whose checkpoints are left alone.")
            return
        number = state.get("number", 0)
        self._number = number if isinstance(number, int) else 0
        has_paths = "run_name" not in state

        def own(value: Any) -> str | None:
            if has_paths and isinstance(value, str):
                value = None if self._folder is None else self._folder.name_of(value)
            if not isinstance(value, str) or not is_plain(value):
                return None
            is_named_so = self._folder is None or any(pattern(one).fullmatch(value) for one in self._templates)
            return value if is_named_so else None

        def names(key: str) -> list[str]:
            values = state.get(key, ())
            return [name for one in values if (name := own(one)) is not None] if isinstance(values, list) else []

        self.obsolete, self.damaged = names("obsolete"), names("damaged")
        saved = state.get("saved", ())
        for entry in saved if isinstance(saved, list) else ():
            made = SavedCheckpoint.from_state(entry)
            name = None if made is None else own(made.name)
            if made is not None and name is not None:
                self.entries.append(replace(made, name=name))
        if isinstance(self._folder, LocalCheckpoints):  # elsewhere it takes a request, when training begins
            self.entries = self.snapshot(present_only=True)[0]

    def _path(self, name: str) -> str:
        return name if self._folder is None else self._folder.path_of(name)


def place_of(folder: str, filename: str) -> str:
    """Return the last part of a folder's name with that of its checkpoints: the same for a copy of the run elsewhere.

    Args:
        folder: A path or URI with placeholders; a user and password in it are left out.
        filename: Name of the checkpoints, with placeholders.

    >>> place_of("/data/night/best", "ep{epoch}.pt"), place_of("sftp://ann:secret@host/", "ep{epoch}.pt")
    ('best/ep{epoch}.pt', 'host/ep{epoch}.pt')
    """
    return f"{folder.rstrip('/').rpartition('/')[2].rpartition('@')[2]}/{filename}"
