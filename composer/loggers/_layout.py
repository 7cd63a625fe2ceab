"""Lay out progress bars in the width of a terminal: values have priority over the bar, the rate and the times."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TextIO

from composer.loggers._progress_values import Line

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

__all__ = ["bar_table", "cell_len", "shorten", "terminal_width", "wrap_fields"]

_BAR_WIDTH = 30
_LEAST_BAR_WIDTH = 6
_LEAST_TITLE_WIDTH = 12
_LEAST_NAME_WIDTH = 5
_GAP = "  "


def terminal_width(stream: TextIO) -> int | None:
    """Return the width of a terminal in columns; None for a file or pipe, whose lines are not limited.

    Args:
        stream: The output stream.

    >>> import io
    >>> terminal_width(io.StringIO()) is None
    True
    """
    if not hasattr(stream, "isatty") or not stream.isatty():
        return None
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):  # a terminal-like object without a file descriptor
        return shutil.get_terminal_size().columns


def cell_len(text: str) -> int:
    """Return the number of columns of a text; wide characters take two.

    Args:
        text: One line of text.

    >>> cell_len("loss"), cell_len("精度")
    (4, 4)
    """
    if text.isascii():
        return len(text)
    from rich.cells import cell_len as of_rich  # imported lazily: it loads tables of all characters

    return of_rich(text)


def shorten(text: str, width: int) -> str:
    """Truncate text to at most ``width`` columns by removing its middle, since names differ at their ends.

    Args:
        text: One line of text. Wide characters take two columns.
        width: Number of columns, 1 or more.

    >>> shorten("validation_split_accuracy", 11)
    'valid…uracy'
    >>> shorten("loss", 11)
    'loss'
    """
    if cell_len(text) <= width:
        return text
    from rich.cells import set_cell_size

    if width <= 1:
        return "…"[:width]
    head = width // 2
    # set_cell_size() pads with a space if it would have to cut a wide character in two.
    begin = set_cell_size(text, head).rstrip() if cell_len(text) > head else text
    end = set_cell_size(text[::-1], width - 1 - head).rstrip()[::-1]
    return f"{begin}…{end}"


def wrap_fields(fields: Sequence[str], width: int | None, indent: str = "", gap: str = "  ") -> str:
    """Join fields by a gap, breaking lines between fields that would exceed the width of the terminal.

    Args:
        fields: Texts without line breaks.
        width: Number of columns; None for no limit.
        indent: Prefix of each line but the first.
        gap: Separator of two fields in a line.

    >>> print(wrap_fields(["config", "seed=17", "num_nodes=1"], 18, "  "))
    config  seed=17
      num_nodes=1
    """
    lines = list(fields[:1])
    for field in fields[1:]:
        longer = f"{lines[-1]}{gap}{field}"
        if width is not None and cell_len(longer) > width:
            lines.append(f"{indent}{field}")
        else:
            lines[-1] = longer
    return "\n".join(lines)


def bar_table(lines: Sequence[Line], width: int, title_width: int = 0) -> tuple[Table, int]:
    """Lay out bars one below the other, and return the table and the width of its titles.

    What does not fit is dropped in this order: the graphical bar, the rate, the times, the unit of the count, the
    count, the middle of names. Values of a finished bar continue on further lines; for an active bar, the last values
    are replaced by their number.

    Args:
        lines: The bars.
        width: Number of columns.
        title_width: The minimum width of the titles, such as that of bars shown before.
    """
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    max_title = max(_LEAST_TITLE_WIDTH, width // 3)
    title_width = min(max([title_width, *(cell_len(line.title) for line in lines)]), max_title)
    free = width - title_width - 1
    bar_width = min(_BAR_WIDTH, free - 1 - max((_full(line).cell_len for line in lines), default=0))
    has_bar = bar_width >= _LEAST_BAR_WIDTH
    if has_bar:
        free -= bar_width + 1
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, min_width=title_width)
    if has_bar:
        table.add_column(width=bar_width)
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(free, 1))
    for line in lines:
        cells: list[Any] = [Text(shorten(line.title, title_width)), _details(line, max(free, 1))]
        if has_bar:
            total = line.done if line.final and line.total is None else line.total
            cells.insert(1, ProgressBar(total=total, completed=line.done, width=bar_width))
        table.add_row(*cells)
    return table, title_width


def _full(line: Line) -> Text:
    return next(_candidates(line, line.metrics))


def _details(line: Line, width: int) -> Text:
    """Return the details of a bar next to its title, shortened to a width."""
    from rich.text import Text

    for candidate in _candidates(line, line.metrics):
        if candidate.cell_len <= width:
            return candidate
    if line.final:
        items = [_item(name, value, width) for name, value in line.formatted]
        return Text(wrap_fields([line.short_count, *items], width))
    longest = max(len(name) for name, _ in line.formatted)
    for name_width in range(longest - 1, _LEAST_NAME_WIDTH - 1, -1):
        items = [f"{shorten(name, name_width)} {value}" for name, value in line.formatted]
        for text in list(_candidates(line, items))[-2:]:
            if text.cell_len <= width:
                return text
    return _first_items(line, width)


def _first_items(line: Line, width: int) -> Text:
    """Return the first values that fit, and the number of the others."""
    from rich.text import Text

    items = [f"{shorten(name, _LEAST_NAME_WIDTH)} {value}" for name, value in line.formatted]
    for number in range(len(items) - 1, 0, -1):
        text = _GAP.join([*items[:number], f"+{len(items) - number}"])
        if cell_len(text) <= width:
            return Text(text)
    return Text(_item(*line.formatted[0], width))


def _item(name: str, value: str, width: int) -> str:
    """Format a name and its value in ``width`` columns by shortening the name."""
    name_width = width - cell_len(value) - 1
    return f"{shorten(name, name_width)} {value}" if name_width >= 1 else value


def _candidates(line: Line, metrics: Sequence[str]) -> Iterator[Text]:
    """Yield the details of a bar, each time with fewer fields next to the metrics."""
    count, times, speed = line.count, line.times, line.speed
    yield _joined(count, times, speed, metrics)
    yield _joined(count, times, None, metrics)
    if metrics:
        yield _joined(count, None, None, metrics)
    yield _joined(line.short_count, None, None, metrics)
    yield _joined(line.percent, None, None, metrics)


def _joined(count: str | None, times: str | None, speed: str | None, metrics: Sequence[str]) -> Text:
    from rich.text import Text

    styled = [(count, "green"), (times, "cyan"), (speed, "magenta"), *((metric, "default") for metric in metrics)]
    return Text(_GAP).join(Text(field, style) for field, style in styled if field)
