"""Progress bars in notebook cell outputs: HTML that follows the light or dark theme of the page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

from composer.loggers._layout import wrap_fields
from composer.loggers._progress_values import Line

__all__ = ["NotebookDisplay", "bars_html"]

_WIDTH = 110
_FONT = "font-family:var(--jp-code-font-family,Menlo,'DejaVu Sans Mono',Consolas,monospace);font-size:13px"
_GRID = f"display:grid;grid-template-columns:minmax(8em,max-content) minmax(60px,150px) 1fr;gap:2px 12px;{_FONT}"
_TRACK = "align-self:center;height:8px;border-radius:4px;background:rgba(128,128,128,.3);overflow:hidden"


class NotebookDisplay:
    """Bars updated in place in the output of a notebook cell."""

    interval = 0.2

    def __init__(self) -> None:
        self._handle: Any = None

    def render(self, lines: Sequence[Line]) -> None:
        data = {"text/plain": "\n".join(line.sentence() for line in lines), "text/html": bars_html(lines)}
        if self._handle is None:
            from IPython.display import display

            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def finish(self, line: Line, lines: Sequence[Line] = ()) -> None:
        self.render([line])
        self._handle = None
        if lines:
            self.render(lines)

    def write(self, text: str) -> None:
        print(text)  # noqa: T201

    def write_fields(self, fields: Sequence[str], gap: str = "  ") -> None:
        self.write(wrap_fields(fields, _WIDTH, indent="  ", gap=gap))

    def stop(self) -> None:
        self._handle = None


def bars_html(lines: Sequence[Line]) -> str:
    """Return bars as HTML, one below the other.

    Args:
        lines: The bars.

    >>> "width:30.0%" in bars_html([Line("epoch 1/2", "batches", 3, 10, 1.0)])
    True
    """
    rows = "".join(_row(line) for line in lines)
    return f'<div style="{_GRID}">{rows}</div>'


def _row(line: Line) -> str:
    percent = 100.0 * min(max(line.done / line.total, 0.0), 1.0) if line.total else 100.0 * line.final
    color = "#2e8b57" if line.final else "#3b82f6"
    fill = f'<div style="height:100%;width:{percent:.1f}%;background:{color}"></div>'
    title, details = (html.escape(text) for text in (line.title, _details(line)))
    return (
        f'<span style="white-space:pre">{title}</span><div style="{_TRACK}">{fill}</div>'
        f'<span style="white-space:pre-wrap;overflow-wrap:anywhere">{details}</span>'
    )


def _details(line: Line) -> str:
    fields = [line.count, *line.metrics, line.speed, line.times]
    return "  ".join(field for field in fields if field)
