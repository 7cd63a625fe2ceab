"""Read logs of JSONLinesLogger: one JSON object per line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, cast

from composer.core.array_axes import ArrayAxes
from composer.core.run_event import RunEvent
from composer.core.run_files import line_end
from composer.history.builder import HistoryBuilder
from composer.history.history import LoggedTable
from composer.history.series import TIMES

__all__ = ["is_json_lines", "read_json_lines", "shared_part"]

_KINDS: Final = frozenset({"metrics", "hyperparameters", "table", "traces", "event", "environment", "model", "axes"})
_BLOCK: Final = 1 << 20
_START: Final = re.compile(rb'\{"kind": ?"([a-z]+)"')


def is_json_lines(path: Path) -> bool:
    """Return whether a file is a log of :class:`.JSONLinesLogger`, by its first line.

    Args:
        path: The file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "log.jsonl")
    ...     _ = path.write_text('{"kind": "hyperparameters", "values": {"lr": 0.1}}')
    ...     is_json_lines(path)
    True
    """
    with path.open("rb") as file:
        line = file.readline(_BLOCK)
    if len(line) < _BLOCK:
        return _parsed(line).get("kind") in _KINDS
    # The first of a line of many metrics.
    start = _START.match(line)
    return start is not None and start[1].decode() in _KINDS


def read_json_lines(builder: HistoryBuilder, path: Path, start: int = 0) -> None:
    """Add the records of a log to a builder; an incomplete last line is left out.

    Args:
        builder: The builder.
        path: The file.
        start: Offset of the first line in bytes.

    Raises:
        ValueError: A line before the last is not a record.
    """
    torn: int | None = None
    with path.open("rb") as file:
        file.seek(start)
        for number, line in enumerate(file, 1):
            if torn is not None:
                where = f"{path}, line {torn}" if not start else f"{path}, line {torn} after byte {start}"
                raise ValueError(f"{where}, is not a record of JSONLinesLogger. Remove the line to read the others.")
            try:
                _add(builder, _record(line))
            except (OverflowError, RecursionError, TypeError, ValueError):
                torn = number
    if torn is not None:
        builder.remarks.append(f"the last line of {path.name} is incomplete, and was left out")


def shared_part(path: Path, other: Path) -> tuple[int, bool]:
    """Return how many bytes of complete lines two logs share at their start, and whether they are of one run.

    They are of one run if they share a record of a time trained, which is measured to the microsecond.

    Args:
        path: A file.
        other: Another file.
    """
    end = 0
    with path.open("rb") as file, other.open("rb") as other_file:
        while True:
            block, other_block = file.read(_BLOCK), other_file.read(_BLOCK)
            same = _common(block, other_block)
            end += same
            if not same or same < len(block):
                break
        end = line_end(file, end)
        return end, any(record.get("seconds", 0) for record in _records_before(file, end))


def _common(block: bytes, other: bytes) -> int:
    """Return the length of the common start of two blocks."""
    length = min(len(block), len(other))
    if block[:length] == other[:length]:
        return length
    low, high = 0, length  # the blocks are equal up to `low`, and differ before `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if block[low:middle] == other[low:middle] else (low, middle)
    return low


def _records_before(file: Any, end: int) -> Iterator[dict[str, Any]]:
    """Yield the last records before an offset, of one block and at least one."""
    start = min(max(0, end - _BLOCK), line_end(file, max(0, end - 1)))
    file.seek(start)
    yield from map(_parsed, file.read(end - start).splitlines())


def _record(line: bytes) -> dict[str, Any]:
    """Parse a line; raises a ValueError if it is no record."""
    record = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return cast("dict[str, Any]", record)


def _parsed(line: bytes) -> dict[str, Any]:
    """Parse a line; return an empty record if it is none."""
    try:
        return _record(line)
    except (RecursionError, ValueError):
        return {}


def _add(builder: HistoryBuilder, record: dict[str, Any]) -> None:
    """Add a record; what later versions may have added is left out."""
    kind, values = record.get("kind"), record.get("values")
    if kind == "metrics" and isinstance(values, dict):
        times = _times(record, TIMES)
        builder.add(_step(record), values, **times)
    elif kind == "hyperparameters" and isinstance(values, dict):
        builder.hyperparameters.update(values)
    elif kind == "environment" and isinstance(values, dict):
        builder.environment = values
    elif kind == "table" and isinstance(record.get("rows"), list):
        table = LoggedTable(list(map(str, record.get("columns") or ())), _rows(record), _step(record))
        builder.tables[str(record.get("name", "Table"))] = table
    elif kind == "event":
        builder.events.append(_event(record))
    elif kind == "axes":
        classes = record.get("classes")
        titles = [str(record.get(name, "")) for name in ("rows", "columns")]
        names = tuple(map(str, classes)) if isinstance(classes, list) else ()
        builder.axes[str(record.get("metric"))] = ArrayAxes(names, *titles)
    elif kind == "model" and isinstance(record.get("rows"), list):
        _rows(record)
        builder.model = {name: record.get(name) for name in ("name", "columns", "rows", "notes")}


def _event(record: dict[str, Any]) -> RunEvent:
    details, text = record.get("details"), str(record.get("text", ""))
    kept: dict[str, Any] = details if isinstance(details, dict) else {}
    times = _times(record, ("seconds", "time"))
    return RunEvent(str(record.get("event")), _step(record), text, details=kept, **times)


def _times(record: dict[str, Any], units: Sequence[str]) -> dict[str, float]:
    """Return the times of a record that are finite numbers."""
    known = {unit: record.get(unit) for unit in units}
    return {unit: time for unit, time in known.items() if isinstance(time, (int, float)) and math.isfinite(time)}


def _rows(record: dict[str, Any]) -> list[list[Any]]:
    """Return the rows of a table; raises a TypeError if one is no list."""
    rows = record["rows"]
    if not all(isinstance(row, list) for row in rows):
        raise TypeError("A row is no list.")
    return rows


def _step(record: dict[str, Any]) -> int:
    step = record.get("step")
    return step if isinstance(step, int) else 0
