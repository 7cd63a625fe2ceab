"""Read the rows of a CSV file whose cells may be long, such as a confusion matrix of many classes."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator

__all__ = ["csv_rows"]

# The largest that the C type of the limit holds on all systems.
_LONGEST_CELL = 2**31 - 1


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
