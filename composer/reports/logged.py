"""Sections of a page with what a run logged besides numbers: matrices, tables and images."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from composer._html import Html, plot, plot_text, section, table, tag
from composer._text import shortened
from composer.core.array_axes import ArrayAxes
from composer.history.history import LoggedArray, LoggedTable

__all__ = ["ReportImage", "image_section", "matrix_section", "table_section"]

_MOST_ROWS = 100
_MOST_COLUMNS = 30
_MOST_CELLS = 100 * 100
_TEXT_CELLS = 12 * 12
_LABEL_LENGTH = 20


@dataclass(frozen=True)
class ReportImage:
    """An image on the page.

    Attributes:
        name: Name under which it was logged.
        step: Number of batches trained before; None if unknown.
        png: The image as a PNG file.

    >>> ReportImage("Inputs", 0, b"").name
    'Inputs'
    """

    name: str
    step: int | None
    png: bytes


def matrix_section(arrays: Mapping[str, LoggedArray]) -> Html | None:
    """Return heat maps of matrices, such as confusion matrices; None without any.

    Args:
        arrays: The newest array of each name. Those that are no matrices, or have over 10,000 cells, are left out.

    >>> matrix_section({"ConfusionMatrix": LoggedArray(np.eye(2), step=10)}).count("<figure")
    1
    """
    shown = {name: one for name, one in arrays.items() if one.values.ndim == 2 and 0 < one.values.size <= _MOST_CELLS}
    if not shown:
        return None
    return section("Matrices", *(_heat_map(name, one) for name, one in shown.items()))


def table_section(tables: Mapping[str, LoggedTable]) -> Html | None:
    """Return the newest logged tables; None without any.

    Args:
        tables: The tables by name. Of long ones, the first 100 rows and 30 columns are shown.

    >>> table_section({"texts": LoggedTable(["prompt"], [["once"]])}).count("<td")
    1
    """
    if not tables:
        return None
    return section("Tables", *(_table(name, one) for name, one in tables.items()))


def image_section(images: Sequence[ReportImage]) -> Html | None:
    """Return the images; None without any.

    Args:
        images: The images, oldest first.

    >>> image_section([]) is None
    True
    """
    shown = [
        tag(
            "figure",
            tag("img", src=f"data:image/png;base64,{base64.b64encode(one.png).decode()}", alt=one.name),
            tag("figcaption", one.name if one.step is None else f"{one.name}, step {one.step:,}"),
            class_="image",
        )
        for one in images
    ]
    return section("Images", tag("div", *shown, class_="images")) if shown else None


def _heat_map(name: str, array: LoggedArray) -> Html:
    values, axes = array.values, array.axes
    # torchmetrics has the targets in rows; a CSV log does not say so.
    titles = ("target", "predicted") if "confusion" in name.lower() else ("row", "column")
    row, column = (plot_text(given or title) for given, title in zip((axes.rows, axes.columns), titles, strict=True))
    cells = [[None if not np.isfinite(value) else value for value in row] for row in values.tolist()]
    trace: dict[str, Any] = {
        "type": "heatmap",
        "z": cells,
        "colorscale": "Blues",
        "reversescale": True,
        "hovertemplate": "%{yaxis.title.text} %{y}, %{xaxis.title.text} %{x}: %{z:.6~g}<extra></extra>",
        "colorbar": {"thickness": 12},
        "xgap": 1,
        "ygap": 1,
    }
    if values.size <= _TEXT_CELLS:
        trace |= {"texttemplate": "%{z:.4~g}", "showscale": False}
    rows, columns = values.shape
    trace |= {"y": _labels(axes, rows), "x": _labels(axes, columns)}
    # Of a linear axis, the ticks may be between the cells.
    axis = {"constrain": "domain", "showgrid": False, "zeroline": False, "type": "category", "automargin": True}
    layout = {
        "showlegend": False,
        "xaxis": {**axis, "title": {"text": column}},
        "yaxis": {**axis, "title": {"text": row}, "autorange": "reversed", "scaleanchor": "x"},
        "margin": {"l": 55, "r": 10, "t": 35, "b": 50},
    }
    height = int(min(640, max(300, 140 + 28 * max(rows, columns))))
    return plot(f"{name}, step {array.step:,}", [trace], layout, height)


def _labels(axes: ArrayAxes, size: int) -> list[str]:
    """Return the names of the classes, or numbers if there are none or plotly.js could not tell them apart."""
    for length in (_LABEL_LENGTH, 500):
        labels = [plot_text(shortened(label, length)) for label in axes.labels(size)]
        if len(set(labels)) == size:
            return labels
    return ArrayAxes().labels(size)


def _table(name: str, logged: LoggedTable) -> Html:
    columns = logged.columns[:_MOST_COLUMNS]
    rows = [
        [_cell(cell) for cell in (*row, *[None] * len(columns))[: len(columns)]] for row in logged.rows[:_MOST_ROWS]
    ]
    left_out = len(logged.rows) - len(rows)
    note = [tag("p", f"{left_out:,} more rows are not shown.", class_="note")] if left_out else []
    return tag("div", tag("h3", f"{name}, step {logged.step:,}"), table(name, columns, rows), *note)


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 500 else f"{text[:499]}…"
