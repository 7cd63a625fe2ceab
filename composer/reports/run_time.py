"""Find the ledger of a run: where its wall time went, over all its processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from composer.history.history import History
from composer.ledger.ledger import FILENAME, Ledger

__all__ = ["find_ledger", "seconds_by_category"]

# Seconds by which the times of a ledger and of events may differ by rounding.
_SLACK = 0.1


def find_ledger(history: History, folder: Path | None = None) -> Ledger | None:
    """Return the ledger of a run, None if there is none: runs keep one beside their checkpoints.

    A later run may have saved its checkpoints in the same folder: its ledger has no process that ran at the time of an
    event of this run.

    Args:
        history: The run, whose events name its checkpoints.
        folder: Folder of the run, in which and one level below which to look too.

    >>> find_ledger(History("night")) is None
    True
    """
    for place in _folders(history, folder):
        # The folder may be that of another user, or of another computer.
        with contextlib.suppress(OSError, ValueError):
            if (place / FILENAME).is_file() and _is_of(ledger := Ledger.read(place), history):
                return ledger
    return None


def seconds_by_category(ledger: Ledger) -> dict[str, float]:
    """Return the seconds of a ledger by the displayed name of their category, without categories of no time.

    Args:
        ledger: The ledger.

    >>> from composer.ledger import Category, Segment
    >>> seconds_by_category(Ledger([Segment("a", 0.0, {Category.DATA: 1.0})]))
    {'waiting for data': 1.0}
    """
    return {category.label: seconds for category, seconds in ledger.seconds.items() if seconds > 0}


def _is_of(ledger: Ledger, history: History) -> bool:
    """Return whether a process of the ledger ran at the time of an event, if there are any."""
    times = [event.time for event in history.events if event.time is not None]
    spans = [(segment.started - _SLACK, segment.ended + _SLACK) for segment in ledger.segments]
    return not times or any(start <= time <= end for time in times for start, end in spans)


def _folders(history: History, folder: Path | None) -> Iterator[Path]:
    """Yield the folders in which the ledger may be, the most likely one first."""
    for event in reversed(history.events):
        path = event.details.get("path") if event.kind == "checkpoint" else None
        if isinstance(path, str) and "://" not in path:
            yield Path(path).parent
    if folder is not None and folder.is_dir():
        yield folder
        with contextlib.suppress(OSError):
            yield from sorted(one for one in folder.iterdir() if one.is_dir())
