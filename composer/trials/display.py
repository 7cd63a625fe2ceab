"""The progress of a study on the terminal: a line for each trial, and an estimate of the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, TextIO

from composer.trials.trial import Record, Trial

__all__ = ["TrialDisplay"]

_STYLES = {"completed": "green", "failed": "red", "out_of_memory": "yellow", "timed_out": "yellow", "killed": "red"}


class TrialDisplay:
    """Prints a line for each trial that has ended, and shows the running ones in a terminal.

    Args:
        total: Number of trials.
        stream: Where to write; None for stderr.
        describe: What to say of a record, after its name and time; by default the outcome and the error.
        shown: Keys of the trials whose lines were printed, by this display or an earlier one of the same command. A
            record that is known is printed once.

    >>> with TrialDisplay(1, stream=sys.stdout) as display:
    ...     display.ended(None, Record("bf16", "0f", "completed", 3.21), known=False)
    bf16                           3.2 s  completed
    """

    def __init__(
        self,
        total: int,
        stream: TextIO | None = None,
        describe: Callable[[Record], str] | None = None,
        shown: set[str] | None = None,
    ) -> None:
        # Imported when there is something to show: rich takes a while to import.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.table import Column

        self._console = Console(file=sys.stderr if stream is None else stream, highlight=False, soft_wrap=True)
        self._describe = _outcome if describe is None else describe
        self._shown = set[str]() if shown is None else shown
        shortened = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self._progress = Progress(
            MofNCompleteColumn(),
            BarColumn(bar_width=16),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}", markup=False, table_column=Column(no_wrap=True)),
            TextColumn("{task.description}", markup=False, table_column=shortened),
            console=self._console,
            transient=True,
            expand=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._progress.add_task("", total=total, left="")
        self._total, self._measured, self._ended = total, 0, 0
        self._began = time.monotonic()
        self._running: list[str] = []

    def __enter__(self) -> Self:
        """Show the progress."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it; the lines remain."""
        self._progress.stop()

    def started(self, trial: Trial) -> None:
        """Name a trial that has started.

        Args:
            trial: The trial.
        """
        self._running.append(trial.name)
        self._update()

    def ended(self, trial: Any, record: Record, *, known: bool) -> None:
        """Print the line of a trial.

        Args:
            trial: The trial.
            record: Its record.
            known: Whether the record is that of an earlier start.
        """
        self._ended += 1
        self._measured += not known
        if record.name in self._running:
            self._running.remove(record.name)
        if not (known and record.key in self._shown):
            self._print(record, known=known)
        self._shown.add(record.key)
        self._update()

    def _print(self, record: Record, *, known: bool) -> None:
        from rich.text import Text

        # As text, not as markup: errors have brackets; and in one line.
        told = " ".join(self._describe(record).split())
        earlier = " (measured before)" if known and record.seconds else ""
        line = Text.assemble(f"{record.name:<26}{record.seconds:>8.1f} s  ", (told, _STYLES[record.outcome]), earlier)
        self._console.print(line)

    def _update(self) -> None:
        """Show what runs, and the estimate."""
        left = ""
        if self._measured:
            each = (time.monotonic() - self._began) / self._measured
            left = f"about {_rounded(each * (self._total - self._ended))} left"
        self._progress.update(self._task, description=", ".join(self._running), completed=self._ended, left=left)


def _outcome(record: Record) -> str:
    """Return the outcome, with the reason of one that did not complete."""
    words = record.outcome.replace("_", " ")
    return words if record.is_completed else f"{words}: {record.error}"


def _rounded(seconds: float) -> str:
    """Return an estimate of a time without digits that it does not have."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
