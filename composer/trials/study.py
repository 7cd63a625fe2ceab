"""Studies: run trials, some at a time, keep their records in a folder, and go on with what is missing."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from composer._text import plural
from composer.trials.fork_server import ForkServer
from composer.trials.processes import Running
from composer.trials.records import Records
from composer.trials.trial import Record, Trial
from composer.trials.worker import TRIAL_FILE, hash_of

__all__ = ["Display", "Study"]


class Display(Protocol):
    """Shows the progress of a study.

    >>> class Names:
    ...     def started(self, trial): ...
    ...     def ended(self, trial, record, *, known):
    ...         print(record.name)
    """

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
        keep_failures: Whether trials that failed or timed out are not run again either, unless the program has changed.

    Raises:
        ValueError: ``parallel`` is less than 1.

    >>> from composer.trials import Target
    >>> target, probe = Target("script", "train.py"), "composer.trials.probe:Probe"
    >>> trials = [Trial("fp32", target, probe, changes=("precision=fp32",))]
    >>> Study(Path("study")).run(trials)["fp32"].outcome  # doctest: +SKIP
    'completed'
    """

    def __init__(
        self,
        folder: Path,
        *,
        parallel: int = 1,
        display: Display | None = None,
        server: ForkServer | None = None,
        keep_failures: bool = False,
    ) -> None:
        if parallel < 1:
            raise ValueError(f"parallel must be at least 1; got {parallel}.")
        self.folder, self._parallel, self._server = folder.absolute(), parallel, server
        self._display: Display = _NoDisplay() if display is None else display
        self._renewed: set[str] = set()
        self._kept = {"completed", "out_of_memory", *(("failed", "timed_out") if keep_failures else ())}

    def run(self, trials: Sequence[Trial]) -> dict[str, Record]:
        """Return the record of each trial by its name; trials of which there is a record are not run again.

        A trial whose predecessor (``after``) did not complete fails with the same reason. On Ctrl-C all trials that run
        are ended, and a later call with the same folder goes on.

        Args:
            trials: The trials, with different names.

        Raises:
            ValueError: Two trials have the same name, or one waits for a trial that comes later or does not exist; or a
                folder with the name of a trial has other files.
            RuntimeError: Another process runs trials in the same folder.
        """
        _check(trials)
        self.folder.mkdir(parents=True, exist_ok=True)
        with _locked(self.folder / "trials.lock"):
            self._records = Records(self.folder / "trials.jsonl")
            self._renewed.clear()
            return self._run(trials)

    def knows(self, trial: Trial) -> bool:
        """Return whether there is a record of a trial, with which it is not run again unless an earlier one is.

        Args:
            trial: The trial.

        >>> from composer.trials import Target
        >>> Study(tmp_path).knows(Trial("fp32", Target("script", "train.py"), "composer.trials.probe:Probe"))
        False
        """
        self._records = Records(self.folder / "trials.jsonl")
        return self._recorded(trial) is not None

    def _run(self, trials: Sequence[Trial]) -> dict[str, Record]:
        done: dict[str, Record] = {}
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
        return self._recorded(trial)

    def _recorded(self, trial: Trial) -> Record | None:
        """Return the record of a trial, if it is that of the present program and the files of the trial are there."""
        record = self._records.get(trial.key)
        if record is None or record.outcome not in self._kept:
            return None
        if any(hash_of(Path(path)) != known for path, known in record.sources.items()):
            return None  # a module of the program was edited
        folder = self.folder / trial.name
        if _key_of(folder) != trial.key:
            return None  # it has the files of another trial with this name
        return dataclasses.replace(record, folder=str(folder))

    def _empty_folder(self, trial: Trial) -> Path:
        folder = self.folder / trial.name
        if folder.exists():
            if not folder.is_dir() or (any(folder.iterdir()) and not (folder / TRIAL_FILE).exists()):
                raise ValueError(f"{folder} exists, and is not the folder of a trial: choose another folder.")
            shutil.rmtree(folder)
        folder.mkdir(parents=True)
        return folder


def _key_of(folder: Path) -> str | None:
    """Return the key of the trial whose files are in a folder."""
    try:
        return json.loads((folder / TRIAL_FILE).read_text(encoding="utf-8"))["key"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


@contextlib.contextmanager
def _locked(path: Path) -> Generator[None]:
    """Hold the lock of a study; the system releases it when this process ends in any way."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    with path.open("a+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RuntimeError(
                f"Another process runs trials in {path.parent}: wait until it has ended, or choose another folder."
            ) from None
        yield


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
