"""Figures of one metric of groups of runs: mean, range and interval over steps or time, and the Pareto front."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from composer._html import Html, plot, plot_text
from composer._text import shortened
from composer.history.downsample import downsample
from composer.history.series import Series
from composer.reports.curves import COLORS, packed, switch
from composer.reports.run_clock import AXES
from composer.reports.run_groups import RunGroup
from composer.statistics.band import mean_band

__all__ = ["aligned", "common_axes", "group_figure", "pareto_figure"]

# Common points of a band; each is the mean over a bucket if the runs have more.
_POINTS: Final = 500
_NAME_LENGTH: Final = 32
_EACH: Final = ", each run"
# Fewer have an interval several times as wide as their range.
_LEAST_FOR_INTERVAL: Final = 3


def aligned(curves: Sequence[Series], unit: str, points: int = _POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Return common times of several curves, (K,), and the value of each curve there, (n, K).

    The times are those of all curves, within the range that every curve covers; values between those of a curve are
    interpolated linearly, and are NaN beside a value that is not finite. Of more than ``points`` times, neighbors are
    averaged.

    Args:
        curves: The curves.
        unit: "step", "sample", "token" or "seconds".
        points: The largest number of times.

    >>> one = Series("loss", np.array([0, 10]), np.array([1.0, 0.0]))
    >>> two = Series("loss", np.array([0, 5, 20]), np.array([1.0, 0.8, 0.1]))
    >>> grid, values = aligned([one, two], "step")
    >>> grid.tolist(), values[0].tolist()
    ([0.0, 5.0, 10.0], [1.0, 0.5, 0.0])
    """
    pairs = [_points(curve, unit) for curve in curves]
    empty = np.array([]), np.empty((len(curves), 0))
    if not all(len(times) for times, _ in pairs):
        return empty
    first, last = max(times[0] for times, _ in pairs), min(times[-1] for times, _ in pairs)
    grid = np.unique(np.concatenate([times for times, _ in pairs]))
    grid = grid[(grid >= first) & (grid <= last)]
    if not len(grid):
        return empty
    with np.errstate(invalid="ignore"):
        values = np.stack([np.interp(grid, times, some) for times, some in pairs])
    if len(grid) <= points:
        return grid, values
    starts = np.unique(np.linspace(0, len(grid), points, endpoint=False).astype(int))
    counts = np.diff(np.append(starts, len(grid)))
    return np.add.reduceat(grid, starts) / counts, np.add.reduceat(values, starts, axis=1) / counts


def group_figure(
    groups: Sequence[RunGroup], metric: str, unit: str, title: str, points: int = _POINTS, height: int = 380
) -> Html | None:
    """Return the figure of a metric of several groups; None if no run has it in this unit of time.

    Groups of several runs have a line for their mean and a band of their range; switches show each run, and the 95 %
    interval of the mean in place of the range. Where the runs of a group have no time in common, each has a line.

    Args:
        groups: The groups.
        metric: Full name of the metric.
        unit: "step", with which other axes can be chosen by :func:`.axis_switch`, or "seconds".
        title: What it shows.
        points: The largest number of points of a line, at least 10.
        height: Its height in CSS pixels.

    >>> from composer.history import History
    >>> group = RunGroup(
    ...     "a", (History("a", {"loss": Series("loss", np.array([0, 1]), np.array([0.9, 0.5]))}),)
    ... )
    >>> (
    ...     group_figure([group], "loss", "step", "loss").count("<figure"),
    ...     group_figure([group], "loss", "seconds", "loss"),
    ... )
    (1, None)
    """
    traces = _traces(groups, metric, unit, points)
    if not traces:
        return None
    parts = [part for part, _ in traces]
    curves = [run.series[metric] for group in groups for run in group.runs if metric in run.series]
    has_positive = any(bool((curve.values > 0).any()) for curve in curves)
    layout: dict[str, Any] = {
        "meta": "linked" if unit == "step" else "alone",
        "hovermode": "closest",
        "xaxis": dict(AXES[unit]),
        "yaxis": {"title": {"text": plot_text(shortened(metric.removeprefix("metrics/"), 60))}, "automargin": True},
        "showlegend": True,
        "margin": {"l": 65, "r": 10, "t": 72, "b": 50},
        "updatemenus": _switches(parts, has_positive),
    }
    axes: dict[str, Any] = {}
    for other in common_axes(groups, metric)[1:] if unit == "step" else []:
        moved = _traces(groups, metric, other, points)
        # Runs that overlap in steps need not overlap in time.
        if [part for part, _ in moved] == parts:
            axes[other] = {key: [trace[key] for _, trace in moved] for key in ("x", "y")} | {"xaxis": AXES[other]}
    return plot(title, [trace for _, trace in traces], layout, height, axes)


def common_axes(groups: Sequence[RunGroup], metric: str) -> list[str]:
    """Return the x axes that all runs have for a metric: "step", and "sample", "token" and "seconds" where logged.

    Args:
        groups: The groups.
        metric: Full name of the metric.

    >>> common_axes([], "loss")
    ['step', 'sample', 'token', 'seconds']
    """
    curves = [run.series[metric] for group in groups for run in group.runs if metric in run.series]
    times = {unit: [getattr(curve, unit) for curve in curves] for unit in AXES}
    return [
        unit
        for unit, found in times.items()
        if unit == "step" or all(one is not None and bool((one > 0).any()) for one in found)
    ]


def _traces(groups: Sequence[RunGroup], metric: str, unit: str, points: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the traces of all groups on an axis."""
    traces: list[tuple[str, dict[str, Any]]] = []
    for index, group in enumerate(groups):
        curves = [(run.name, run.series[metric]) for run in group.runs if len(run.series.get(metric, ()))]
        curves = [(name, curve) for name, curve in curves if getattr(curve, unit) is not None]
        traces += _lines(group, curves, unit, COLORS[index % len(COLORS)], points)
    return traces


def pareto_figure(
    names: Sequence[str], points: Sequence[tuple[float, float] | None], front: Sequence[str], metric: str
) -> Html:
    """Return the figure of time against quality, with a line through the groups that none dominates.

    Args:
        names: Names of the groups.
        points: Seconds and metric of each; None if unknown.
        front: The groups that none dominates, fastest first.
        metric: Full name of the metric.

    >>> pareto_figure(["a", "b"], [(1.0, 0.5), None], ["a"], "loss").count("<figure")
    1
    """
    known = {name: point for name, point in zip(names, points, strict=True) if point is not None}
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "not dominated",
            "x": [known[name][0] for name in front],
            "y": [known[name][1] for name in front],
            "line": {"color": "#8d949c", "dash": "dot", "width": 1.5},
            "hoverinfo": "skip",
        }
    ]
    for index, name in enumerate(names):
        if name not in known:
            continue
        marker = {"size": 13, "color": COLORS[index % len(COLORS)], "symbol": "circle"}
        if name not in front:
            marker |= {"symbol": "circle-open", "line": {"width": 2}}
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": plot_text(shortened(name, _NAME_LENGTH)),
                "meta": plot_text(name),
                "x": [known[name][0]],
                "y": [known[name][1]],
                "marker": marker,
                "hovertemplate": "%{meta}<br>%{x:.4~g} s: %{y:.6~g}<extra></extra>",
            }
        )
    layout = {
        "hovermode": "closest",
        "xaxis": {"title": {"text": "seconds trained"}},
        "yaxis": {"title": {"text": plot_text(shortened(metric.removeprefix("metrics/"), 60))}, "automargin": True},
        "showlegend": True,
        "margin": {"l": 65, "r": 10, "t": 30, "b": 50},
    }
    return plot("Time of training against the last value; open circles are dominated", traces, layout, 380)


def _points(curve: Series, unit: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the times of a curve, ascending, and the last value at each; values that are not finite are NaN."""
    times = np.asarray(getattr(curve, unit), dtype=np.float64)
    known = np.isfinite(times)
    times, values = times[known], np.where(np.isfinite(curve.values), curve.values, np.nan)[known]
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    last = np.append(np.diff(times) > 0, True)[: len(times)]
    return times[last], values[last]


def _lines(
    group: RunGroup, curves: Sequence[tuple[str, Series]], unit: str, color: str, points: int
) -> list[tuple[str, dict[str, Any]]]:
    """Return the traces of a group with their parts: "range", "interval", "mean" and "run", or "alone" without a mean.

    Args:
        group: The group.
        curves: The names of its runs and their curves.
        unit: The unit of the x axis.
        color: Color of the lines.
        points: The largest number of points of a line.
    """
    if len(curves) == 1:
        times, own = _points(curves[0][1], unit)
        kept = downsample(own, points)
        return [("mean", _line(group.name, group.name, times[kept], own[kept], color))] if len(kept) else []
    if not curves:
        return []
    grid, values = aligned([curve for _, curve in curves], unit, points)
    found: list[tuple[str, dict[str, Any]]] = []
    label = f"{group.name}, mean of {len(curves)}"
    if len(grid):
        found += _band("range", group, grid, values.min(axis=0), values.max(axis=0), color)
        if len(curves) >= _LEAST_FOR_INTERVAL:
            found += _band("interval", group, grid, *mean_band(values), color)
        found.append(("mean", _line(group.name, label, grid, values.mean(axis=0), color)))
    for number, (name, curve) in enumerate(curves):
        times, own = _points(curve, unit)
        kept = downsample(own, points)
        line = _line(group.name, name, times[kept], own[kept], color) | {"line": {"color": color, "width": 1}}
        if len(grid):
            found.append(("run", line | {"visible": False, "showlegend": False, "opacity": 0.6}))
        else:
            shown = f"{shortened(group.name, _NAME_LENGTH - len(_EACH))}{_EACH}"
            found.append(("alone", line | {"name": plot_text(shown), "showlegend": number == 0}))
    return found


def _line(group: str, label: str, times: np.ndarray, values: np.ndarray, color: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines" if len(times) > 60 else "lines+markers",
        "name": plot_text(shortened(group, _NAME_LENGTH)),
        "legendgroup": plot_text(group),
        # Unlike in this text, plotly.js would replace "%{x}" in a name.
        "meta": plot_text(label),
        "x": packed(times),
        "y": packed(values),
        "line": {"color": color, "width": 2},
        "marker": {"size": 5},
        "hovertemplate": "%{meta}<br>%{xaxis.title.text} %{x}: %{y:.6~g}<extra></extra>",
    }


def _band(
    part: str, group: RunGroup, grid: np.ndarray, low: np.ndarray, high: np.ndarray, color: str
) -> list[tuple[str, dict[str, Any]]]:
    """Return the lower and upper end of a band, filled between."""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    shared: dict[str, Any] = {
        "type": "scatter",
        "mode": "lines",
        "legendgroup": plot_text(group.name),
        "showlegend": False,
        "hoverinfo": "skip",
        "x": packed(grid),
        "line": {"width": 0, "color": color},
        "visible": part == "range",
    }
    fill = {"fill": "tonexty", "fillcolor": f"rgba({red},{green},{blue},0.2)"}
    return [(part, shared | {"y": packed(low)}), (part, shared | fill | {"y": packed(high)})]


def _switches(parts: Sequence[str], has_positive: bool) -> list[dict[str, Any]]:
    """Return the switches of a figure: the interval in place of the range, each run, and a logarithmic axis."""
    made: list[dict[str, Any]] = []
    left = 0
    if "interval" in parts:
        at = [index for index, part in enumerate(parts) if part in ("range", "interval")]
        on = [{"visible": [parts[index] == "interval" for index in at]}, at]
        off = [{"visible": [parts[index] == "range" for index in at]}, at]
        made.append(switch("95 % interval", "restyle", on, off, left))
        left += 112
    if "run" in parts:
        at = [index for index, part in enumerate(parts) if part == "run"]
        made.append(switch("Each run", "restyle", [{"visible": True}, at], [{"visible": False}, at], left))
        left += 82
    if has_positive:
        made.append(switch("Log scale", "relayout", [{"yaxis.type": "log"}], [{"yaxis.type": "linear"}], left))
    return made
