"""Figures of metrics over the steps of a run, with a strip of its events, for a page."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from composer._html import Html, plot, plot_text
from composer._text import shortened
from composer.core.run_event import RunEvent
from composer.history.downsample import downsample
from composer.history.history import History
from composer.history.series import Series
from composer.reports.groups import Group
from composer.reports.run_clock import AXES, RunClock

__all__ = ["COLORS", "curve_figure", "event_marks", "packed", "switch"]

COLORS: Final = (
    "#3b82f6",
    "#e67e22",
    "#2ca58d",
    "#c2477f",
    "#8b6fd6",
    "#b59a1e",
    "#5fa8d3",
    "#d1584f",
    "#6b9e3c",
    "#9a7b5f",
)
# Kinds of events on the axis: name, symbol and color.
_MARKS: Final = {
    "evaluation": ("evaluations", "line-ns-open", "#8d949c"),
    "checkpoint": ("checkpoints", "triangle-up", "#2ca58d"),
    "resumption": ("resumptions", "star", "#8b6fd6"),
    "fork": ("forks", "star", "#8b6fd6"),
    "load": ("loaded weights", "star", "#8b6fd6"),
    "spike": ("spikes", "diamond", "#e67e22"),
    "nan": ("NaN losses", "x", "#d1584f"),
    "stop": ("early stop", "square", "#c2477f"),
    "interruption": ("interruptions", "square", "#c2477f"),
    "error": ("errors", "x", "#d1584f"),
}
# What any run has is in the lower row of the strip.
_PLANNED: Final = ("evaluation", "checkpoint")
# Lines across the figure are for what is rare and changes the curve.
_LINES: Final = ("resumption", "fork", "stop", "interruption", "error", "nan")
_MOST_MARKS = 400
_MOST_LINES = 40
# Of a name in the legend, which would take the room of the curves.
_NAME_LENGTH = 32
# Part of the points over which a smooth curve averages.
_WINDOW = 0.02


def curve_figure(
    history: History,
    group: Group,
    marks: Sequence[dict[str, Any]],
    points: int,
    clock: RunClock,
    *,
    shows_events: bool = False,
) -> Html:
    """Return the figure of a group of metrics.

    Args:
        history: The run.
        group: The metrics.
        marks: The traces of :func:`event_marks`.
        points: The largest number of points of each metric.
        clock: The clock of the run, for other x axes than the step.
        shows_events: Whether the legend names the events.

    >>> loss = Series("loss", np.array([0, 1]), np.array([0.9, 0.5]))
    >>> group = Group("loss", ["loss"], ["loss"], is_main=True)
    >>> history = History("night", {"loss": loss})
    >>> curve_figure(history, group, [], 100, RunClock(history)).count("<figure")
    1
    """
    series = [history.series[name] for name in group.names]
    traces: list[dict[str, Any]] = []
    smooth: list[dict[str, Any]] = []
    steps: list[np.ndarray] = []
    smoothed: list[int] = []
    for number, (one, label) in enumerate(zip(series, group.labels, strict=True)):
        color = COLORS[number % len(COLORS)]
        kept = downsample(one.values, points)
        traces.append(_trace(one, kept, one.values, label, color))
        steps.append(one.step[kept])
        if len(one) >= 100:
            smoothed.append(number)
            extra = _trace(one, kept, _smoothed(one.values), f"{label}, smooth", color)
            smooth.append({**extra, "visible": False, "line": {"color": color, "width": 2.5}})
    raw = len(traces)
    traces += smooth
    anchor = {"anchor": "y2"} if marks else {}
    layout: dict[str, Any] = {
        "meta": "linked",
        "hovermode": "closest",
        "xaxis": {**_x_axis("step", clock), **anchor},
        "yaxis": {"title": {"text": plot_text(group.title)}, "domain": [0.12 if marks else 0, 1], "automargin": True},
        "showlegend": True,
        "margin": {"l": 65, "r": 10, "t": 72, "b": 50},
        "updatemenus": _switches(raw, len(smooth), _is_positive(series)),
    }
    if marks:
        traces += [{**mark, "showlegend": shows_events} for mark in marks]
        layout["yaxis2"] = {"domain": [0, 0.08], "range": [-1, 1], "fixedrange": True, "visible": False}
        layout["shapes"] = _lines(history.events)
    at = [*steps, *smoothed, *(np.array(mark["x"]) for mark in marks)]
    axes = _axes(clock, at, layout.get("shapes", []), anchor)
    return plot(group.title, traces, layout, 400 if group.is_main else 340, axes)


def _x_axis(unit: str, clock: RunClock) -> dict[str, Any]:
    """Return the x axis, which is that of the whole run."""
    ends = clock.ends if unit == "step" else clock.at(clock.ends, unit)
    return {**AXES[unit], "autorangeoptions": {"include": ends.tolist()}}


def _axes(
    clock: RunClock,
    steps: Sequence[np.ndarray | int],
    shapes: Sequence[dict[str, Any]],
    given: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the positions of all traces on each other axis; an index stands for those of another trace."""
    return {
        unit: {
            "x": [one if isinstance(one, int) else packed(clock.at(one, unit)) for one in steps],
            "xaxis": {**_x_axis(unit, clock), **given},
            "shapes": [
                shape | {end: clock.at(np.array([shape[end]]), unit).item() for end in ("x0", "x1")} for shape in shapes
            ],
        }
        for unit in clock.units
    }


def event_marks(events: Sequence[RunEvent]) -> list[dict[str, Any]]:
    """Return a trace for each kind of event, on a strip below the curves.

    Args:
        events: The events of a run.

    >>> [
    ...     trace["name"]
    ...     for trace in event_marks([RunEvent("checkpoint", 10, "saved ep1.pt"), RunEvent("start", 0)])
    ... ]
    ['checkpoints (1)']
    """
    traces: list[dict[str, Any]] = []
    for kind, (name, symbol, color) in _MARKS.items():
        found = [event for event in events if event.kind == kind]
        if not found:
            continue
        shown = found if len(found) <= _MOST_MARKS else found[:: math.ceil(len(found) / _MOST_MARKS)]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{name} ({len(found):,})",
                "x": [event.step for event in shown],
                # A run is often resumed where it was evaluated and saved.
                "y": [-0.5 if kind in _PLANNED else 0.5] * len(shown),
                "yaxis": "y2",
                "text": [plot_text(shortened(event.text or kind, 160)) for event in shown],
                "marker": {"symbol": symbol, "color": color, "size": 10, "line": {"color": color, "width": 2}},
                "hovertemplate": "%{xaxis.title.text} %{x}<br>%{text}<extra></extra>",
                "cliponaxis": False,
            }
        )
    return traces


def _trace(series: Series, kept: np.ndarray, values: np.ndarray, name: str, color: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(kept) > 60 else "lines+markers",
        "name": plot_text(shortened(name, _NAME_LENGTH)),
        # Unlike in this text, plotly.js would replace "%{x}" in a name.
        "meta": plot_text(name),
        "x": packed(series.step[kept]),
        "y": packed(values[kept]),
        "line": {"color": color, "width": 1.5},
        "marker": {"size": 5},
        "hovertemplate": "%{meta}<br>%{xaxis.title.text} %{x}: %{y:.6~g}<extra></extra>",
    }


def packed(values: np.ndarray) -> dict[str, str]:
    """Return an array as plotly.js reads it, in a fifth of the length of its text; infinities are gaps as NaN is.

    Args:
        values: The numbers, (N,).

    >>> packed(np.array([1, 2]))
    {'dtype': 'i4', 'bdata': 'AQAAAAIAAAA='}
    """
    if values.dtype.kind == "f":
        finite = np.where(np.isfinite(values), values, np.nan)
        with np.errstate(over="ignore"):
            single = finite.astype(np.float32)
        # Where 7 digits do not tell neighbors apart, or the number is too large, all digits stay.
        exact = np.allclose(single, finite, rtol=1e-6, atol=0, equal_nan=True) and not _is_flat(finite)
        packed, dtype = (single, "f4") if exact else (finite, "f8")
    elif len(values) and (values.max() >= 2**31 or values.min() < -(2**31)):
        packed, dtype = values.astype(np.float64), "f8"
    else:
        packed, dtype = values.astype(np.int32), "i4"
    return {"dtype": dtype, "bdata": base64.b64encode(packed.astype(packed.dtype.newbyteorder("<")).tobytes()).decode()}


def _is_flat(values: np.ndarray) -> bool:
    """Return whether the values differ little in comparison with their size."""
    known = values[~np.isnan(values)]
    return len(known) > 0 and 0 < np.ptp(known) < 1e-4 * np.abs(known).max()


def _smoothed(values: np.ndarray) -> np.ndarray:
    """Return the centered running mean over a part of the values; those that are not finite are left out."""
    half = max(1, round(len(values) * _WINDOW / 2))
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    at = np.arange(len(values))
    low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, len(values))
    number = counts[high] - counts[low]
    return np.where(number > 0, (sums[high] - sums[low]) / np.maximum(number, 1), np.nan)


def _is_positive(series: Sequence[Series]) -> bool:
    """Return whether a logarithmic axis shows the values."""
    return any(bool((one.values > 0).any()) for one in series)


def _switches(raw: int, smooth: int, is_positive: bool) -> list[dict[str, Any]]:
    """Return the switches above a figure: smooth curves over pale ones, and a logarithmic axis."""
    made: list[dict[str, Any]] = []
    if smooth:
        curves = list(range(raw + smooth))
        on = [{"visible": [True] * (raw + smooth), "opacity": [0.3] * raw + [1] * smooth}, curves]
        off = [{"visible": [True] * raw + [False] * smooth, "opacity": 1}, curves]
        made.append(switch("Smooth", "restyle", on, off))
    if is_positive:
        left = 80 if smooth else 0
        made.append(switch("Log scale", "relayout", [{"yaxis.type": "log"}], [{"yaxis.type": "linear"}], left))
    return made


def switch(label: str, method: str, on: list[Any], off: list[Any], left: int = 0) -> dict[str, Any]:
    """Return a button that is off at first, in a menu of its own, since a menu has one active button.

    Args:
        label: Its text.
        method: The function of plotly.js that it calls, such as "restyle".
        on: The arguments when it is switched on.
        off: The arguments when it is switched off.
        left: Its distance from the left end of the plot, in CSS pixels.

    >>> switch("Log scale", "relayout", [{"yaxis.type": "log"}], [{"yaxis.type": "linear"}])["type"]
    'buttons'
    """
    return {
        "type": "buttons",
        "buttons": [{"label": label, "method": method, "args": on, "args2": off}],
        "active": -1,
        "showactive": False,
        "font": {"size": 12},
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
        "pad": {"t": 0, "b": 6, "l": left, "r": 0},
    }


def _lines(events: Sequence[RunEvent]) -> list[dict[str, Any]]:
    """Return dotted lines where the run was resumed or ended early."""
    steps = dict.fromkeys((event.step, event.kind) for event in events if event.kind in _LINES)
    return [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": step,
            "x1": step,
            "y0": 0,
            "y1": 1,
            "line": {"color": _MARKS[kind][2], "width": 1, "dash": "dot"},
            "layer": "below",
        }
        for step, kind in list(steps)[-_MOST_LINES:]
    ]
