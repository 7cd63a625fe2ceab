"""Forest plots: effects with their confidence intervals, a row each, around a line of no effect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from composer._html.markup import Html
from composer._html.plots import plot, plot_text
from composer._text import shortened

__all__ = ["ForestRow", "ForestStyle", "forest", "log_ticks"]

_GRAY = "#8d949c"
# Ends of intervals that have none, as multiples of the range of all effects.
_FAR = 50.0
_LABEL_LENGTH = 26
_MOST_TICKS = 5


@dataclass(frozen=True)
class ForestStyle:
    """How effects of one verdict are drawn: by color and by shape, for people who do not see the colors.

    Args:
        name: Its name in the legend.
        color: The color of marker and interval.
        symbol: The marker, see https://plotly.com/javascript/reference/scatter/#scatter-marker-symbol.
        thickness: Width of the line of the interval, in pixels.

    >>> ForestStyle("pays", "#2f9e75", "circle").thickness
    2.5
    """

    name: str
    color: str
    symbol: str
    thickness: float = 2.5


@dataclass(frozen=True)
class ForestRow:
    """A row.

    Args:
        label: Its label; long ones lose their middle.
        style: The key of its style.
        value: The effect; None if there is none, so that the note stands in its place.
        low: Lower end of the interval; ``-inf`` if there is none.
        high: Upper end; ``inf`` if there is none.
        told: What the hover text says below the label.
        note: What is written in place of an effect.

    >>> ForestRow("EMA", "pays", 1.3, 1.2, 1.4).note
    ''
    """

    label: str
    style: str
    value: float | None
    low: float = -math.inf
    high: float = math.inf
    told: str = ""
    note: str = ""


def forest(
    caption: str,
    rows: Sequence[ForestRow],
    styles: Mapping[str, ForestStyle],
    axis: Mapping[str, Any],
    *,
    reference: float,
    is_log: bool = False,
    shapes: Sequence[Mapping[str, Any]] = (),
    has_legend: bool = True,
) -> Html:
    """Return a forest plot.

    Args:
        caption: What it shows.
        rows: The rows, from top to bottom.
        styles: The styles by key, in the order of the legend.
        axis: The axis of the effects, in addition to its range, as in the layout of plotly.js.
        reference: The effect that is none: 1 for ratios, 0 for differences. A line is drawn there.
        is_log: Whether the axis is logarithmic, as for ratios.
        shapes: Shapes behind the rows, as in the layout of plotly.js.
        has_legend: Whether the styles are named.

    >>> row = ForestRow("EMA", "pays", 1.3, 1.2, 1.4)
    >>> styles = {"pays": ForestStyle("pays", "#2f9e75", "circle")}
    >>> forest("Effects", [row], styles, {}, reference=1.0, is_log=True).count("<figure")
    1
    """
    low, high = _range(rows, reference, is_log)
    effects = [(at, row) for at, row in enumerate(rows) if row.value is not None]
    traces = [
        _trace(style, [one for one in effects if one[1].style == key], low, high, is_log)
        for key, style in styles.items()
    ]
    ends = [math.log10(end) for end in (low, high)] if is_log else [low, high]
    layout = {
        "showlegend": has_legend,
        "hovermode": "closest",
        "xaxis": {
            "tickangle": 0,
            "nticks": 5,
            **axis,
            "range": ends,
            "zeroline": False,
            # plotly's own ticks of a logarithmic axis are too close on a phone.
            **({"type": "log", "tickvals": log_ticks(low, high)} if is_log else {}),
        },
        "yaxis": {
            # Rows are numbered: two labels may be equal.
            "tickvals": list(range(len(rows))),
            "ticktext": [plot_text(shortened(row.label, _LABEL_LENGTH)) for row in rows],
            "range": [len(rows) - 0.4, -0.6],
            "automargin": True,
            "fixedrange": True,
            "zeroline": False,
        },
        "margin": {"l": 20, "r": 20, "t": 35, "b": 50},
        "shapes": [*shapes, _line(reference)],
        "annotations": [_note(at, row) for at, row in enumerate(rows) if row.value is None and row.note],
    }
    return plot(caption, [trace for trace in traces if trace["x"]], layout, max(140 + 28 * len(rows), 230))


def _range(rows: Sequence[ForestRow], reference: float, is_log: bool) -> tuple[float, float]:
    """Return the range of the axis: all effects, and their intervals unless these are much wider."""
    values = [row.value for row in rows if row.value is not None] + [reference]
    ends = [end for row in rows if row.value is not None for end in (row.low, row.high) if math.isfinite(end)]
    if is_log:
        values = [math.log(value) for value in values if value > 0] or [0.0]
        ends = [math.log(end) for end in ends if end > 0]
    first, last = min(values), max(values)
    room = max(last - first, 0.05 if is_log else abs(last) * 0.05 or 1e-3)
    low = max(min([first, *ends]), first - room) - 0.06 * room
    high = min(max([last, *ends]), last + room) + 0.06 * room
    return (math.exp(low), math.exp(high)) if is_log else (low, high)


def log_ticks(low: float, high: float) -> list[float]:
    """Return at most five values to write at a logarithmic axis.

    Args:
        low: The lower end of the axis, above 0.
        high: Its upper end.

    >>> log_ticks(0.3, 6.0), log_ticks(0.95, 1.31), log_ticks(0.001, 1000.0)
    ([0.5, 1.0, 2.0, 5.0], [1.0, 1.1, 1.2, 1.3], [0.001, 0.1, 10.0, 1000.0])
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [value for decade in decades for digit in digits for value in [digit * 10.0**decade]]
        ticks = [_rounded(value) for value in ticks if low <= value <= high]
        if digits == (1, 2, 5) and len(ticks) < 3:
            return _even_ticks(low, high)
        if len(ticks) <= _MOST_TICKS:
            return ticks
    return ticks[:: math.ceil(len(ticks) / _MOST_TICKS)]


def _even_ticks(low: float, high: float) -> list[float]:
    """At most five multiples of a round step within a range."""
    least = (high - low) / _MOST_TICKS
    scale = 10.0 ** math.floor(math.log10(least))
    step = next(factor * scale for factor in (1, 2, 5, 10) if factor * scale >= least)
    first, last = math.ceil(low / step), math.floor(high / step)
    return [_rounded(number * step) for number in range(first, last + 1)][:_MOST_TICKS]


def _trace(
    style: ForestStyle, rows: Sequence[tuple[int, ForestRow]], low: float, high: float, is_log: bool
) -> dict[str, Any]:
    """Return the rows of one style."""
    values = [row.value for _, row in rows if row.value is not None]
    far = (low / _FAR, high * _FAR) if is_log else (low - _FAR * (high - low), high + _FAR * (high - low))
    least = [row.low if math.isfinite(row.low) and (row.low > 0 or not is_log) else far[0] for _, row in rows]
    most = [row.high if math.isfinite(row.high) else far[1] for _, row in rows]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plot_text(style.name),
        "x": [_rounded(value) for value in values],
        "y": [at for at, _ in rows],
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [_rounded(end - value) for end, value in zip(most, values, strict=True)],
            "arrayminus": [_rounded(value - end) for end, value in zip(least, values, strict=True)],
            "color": style.color,
            "thickness": style.thickness,
            "width": 5,
        },
        "customdata": [[plot_text(row.label), plot_text(row.told)] for _, row in rows],
        "marker": {
            "size": 11,
            "color": style.color,
            "symbol": style.symbol,
            "line": {"width": 2, "color": style.color},
        },
        "hovertemplate": "%{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    }


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def _line(reference: float) -> dict[str, Any]:
    at = {"x0": reference, "x1": reference, "y0": 0, "y1": 1}
    style = {"color": _GRAY, "width": 1.5, "dash": "dot"}
    return {"type": "line", "xref": "x", "yref": "paper", **at, "line": style, "layer": "below"}


def _note(at: int, row: ForestRow) -> dict[str, Any]:
    text = {"text": plot_text(row.note), "showarrow": False, "font": {"size": 12}}
    return {"xref": "paper", "x": 0.01, "xanchor": "left", "y": at, **text}
