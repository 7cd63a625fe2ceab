"""Studies: run trials, some at a time, keep their records in a folder, and go on with what is missing."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from composer._text import plural
from composer.trials.fork_server import ForkServer
from composer.trials.processes import Running
from composer.trials.records import Records
from composer.trials.trial import Record, Trial

__all__ = ["Display", "Study"]


class Display(Protocol):
    """Shows the progress of a study."""

    def started(self, trial: Trial) -> None:
        """Show that a trial has started."""
        ...

    def ended(self, trial: Trial, record: Record, *, known: bool) -> None:
        """Show the outcome of a trial; ``known`` if it is the record of an earlier start."""
        ...


class _NoDisplay:
    """Shows nothing."""

    def started(self, trial: Trial) -> None:
        del trial

    def ended(self, trial: Trial, record: Record, *, known: bool) -> None:
        del trial, record, known


class Study:
    """Runs trials and keeps their records.

    Args:
        folder: Folder for the records (``trials.jsonl``) and the files of each trial.
        parallel: Number of trials that run at the same time.
        display: Shows the progress.
        server: Forks the processes of trials; None starts a Python for each.

    Raises:
        ValueError: ``parallel`` is less than 1.
    """

    def __init__(
        self, folder: Path, *, parallel: int = 1, display: Display | None = None, server: ForkServer | None = None
    ) -> None:
        if parallel < 1:
            raise ValueError(f"parallel must be at least 1; got {parallel}.")
        self.folder, self._parallel, self._server = folder, parallel, server
        self._display: Display = _NoDisplay() if display is None else display
        self._records = Records(folder / "trials.jsonl")

    def run(self, trials: Sequence[Trial]) -> dict[str, Record]:
        """Return the record of each trial by its name; trials of which there is a record are not run again.

        A trial whose predecessor (``after``) did not complete fails with the same reason. On Ctrl-C all trials that run
        are ended, and a later call with the same folder goes on.

        Args:
            trials: The trials, with different names.

        Raises:
            ValueError: Two trials have the same name, or one waits for a trial that comes later or does not exist.
        """
        _check(trials)
        done: dict[str, Record] = {}
        self._renewed: set[str] = set()
        running: list[Running] = []
        waiting = list(trials)
        try:
            while waiting or running:
                for trial in list(self._ready(waiting, done)):
                    if len(running) >= self._parallel:
                        break
                    waiting.remove(trial)
                    known = self._known(trial, done)
                    if known is not None:
                        done[trial.name] = known
                        self._display.ended(trial, known, known=True)
                    else:
                        self._display.started(trial)
                        running.append(Running(trial, self._empty_folder(trial), self._server))
                for each in list(running):
                    record = each.poll()
                    if record is not None:
                        running.remove(each)
                        self._records.add(record)
                        self._renewed.add(each.trial.name)
                        done[each.trial.name] = record
                        self._display.ended(each.trial, record, known=False)
                if running:
                    time.sleep(0.02)
        finally:
            for each in running:
                each.end()
        return done

    def _ready(self, waiting: Sequence[Trial], done: Mapping[str, Record]) -> Iterator[Trial]:
        """Yield the trials whose predecessors have ended."""
        return (trial for trial in waiting if all(name in done for name in trial.after))

    def _known(self, trial: Trial, done: Mapping[str, Record]) -> Record | None:
        """Return the record of a trial that need not run, if there is one."""
        for name in trial.after:
            if not done[name].is_completed:
                return Record(trial.name, trial.key, "failed", 0.0, f"{name} did not complete: {done[name].error}")
        if self._renewed.intersection(trial.after):
            return None  # it may read files of the earlier trial
        record = self._records.get(trial.key)
        usable = record is not None and record.outcome in ("completed", "out_of_memory") and record.path.is_dir()
        return record if usable else None

    def _empty_folder(self, trial: Trial) -> Path:
        folder = self.folder / trial.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder


def _check(trials: Sequence[Trial]) -> None:
    """Raise unless the names of trials are different, and each waits for earlier ones only."""
    names: set[str] = set()
    for trial in trials:
        if trial.name in names:
            raise ValueError(f"Two of the {plural(len(trials), 'trial')} have the name {trial.name!r}.")
        missing = set(trial.after) - names
        if missing:
            raise ValueError(f"Trial {trial.name!r} waits for {sorted(missing)}, which must come before it.")
        names.add(trial.name)
