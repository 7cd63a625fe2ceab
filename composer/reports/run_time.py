"""Find the ledger of a run: where its wall time went, over all its processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from composer.history.history import History
from composer.ledger.ledger import FILENAME, Ledger

__all__ = ["find_ledger", "seconds_by_category"]


def find_ledger(history: History, folder: Path | None = None) -> Ledger | None:
    """Return the ledger of a run, None if there is none: runs keep one beside their checkpoints.

    Args:
        history: The run, whose events name its checkpoints.
        folder: Folder of the run, in which and one level below which to look too.

    >>> find_ledger(History("night")) is None
    True
    """
    for place in _folders(history, folder):
        if (place / FILENAME).is_file():
            return Ledger.read(place)
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


def _folders(history: History, folder: Path | None) -> Iterator[Path]:
    """Yield the folders in which the ledger may be, the most likely one first."""
    for event in reversed(history.events):
        path = event.details.get("path") if event.kind == "checkpoint" else None
        if isinstance(path, str) and "://" not in path:
            yield Path(path).parent
    if folder is not None and folder.is_dir():
        yield folder
        yield from sorted(one for one in folder.iterdir() if one.is_dir())
