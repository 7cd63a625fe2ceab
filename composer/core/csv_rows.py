"""Read the rows of a CSV file whose cells may be long, such as a confusion matrix of many classes."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

__all__ = ["COUNTERS", "TIME_COLUMNS", "column_of", "complete_rows", "csv_rows", "is_torn", "metric_of"]

# The columns of every row of a log of metrics; those of the metrics follow.
TIME_COLUMNS: Final = ("step", "epoch", "seconds")
# The counters that the trainer logs with each batch and epoch: the times of every value.
COUNTERS: Final = frozenset(
    f"time/{name}"
    for name in ("epoch", "batch", "sample", "token", "batch_in_epoch", "sample_in_epoch", "token_in_epoch")
)
_PREFIX: Final = "metrics/"
_TAKEN: Final = re.compile(f"(?:{_PREFIX})*(?:{'|'.join(TIME_COLUMNS)})")

# The largest that the C type of the limit holds on all systems.
_LONGEST_CELL = 2**31 - 1


def column_of(metric: str) -> str:
    """Return the column of a metric in a log: its name, unless that is a column of time, or the column of another.

    Args:
        metric: Name of the metric.

    >>> [column_of(name) for name in ("loss", "step", "metrics/step", "metrics/eval/step")]
    ['loss', 'metrics/step', 'metrics/metrics/step', 'metrics/eval/step']
    """
    return _PREFIX + metric if _TAKEN.fullmatch(metric) else metric


def metric_of(column: str) -> str:
    """Return the name of the metric of a column, see :func:`column_of`.

    Args:
        column: Name of the column.

    >>> [metric_of(name) for name in ("loss", "metrics/step", "metrics/metrics/step", "metrics/eval/step")]
    ['loss', 'step', 'metrics/step', 'metrics/eval/step']
    """
    return column.removeprefix(_PREFIX) if _TAKEN.fullmatch(column) else column


def csv_rows(lines: Iterable[str], *, strict: bool = False) -> Iterator[list[str]]:
    r"""Yield the rows of a CSV file; cells may be longer than the 131,072 characters that ``csv`` allows.

    Args:
        lines: The file, opened with ``newline=""``.
        strict: Whether a quote that is not closed is an error, rather than the rest of the file a cell.

    Raises:
        csv.Error: With ``strict``, the file is no valid CSV.

    >>> [len(cell) for row in csv_rows(["1,2\n", "3," + 200_000 * "x"]) for cell in row]
    [1, 1, 1, 200000]
    """
    reader = csv.reader(lines, strict=strict)
    while True:
        # The limit is one of the process, so it is raised only while a row is read.
        limit = csv.field_size_limit(_LONGEST_CELL)
        try:
            row = next(reader, None)
        finally:
            csv.field_size_limit(limit)
        if row is None:
            return
        yield row


def complete_rows(path: Path) -> Iterator[list[str]]:
    r"""Yield the rows of a CSV file in UTF-8, without a last one that a crash left incomplete.

    Args:
        path: The file.

    Raises:
        ValueError: The file is no CSV in UTF-8.

    >>> (tmp_path / "metrics.csv").write_bytes(b"step,loss\n1,0.25\n2,0.2")
    22
    >>> list(complete_rows(tmp_path / "metrics.csv"))
    [['step', 'loss'], ['1', '0.25']]
    """
    lines = _lines(path)
    try:
        yield from csv_rows(lines, strict=True)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8: {error}. Convert it.") from None
    except csv.Error as error:
        # The last row may be torn within quotes, where a line break does not end it.
        if not is_torn(path) or next(lines, None) is not None:
            raise ValueError(f"{path} is no valid CSV: {error}. Repair its quotes.") from None


def is_torn(path: Path) -> bool:
    r"""Return whether the last row of a file is incomplete: a process was killed or a disk was full as it was written.

    Args:
        path: The file.

    >>> (tmp_path / "metrics.csv").write_bytes(b"step,loss\n1,0.25\n2,0.2")
    22
    >>> is_torn(tmp_path / "metrics.csv")
    True
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        return size > 0 and file.read(1) != b"\n"


def _lines(path: Path) -> Iterator[str]:
    """Yield the complete lines; a torn one may end within a character."""
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if line.endswith(b"\n"):
                # Spreadsheets put a byte order mark at the start.
                yield (line if number else line.removeprefix(codecs.BOM_UTF8)).decode()
