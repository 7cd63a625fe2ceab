"""Read logs of CSVLogger: a row for each step, a column for each metric."""

from __future__ import annotations

import codecs
import contextlib
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from composer.core.csv_rows import csv_rows
from composer.history.builder import HistoryBuilder

__all__ = ["is_csv_table", "read_csv_table", "shared_rows"]

_TIME: Final = ["step", "epoch", "seconds"]


def is_csv_table(path: Path) -> bool:
    """Return whether a file is a log of :class:`.CSVLogger`, by its first line.

    Args:
        path: The file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "metrics.csv")
    ...     _ = path.write_text("step,epoch,seconds,loss\\n0,0,0.0,0.5\\n")
    ...     is_csv_table(path)
    True
    """
    with path.open("rb") as file:
        # Spreadsheets put a byte order mark at the start.
        return file.read(len(",".join(_TIME)) + 4).removeprefix(codecs.BOM_UTF8).startswith(",".join(_TIME).encode())


def read_csv_table(builder: HistoryBuilder, path: Path, start: int = 0) -> None:
    """Add the rows of a log to a builder; an incomplete last row is left out.

    Args:
        builder: The builder.
        path: The file.
        start: Index of the first row.

    Raises:
        ValueError: A row is longer than the header, or has no step, or the file is no CSV in UTF-8.
    """
    rows = _rows(path)
    header = next(rows, [])
    names = header[len(_TIME) :]
    for number, row in enumerate(rows):
        if number < start:
            continue
        if len(row) > len(header):
            raise ValueError(f"{path}, line {number + 2}, has {len(row)} cells, but the header has {len(header)}.")
        cells = zip(names, row[len(_TIME) :], strict=False)
        values = {name: _value(cell) for name, cell in cells if cell}
        try:
            builder.add(int(row[0]), values, epoch=float(row[1]), seconds=float(row[2]))
        except (IndexError, OverflowError, ValueError):
            raise ValueError(f"{path}, line {number + 2}, does not begin with {', '.join(_TIME)}.") from None
    if path.stat().st_size and not _ends(path):
        builder.remarks.append(f"the last row of {path.name} is incomplete, and was left out")


def shared_rows(path: Path, other: Path) -> tuple[int, bool]:
    """Return how many rows two logs share at their start, and whether they are of one run.

    Args:
        path: A file.
        other: Another file; one of them may have more columns.
    """
    shared, seconds = 0, 0.0
    header, other_header = _rows(path), _rows(other)
    if any(name != another for name, another in zip(next(header, []), next(other_header, []), strict=False)):
        return 0, False
    for row, another in zip(header, other_header, strict=False):
        if _stripped(row) != _stripped(another):
            break
        shared += 1
        with contextlib.suppress(ValueError, IndexError):
            seconds = float(row[2])
    return shared, seconds > 0


def _rows(path: Path) -> Iterator[list[str]]:
    """Yield the rows that are complete, the header first."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        last: list[str] | None = None
        is_torn = not _ends(path)
        try:
            for row in csv_rows(file, strict=True):
                if last is not None:
                    yield last
                last = row
        except csv.Error as error:
            if not is_torn or next(file, None) is not None:
                raise ValueError(f"{path} is no valid CSV: {error}. Repair its quotes.") from None
            is_torn = False  # within quotes; the row before is complete
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not in UTF-8: {error}. Convert it.") from None
    if last is not None and not is_torn:
        yield last


def _ends(path: Path) -> bool:
    """Return whether the last line is complete."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, 2) - 1))
        return file.read(1) == b"\n"


def _stripped(row: list[str]) -> list[str]:
    """Return a row without empty cells at its end."""
    end = len(row)
    while end and not row[end - 1]:
        end -= 1
    return row[:end]


def _value(cell: str) -> Any:
    try:
        return float(cell)
    except ValueError:
        pass
    try:
        return json.loads(cell)  # a list, or true and false
    except (RecursionError, ValueError):
        return cell
