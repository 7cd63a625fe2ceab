"""Progress displays: throttled lines for a file or pipe (such as a CI log), live bars for a terminal."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from composer.environment import is_notebook
from composer.loggers._layout import bar_table, wrap_fields
from composer.loggers._progress_values import Line

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Display", "LiveDisplay", "PlainDisplay", "open_display"]


class Display(Protocol):
    """An output for progress bars.

    Attributes:
        interval: Minimum time between two calls of :meth:`render`, in seconds.
    """

    interval: float

    def render(self, lines: Sequence[Line]) -> None:
        """Show the active bars, the outer before the inner."""
        ...

    def finish(self, line: Line, lines: Sequence[Line] = ()) -> None:
        """Show a finished bar permanently, and keep showing the active ones."""
        ...

    def write(self, text: str) -> None:
        """Write permanent lines of text."""
        ...

    def write_fields(self, fields: Sequence[str], gap: str = "  ") -> None:
        """Write a permanent line of fields, broken between fields if it is too long."""
        ...

    def stop(self) -> None:
        """Stop the display; its last state remains visible."""
        ...


def open_display(stream: TextIO) -> Display:
    """Return the display for a stream: live if possible, else plain lines without control characters.

    Args:
        stream: The output stream.
    """
    if is_notebook() and stream in (sys.stdout, sys.stderr):
        from composer.loggers._notebook import NotebookDisplay

        return NotebookDisplay()
    return LiveDisplay(stream) if _is_terminal(stream) else PlainDisplay(stream)


def _is_terminal(stream: TextIO) -> bool:
    """Return whether lines on the stream can be updated in place."""
    if "rich.file_proxy" in sys.modules:
        from rich.file_proxy import FileProxy

        # Another run has live bars on this terminal: what is written to the proxy appears above them.
        if isinstance(stream, FileProxy):
            return False
    dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return stream.isatty() and not dumb and _has_rich() if hasattr(stream, "isatty") else False


def _has_rich() -> bool:
    return importlib.util.find_spec("rich") is not None


# This many lines of finished bars are written immediately; from then on one a second.
_BURST = 10


class PlainDisplay:
    """Lines without control characters: one about every ten seconds, and one for each finished bar.

    Short runs write the line of every epoch and evaluation. If bars finish faster than one a second, for more than ten
    lines, lines are delayed until there is a second for each, and a newer line replaces a delayed one of its series.
    Delayed lines are written at the end, so that the last line of each series is always present.

    Args:
        stream: The output stream.
    """

    interval = 10.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting: dict[str, Line] = {}
        self._allowance = float(_BURST)
        self._counted = time.monotonic()

    def render(self, lines: Sequence[Line]) -> None:
        self._flush()
        if lines:
            self._spend(1)
            self.write(lines[-1].sentence())

    def finish(self, line: Line, lines: Sequence[Line] = ()) -> None:
        self._waiting.pop(line.series, None)  # reinserted at the end
        self._waiting[line.series] = line
        now = time.monotonic()
        self._allowance = min(self._allowance + now - self._counted, float(max(_BURST, len(self._waiting))))
        self._counted = now
        if self._allowance >= len(self._waiting):
            self._flush()

    def write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def write_fields(self, fields: Sequence[str], gap: str = "  ") -> None:
        self.write(gap.join(fields))

    def stop(self) -> None:
        self._flush()

    def _flush(self) -> None:
        """Write the delayed lines."""
        lines, self._waiting = list(self._waiting.values()), {}
        self._spend(len(lines))
        for line in lines:
            self.write(line.sentence())

    def _spend(self, number: int) -> None:
        self._allowance = max(self._allowance - number, 0.0)


class LiveDisplay:
    """Bars updated in place at the bottom of a terminal; other output appears above them."""

    interval = 0.1

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        # A separate console, since a console supports a single live display, and runs may overlap.
        self._title_width = 0
        self._console = Console(file=stream, force_terminal=True, highlight=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,  # no thread; refreshed explicitly
            # Output to a file must not be redirected to the terminal.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start()
        # A killed process cannot restore the cursor, so it is never hidden.
        self._console.show_cursor(True)

    def render(self, lines: Sequence[Line]) -> None:
        self._live.update(self._table(lines), refresh=True)

    def finish(self, line: Line, lines: Sequence[Line] = ()) -> None:
        self._live.update(self._table(lines))
        self._console.print(self._table([line]))

    def write(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def write_fields(self, fields: Sequence[str], gap: str = "  ") -> None:
        self.write(wrap_fields(fields, self._console.width, indent="  ", gap=gap))

    def stop(self) -> None:
        self._live.stop()

    def _table(self, lines: Sequence[Line]) -> Table:
        # Finished and active bars are aligned with each other.
        table, self._title_width = bar_table(lines, self._console.width, self._title_width)
        return table
