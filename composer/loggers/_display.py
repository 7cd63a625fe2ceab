"""Three ways to show progress: lines in a file or pipe, live bars in a terminal, live bars in a notebook."""

from __future__ import annotations

import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from composer.environment import is_notebook
from composer.loggers._bars import Line

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

__all__ = ["Display", "LiveDisplay", "NotebookDisplay", "PlainDisplay", "open_display"]


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

    def stop(self) -> None:
        """End; the last state stays."""
        ...


def open_display(stream: TextIO) -> Display:
    """Return the display that suits a stream: live where that works, else plain lines without control characters.

    Args:
        stream: Where to write.
    """
    if _is_notebook(stream):
        return NotebookDisplay()
    return LiveDisplay(stream) if _is_terminal(stream) else PlainDisplay(stream)


def _is_notebook(stream: TextIO) -> bool:
    """Whether the stream is the output of a notebook's cell."""
    return is_notebook() and stream in (sys.stdout, sys.stderr) and _has_rich()


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


class PlainDisplay:
    """One line of text about every ten seconds, and one for each finished bar."""

    interval = 10.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, lines: Sequence[Line]) -> None:
        if lines:
            self.write(lines[-1].sentence())

    def leave(self, line: Line, lines: Sequence[Line] = ()) -> None:
        self.write(line.sentence())

    def write(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def stop(self) -> None:
        pass


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

    def stop(self) -> None:
        self._live.stop()

    def _table(self, lines: Sequence[Line]) -> Table:
        # Lines that stay and bars at work are aligned with each other.
        self._title_width = max([self._title_width, *(len(line.title) for line in lines)])
        return _table(lines, self._console.width, self._title_width)


class NotebookDisplay:
    """Bars redrawn in place in the output of a notebook's cell."""

    interval = 0.2
    _WIDTH = 110

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, lines: Sequence[Line]) -> None:
        data = self._rendered(lines)
        if self._handle is None:
            from IPython.display import display

            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def leave(self, line: Line, lines: Sequence[Line] = ()) -> None:
        self.show([line])
        self._handle = None
        if lines:
            self.show(lines)

    def write(self, text: str) -> None:
        print(text)  # noqa: T201

    def stop(self) -> None:
        self._handle = None

    def _rendered(self, lines: Sequence[Line]) -> dict[str, str]:
        """The bars as text and as HTML; the front end takes what it can show."""
        from rich.console import Console

        console = Console(file=io.StringIO(), record=True, width=self._WIDTH, force_terminal=True, force_jupyter=False)
        console.print(_table(lines, self._WIDTH))
        style = "margin:0;line-height:1.2;font-family:Menlo,'DejaVu Sans Mono',consolas,monospace"
        html = console.export_html(inline_styles=True, clear=False, code_format=f'<pre style="{style}">{{code}}</pre>')
        return {"text/plain": console.export_text().rstrip("\n"), "text/html": html}


_BAR_WIDTH = 30
_LEAST_BAR_WIDTH = 6


def _table(lines: Sequence[Line], width: int, title_width: int = 0) -> Table:
    """Lay out bars one below the other in ``width`` columns of text; the drawn bar gives way first."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    details = [_details(line) for line in lines]
    title_width = max([title_width, *(len(line.title) for line in lines)])
    free = width - title_width - 1
    bar_width = min(_BAR_WIDTH, free - 1 - max((detail.cell_len for detail in details), default=0))
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, min_width=title_width)
    if bar_width >= _LEAST_BAR_WIDTH:
        table.add_column(width=bar_width)
        free -= bar_width + 1
    table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(free, 1))
    for line, detail in zip(lines, details, strict=True):
        cells: list[Any] = [Text(line.title), detail]
        if bar_width >= _LEAST_BAR_WIDTH:
            total = line.done if line.final and line.total is None else line.total
            cells.insert(1, ProgressBar(total=total, completed=line.done, width=bar_width))
        table.add_row(*cells)
    return table


def _details(line: Line) -> Text:
    """Everything about a bar but its title: count, times, speed and metrics."""
    from rich.text import Text

    text = Text(line.count, style="green")
    text.append(f"  {line.times}", style="cyan")
    if line.speed is not None:
        text.append(f"  {line.speed}", style="magenta")
    for metric in line.metrics:
        text.append(f"  {metric}", style="default")
    return text
