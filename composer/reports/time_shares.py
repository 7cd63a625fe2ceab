"""Where time went: seconds by category as a stacked bar and a table with shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from composer._html import Html, plot, plot_text, table, tag
from composer._html.markup import markup
from composer.reports.formatting import duration

__all__ = ["time_shares"]

_SHADES: Final = ("#3b82f6", "#e67e22", "#2ca58d", "#c2477f", "#8b6fd6", "#b59a1e", "#5fa8d3", "#d1584f", "#8d949c")


def time_shares(
    seconds: Mapping[str, float], caption: str, what: str, shown: Callable[[float], str] = duration
) -> Html | None:
    """Return a stacked bar and a table of times by category; None if there is no time.

    Args:
        seconds: Seconds by category.
        caption: What the bar shows.
        what: What the categories are, the name of a column.
        shown: Returns a time as text.

    >>> time_shares({}, "Seconds of the run", "category") is None
    True
    """
    total = sum(seconds.values())
    if total <= 0:
        return None
    shades = dict(zip(seconds, [_SHADES[number % len(_SHADES)] for number in range(len(seconds))], strict=True))
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "name": plot_text(name),
            "meta": plot_text(name),
            "x": [value],
            "y": [""],
            "marker": {"color": shades[name]},
            "hovertemplate": f"%{{meta}}: {value / total:.1%}<extra></extra>",
        }
        for name, value in seconds.items()
    ]
    layout = {
        "barmode": "stack",
        "xaxis": {"title": {"text": "seconds"}, "rangemode": "tozero"},
        "yaxis": {"visible": False, "fixedrange": True},
        "showlegend": False,
        "margin": {"l": 10, "r": 10, "t": 35, "b": 50},
    }
    most = max(seconds.values())
    rows = [
        (name, shown(value), f"{value / total:.1%}", _bar(value / most, shades[name]))
        for name, value in seconds.items()
    ]
    return markup(
        plot(caption, traces, layout, 190),
        table(f"Time by {what}", [what, "time", "share", ""], rows, right=(1, 2)),
    )


def _bar(part: float, color: str) -> Html:
    return tag("span", class_="bar", style=f"--part:{part:.4f};background:{color}")
