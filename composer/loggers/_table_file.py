"""A CSV file to which both rows and columns can be added."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from composer.core.csv_rows import complete_rows, is_torn
from composer.core.run_files import set_aside

__all__ = ["TableFile"]


class TableFile:
    """A CSV file whose last row can be extended, and whose header grows with new columns.

    New rows are appended. New columns are added on the right; the file is then rewritten to a temporary file that
    replaces the old one, so that it is complete at any time.

    Args:
        path: The file; an existing one is continued. A last row that a crash left incomplete is removed, since a
            truncated number is another number.
        num_rows: How many of its rows to keep; None keeps all. If rows are removed, a copy of the file is kept.

    Attributes:
        columns: The names in the header.
        num_rows: Number of rows below the header.

    Raises:
        ValueError: The file was not written by this class: a row is longer than the header, or it is no CSV in UTF-8.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     table = TableFile(Path(folder, "metrics.csv"))
    ...     table.write([{"step": "0", "loss": "0.5"}, {"step": "1", "accuracy": "0.9"}])
    ...     print(table.path.read_text(), end="")
    step,loss,accuracy
    0,0.5,
    1,,0.9
    """

    def __init__(self, path: Path, num_rows: int | None = None) -> None:
        self.path = path
        self.columns: list[str] = []
        self.num_rows = 0
        self._last_row_at = self._end = 0  # byte offsets in the file
        if path.exists():
            rows = complete_rows(path)
            self.columns = next(rows, [])
            found = sum(1 for _ in rows)
            kept = self._rows(found if num_rows is None else min(found, num_rows))
            if len(kept) < found or is_torn(path):
                set_aside(path, copy=True)
            self._rewrite(kept, self.columns)

    def last(self) -> dict[str, str]:
        """Return the nonempty cells of the last row, by column; empty if there are no rows."""
        rows = self._rows(self.num_rows)
        return {column: cell for column, cell in zip(self.columns, rows[-1], strict=True) if cell} if rows else {}

    def write(self, rows: Sequence[Mapping[str, str]], replace_last: bool = False) -> None:
        """Append rows.

        Args:
            rows: Cells by column.
            replace_last: Whether the first of them replaces the last row of the file.
        """
        new = [column for column in dict.fromkeys(c for row in rows for c in row) if column not in set(self.columns)]
        if new:
            self._rewrite(self._rows(self.num_rows), [*self.columns, *new])
        if not rows:
            return
        texts = [_text([[row.get(column, "") for column in self.columns]]) for row in rows]
        with self.path.open("r+b") as file:
            # From the end of the last successful write, in case a failed one left an incomplete row.
            begin = self._last_row_at if replace_last else self._end
            file.seek(begin)
            file.truncate()
            file.write(b"".join(texts))
        self.num_rows += len(rows) - replace_last
        self._end = begin + sum(map(len, texts))
        self._last_row_at = self._end - len(texts[-1])

    def _rows(self, number: int) -> list[list[str]]:
        """Read the first rows, padded to the width of the header."""
        if not self.path.exists():
            return []
        rows = list(itertools.islice(complete_rows(self.path), 1, number + 1))
        width = len(self.columns)
        if any(len(row) > width for row in rows):
            raise ValueError(f"{self.path} has a row with more cells than its header; move or remove the file.")
        return [row + [""] * (width - len(row)) for row in rows]

    def _rewrite(self, rows: Sequence[Sequence[str]], columns: list[str]) -> None:
        """Rewrite the file with a header, which is that of the table only once it is in the file."""
        width = len(columns)
        before = _text([columns, *(list(row) + [""] * (width - len(row)) for row in rows[:-1])])
        last = _text([list(row) + [""] * (width - len(row)) for row in rows[-1:]])
        new = self.path.with_name(f".{self.path.name}.new")
        new.write_bytes(before + last)
        new.replace(self.path)
        self.columns, self.num_rows = columns, len(rows)
        self._last_row_at, self._end = len(before), len(before) + len(last)


def _text(rows: Iterable[Sequence[str]]) -> bytes:
    return "".join(",".join(map(_quoted, row)) + "\n" for row in rows).encode(errors="backslashreplace")


def _quoted(cell: str) -> str:
    """Quote a cell if needed, also for carriage returns, which ``csv.writer`` does not quote."""
    return '"' + cell.replace('"', '""') + '"' if any(char in cell for char in ',"\r\n') else cell
