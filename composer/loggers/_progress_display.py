"""Two ways to show progress: throttled lines in a file or pipe (a CI log), live bars in a terminal."""

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
    """Where progress is shown.

    Attributes:
        interval: Least time between two calls of :meth:`show`, in seconds.
    """

    interval: float

    def show(self, lines: Sequence[Line]) -> None:
        """Show the bars that are at work, the outer before the inner."""
        ...

    def leave(self, line: Line, lines: Sequence[Line] = ()) -> None:
        """Show a finished bar that stays, and go on with those still at work."""
        ...

    def write(self, text: str) -> None:
        """Show lines of text that stay."""
        ...

    def write_fields(self, fields: Sequence[str], gap: str = "  ") -> None:
        """Show one line of fields that stays; where it is too long, it is broken between fields."""
        ...

    def stop(self) -> None:
        """End; the last state stays."""
        ...


def open_display(stream: TextIO) -> Display:
    """Return the display that suits a stream: live where that works, else plain lines without control characters.

    Args:
        stream: Where to write.
    """
    if is_notebook() and stream in (sys.stdout, sys.stderr):
        from composer.loggers._notebook import NotebookDisplay

        return NotebookDisplay()
    return LiveDisplay(stream) if _is_terminal(stream) else PlainDisplay(stream)


def _is_terminal(stream: TextIO) -> bool:
    """Whether lines on the stream can be drawn anew."""
    if "rich.file_proxy" in sys.modules:
        from rich.file_proxy import FileProxy

        # Another run's bars are live on this terminal: what is written to the proxy appears above them.
        if isinstance(stream, FileProxy):
            return False
    dumb = os.environ.get("TERM", "").lower() in ("dumb", "unknown")
    return stream.isatty() and not dumb and _has_rich() if hasattr(stream, "isatty") else False


def _has_rich() -> bool:
    return importlib.util.find_spec("rich") is not None


# So many lines of finished bars are written at once; from then on one a second.
_BURST = 10


class PlainDisplay:
    """Lines without control characters: one about every ten seconds, and one for each finished bar.

    Short runs leave the line of every epoch and evaluation. Where bars finish faster than one a second, for longer than
    ten lines, a line waits until there is a second for each that waits, and a newer one of its series takes its place.
    The last ones are written at the end, so that the end of each series is always there.

    Args:
        stream: Where to write.
    """

    interval = 10.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting: dict[str, Line] = {}
        self._allowance = float(_BURST)
        self._counted = time.monotonic()

    def show(self, lines: Sequence[Line]) -> None:
        self._flush()
        if lines:
            self._spend(1)
            self.write(lines[-1].sentence())

    def leave(self, line: Line, lines: Sequence[Line] = ()) -> None:
        self._waiting.pop(line.series, None)  # so that the order is that of the newest
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
        """Write the lines that wait."""
        lines, self._waiting = list(self._waiting.values()), {}
        self._spend(len(lines))
        for line in lines:
            self.write(line.sentence())

    def _spend(self, number: int) -> None:
        self._allowance = max(self._allowance - number, 0.0)


class LiveDisplay:
    """Bars redrawn in place at the bottom of a terminal; what else is printed appears above them."""

    interval = 0.1

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        # A console of its own, since a console can have one live display only, and runs may overlap.
        self._title_width = 0
        self._console = Console(file=stream, force_terminal=True, highlight=False)
        self._live = Live(
            console=self._console,
            auto_refresh=False,  # no thread; redrawn by hand
            # What goes into a file must not be diverted to the terminal.
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._live.start()
        # A process that is killed cannot give the cursor back, so it is never taken.
        self._console.show_cursor(True)

    def show(self, lines: Sequence[Line]) -> None:
        self._live.update(self._table(lines), refresh=True)

    def leave(self, line: Line, lines: Sequence[Line] = ()) -> None:
        self._live.update(self._table(lines))
        self._console.print(self._table([line]))

    def write(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def write_fields(self, fields: Sequence[str], gap: str = "  ") -> None:
        self.write(wrap_fields(fields, self._console.width, indent="  ", gap=gap))

    def stop(self) -> None:
        self._live.stop()

    def _table(self, lines: Sequence[Line]) -> Table:
        # Lines that stay and bars at work are aligned with each other.
        table, self._title_width = bar_table(lines, self._console.width, self._title_width)
        return table
