"""The figures of the page of ``composer doctor``: the stacked timeline of the steps, and the gains of the remedies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from composer._html import ForestRow, ForestStyle, Html, forest, plot, plot_text

if TYPE_CHECKING:
    from composer.diagnosis.report import Tried
    from composer.statistics.paired import Ratio

__all__ = ["colors", "gains", "in_order", "part_name", "timeline"]

# In the order of a step, each with a color that can be told from its neighbors on white and on black.
_STAGES = {
    "data": "#e6862e",
    "transfer": "#d9b02f",
    "forward": "#4f86d9",
    "loss": "#8fb8ee",
    "backward": "#7a5fd0",
    "communication": "#c8506c",
    "optimizer": "#2f9e75",
    "metrics": "#93b84a",
}
_HANDLERS = ("#1fa3b5", "#d2605a", "#a77b3b", "#b06ad0", "#7f8f35", "#d685b4", "#3b7fae", "#5f9ea0")
_LAST = {
    "schedules": "#b8a13c",
    "logging": "#c96f92",
    "evaluation": "#a5789c",
    "saving": "#94715c",
    "rest": "#8d949c",
}
_NAMES = {"rest": "the loop itself", "data": "waiting for data", "transfer": "copying to the device"}
_NAME_LENGTH = 34
_NOISE = "#8d949c"
_STYLES = {
    "pays": ForestStyle("pays", "#2f9e75", "circle"),
    "inexact": ForestStyle("pays, changes numbers", "#d9902f", "diamond"),
    "noise": ForestStyle("does not pay", _NOISE, "circle-open", thickness=2.0),
}


def part_name(part: str) -> str:
    """Return how a part of a step is called in a report.

    Args:
        part: The part.

    >>> part_name("rest"), part_name("forward")
    ('the loop itself', 'forward')
    """
    return _NAMES.get(part, part)


def in_order(parts: Sequence[str]) -> list[str]:
    """Return the parts of a step in the order in which they are stacked: stages, then handlers by name, then the rest.

    Args:
        parts: The parts.

    >>> in_order(["rest", "callback B", "forward", "method A", "data"])
    ['data', 'forward', 'callback B', 'method A', 'rest']
    """
    known = [*_STAGES, *_LAST]
    named = sorted(part for part in parts if part not in known)
    return [*(part for part in _STAGES if part in parts), *named, *(part for part in _LAST if part in parts)]


def colors(parts: Sequence[str]) -> dict[str, str]:
    """Return the color of each part.

    Args:
        parts: The parts, in order.

    >>> colors(["rest"])
    {'rest': '#8d949c'}
    """
    named = [part for part in parts if part not in _STAGES and part not in _LAST]
    fixed = _STAGES | _LAST | {part: _HANDLERS[number % len(_HANDLERS)] for number, part in enumerate(named)}
    return {part: fixed[part] for part in parts}


def timeline(steps: Sequence[Mapping[str, float]]) -> Html:
    """Return the figure of the measured steps, a bar each, split by part.

    Args:
        steps: Seconds of each part, for every step.

    >>> "waiting for data" in timeline([{"data": 0.003, "forward": 0.001}])
    True
    """
    parts = in_order(list(dict.fromkeys(part for step in steps for part in step)))
    shades = colors(parts)
    totals = [sum(step.values()) for step in steps]
    traces: list[dict[str, Any]] = [
        {
            "type": "bar",
            "name": plot_text(_shortened(part_name(part))),
            "meta": plot_text(part_name(part)),
            "x": list(range(1, len(steps) + 1)),
            "y": [round(step.get(part, 0.0) * 1e3, 6) for step in steps],
            "customdata": [
                round(100 * step.get(part, 0.0) / (total or 1.0), 3) for step, total in zip(steps, totals, strict=True)
            ],
            "marker": {"color": shades[part], "line": {"width": 0}},
            "hovertemplate": "%{meta}<br>%{y:.3~r} ms, %{customdata:.1f} % of step %{x}<extra></extra>",
        }
        for part in parts
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.12,
        "xaxis": {"title": {"text": "measured step"}, "tickformat": "d", "rangemode": "nonnegative"},
        "yaxis": {"title": {"text": "ms"}, "rangemode": "tozero"},
        "legend": {"traceorder": "normal"},
        "margin": {"l": 55, "r": 10, "t": 35, "b": 50},
    }
    return plot("Milliseconds of each measured step by part", traces, layout, 440 + 8 * max(0, len(parts) - 12))


def gains(tried: Sequence[Tried], noise: Ratio | None) -> Html | None:
    """Return the forest plot of the remedies: gains in percent with their intervals; None if none was measured.

    Args:
        tried: The remedies, the largest gain first.
        noise: Ratio of the unchanged run to itself.

    >>> gains([], None) is None
    True
    """
    rows = [
        ForestRow(
            "together" if "+" in one.remedy.name else one.remedy.name,
            "noise" if not one.pays else "pays" if one.is_exact else "inexact",
            _percent(one.ratio.value),
            _percent(one.ratio.low),
            _percent(one.ratio.high),
            str(one.ratio),
        )
        for one in tried
        if one.ratio is not None
    ]
    if not rows:
        return None
    caption = "Gain of each remedy with its 95 % interval; the band is the noise"
    axis = {"title": {"text": "faster by, %"}, "ticksuffix": " %"}
    return forest(caption, rows, _STYLES, axis, reference=0.0, shapes=[] if noise is None else [_band(noise)])


def _shortened(name: str) -> str:
    """Return a name that leaves room for the plot beside the legend."""
    return name if len(name) <= _NAME_LENGTH else f"{name[: _NAME_LENGTH - 1]}…"


def _percent(ratio: float) -> float:
    return round(100 * (ratio - 1), 3)


def _band(noise: Ratio) -> dict[str, Any]:
    """Return the shape of the interval of the unchanged run against itself."""
    return {
        "type": "rect",
        "xref": "x",
        "yref": "paper",
        "x0": _percent(noise.low),
        "x1": _percent(noise.high),
        "y0": 0,
        "y1": 1,
        "fillcolor": _NOISE,
        "opacity": 0.18,
        "line": {"width": 0},
        "layer": "below",
    }
