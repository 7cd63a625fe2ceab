"""HTML tables for notebooks: escaped, with secrets masked, for light and dark mode."""

from __future__ import annotations

import html
from collections.abc import Collection, Iterable, Sequence

from composer._secrets.masking import mask_text

__all__ = ["escaped", "facts", "grid"]

_LINE = "1px solid rgba(128,128,128,.35)"
_CELL = "text-align:left;vertical-align:top;padding:2px 12px 2px 0;background:transparent"
_TABLE = f"border-collapse:collapse;border:none;margin:4px 0;border-top:{_LINE};border-bottom:{_LINE}"


def escaped(value: object) -> str:
    """Return a value as escaped HTML text, with secrets masked.

    Args:
        value: Any object that can be converted to text.

    >>> escaped("<b>")
    '&lt;b&gt;'
    """
    return html.escape(mask_text(str(value)))


def facts(title: str, rows: Sequence[tuple[str, object]]) -> str:
    """Return a table of names and values, one per row; empty values are left out.

    Args:
        title: The title above the table.
        rows: Names and values.

    >>> "<th" in facts("State", [("epoch", 3), ("loss", None)])
    True
    """
    shown = [(name, value) for name, value in rows if value is not None and value not in ("", (), [])]
    cells = "".join(
        f'<tr style="background:transparent">'
        f'<th style="{_CELL};font-weight:600;white-space:nowrap">{escaped(name)}</th>'
        f'<td style="{_CELL};overflow-wrap:anywhere">{_lines(value)}</td></tr>'
        for name, value in shown
    )
    return f'<div><strong>{escaped(title)}</strong><table style="{_TABLE}">{cells}</table></div>'


def grid(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    below: Sequence[str] = (),
    right: Collection[int] = (),
) -> str:
    """Return a table with a header.

    Args:
        title: The title above the table.
        columns: The column names.
        rows: The cells.
        below: Lines below the table.
        right: Indices of the right-aligned columns.

    >>> grid("Layers", ["name", "parameters"], [["fc", 10]]).count("<td")
    2
    """
    styles = [f"{_CELL};text-align:right" if column in right else _CELL for column in range(len(columns))]
    head = "".join(
        _cell("th", f"{style};border-bottom:{_LINE}", text) for style, text in zip(styles, columns, strict=True)
    )
    lists = ["".join(_cell("td", *cell) for cell in zip(styles, row, strict=True)) for row in rows]
    body = "".join(f'<tr style="background:transparent">{cells}</tr>' for cells in lists)
    lines = "".join(f"<div>{escaped(line)}</div>" for line in below)
    table = f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f"<div><strong>{escaped(title)}</strong>{table}{lines}</div>"


def _cell(tag: str, style: str, value: object) -> str:
    return f'<{tag} style="{style};white-space:pre">{escaped(value)}</{tag}>'


def _lines(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "<br>".join(escaped(one) for one in value)
    return escaped(value)
