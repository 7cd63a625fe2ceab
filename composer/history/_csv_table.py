"""Read logs of CSVLogger: a row for each step, a column for each metric."""

from __future__ import annotations

import codecs
import contextlib
import json
from pathlib import Path
from typing import Any

from composer.core.csv_rows import TIME_COLUMNS, complete_rows, is_torn, metric_of
from composer.history.builder import HistoryBuilder

__all__ = ["is_csv_table", "read_csv_table", "shared_rows"]


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
        return (
            file.read(len(",".join(TIME_COLUMNS)) + 4)
            .removeprefix(codecs.BOM_UTF8)
            .startswith(",".join(TIME_COLUMNS).encode())
        )


def read_csv_table(builder: HistoryBuilder, path: Path, start: int = 0) -> None:
    """Add the rows of a log to a builder; an incomplete last row is left out.

    Args:
        builder: The builder.
        path: The file.
        start: Index of the first row.

    Raises:
        ValueError: A row is longer than the header, or has no step, or the file is no CSV in UTF-8.
    """
    rows = complete_rows(path)
    header = next(rows, [])
    names = list(map(metric_of, header[len(TIME_COLUMNS) :]))
    for number, row in enumerate(rows):
        if number < start:
            continue
        if len(row) > len(header):
            raise ValueError(f"{path}, line {number + 2}, has {len(row)} cells, but the header has {len(header)}.")
        cells = zip(names, row[len(TIME_COLUMNS) :], strict=False)
        values = {name: _value(cell) for name, cell in cells if cell}
        try:
            builder.add(int(row[0]), values, epoch=float(row[1]), seconds=float(row[2]))
        except (IndexError, OverflowError, ValueError):
            raise ValueError(f"{path}, line {number + 2}, does not begin with {', '.join(TIME_COLUMNS)}.") from None
    if is_torn(path):
        builder.remarks.append(f"the last row of {path.name} is incomplete, and was left out")


def shared_rows(path: Path, other: Path) -> tuple[int, bool]:
    """Return how many rows two logs share at their start, and whether they are of one run.

    Args:
        path: A file.
        other: Another file; one of them may have more columns.
    """
    shared, seconds = 0, 0.0
    header, other_header = complete_rows(path), complete_rows(other)
    if any(name != another for name, another in zip(next(header, []), next(other_header, []), strict=False)):
        return 0, False
    for row, another in zip(header, other_header, strict=False):
        if _stripped(row) != _stripped(another):
            break
        shared += 1
        with contextlib.suppress(ValueError, IndexError):
            seconds = float(row[2])
    return shared, seconds > 0


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
