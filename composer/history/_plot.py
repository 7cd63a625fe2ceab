"""Draw the history of a run with matplotlib: a panel for each metric, with a curve for each data set."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from composer._plots import axes_grid, draw_curve, draw_matrix, one_axes, plain_label
from composer._text import did_you_mean
from composer.history.downsample import downsample
from composer.history.history import NOTHING_LOGGED

if TYPE_CHECKING:
    from composer.history.history import History, LoggedArray

__all__ = ["draw_history"]

_MAX_PANELS, _MAX_POINTS, _MAX_COLUMNS, _MAX_LEGEND = 24, 4000, 3, 8
_PANEL_SIZE, _SINGLE_SIZE = (4.2, 2.8), (6.4, 3.6)
_DEFAULT = ("loss/*", "metrics/*", "lr-*")
_LABELS = {"step": "batches", "epoch": "epochs", "sample": "samples", "token": "tokens", "seconds": "seconds trained"}


def draw_history(history: History, names: Sequence[str], over: str, ax: Any) -> Any:
    """Draw what a run logged, and return the figure.

    Args:
        history: The history.
        names: Names or patterns; empty for losses, metrics and learning rates.
        over: The unit of the horizontal axis.
        ax: The axes to draw on, or None.

    Raises:
        ValueError: Nothing was logged under a name, or ``ax`` is given for several panels.

    >>> import numpy as np
    >>> from composer.history import History, Series
    >>> loss = Series("loss/train/total", np.arange(3), np.array([0.9, 0.5, 0.4]))
    >>> len(draw_history(History("night", {loss.name: loss}), ["loss/*"], "step", None).axes)
    1
    """
    panels = _panels(history, _chosen(history, names))
    left_out = max(0, len(panels) - _MAX_PANELS)
    if ax is not None and len(panels) > 1:
        titles = ", ".join(map(repr, list(panels)[:5])) + (", ..." if len(panels) > 5 else "")
        raise ValueError(
            f"ax is for one panel, but there are {len(panels)}: {titles}. Name the metrics of one of them."
        )
    shown = list(panels.items())[:_MAX_PANELS]
    columns = min(_MAX_COLUMNS, len(shown))
    if ax is not None:
        axes = [one_axes(ax, "plot")]
    elif len(shown) == 1 and shown[0][1][0] in history.arrays:
        return _draw_array(history.arrays[shown[0][1][0]], shown[0][0], None)
    else:
        size = _PANEL_SIZE if len(shown) > 1 else _SINGLE_SIZE
        _, axes = axes_grid("plot", math.ceil(len(shown) / columns), columns, size)
    for one, (title, members) in zip(axes, shown, strict=False):
        if members[0] in history.arrays:
            _draw_array(history.arrays[members[0]], title, one)
        else:
            _draw_panel(one, history, title, members, over)
    for one in axes[len(shown) :]:
        one.remove()
    if left_out:
        axes[0].figure.suptitle(
            f"{_MAX_PANELS} of {len(panels)} panels; name metrics to choose others", fontsize="small"
        )
    return axes[0].figure


def _draw_panel(axes: Any, history: History, title: str, names: Sequence[str], over: str) -> None:
    """Draw some series on the same axes."""
    before = len(axes.lines)
    for name in names:
        series = history.series[name]
        x, y = series.over(over), series.values
        if len(y) > _MAX_POINTS:
            kept = downsample(y, _MAX_POINTS)
            x, y = x[kept], y[kept]
        draw_curve(axes, x, y, _label(name, title), linewidth=1.2)
    curves = axes.lines[before:]
    for event in history.events:
        at = event.step if over == "step" else event.seconds if over == "seconds" else None
        if event.kind == "resumption" and at is not None:
            axes.axvline(at, color="C7", linestyle=":", linewidth=1)
    if [_label(name, title) for name in names] != [title]:
        lines = curves[:_MAX_LEGEND]
        more = f"and {len(names) - _MAX_LEGEND} more" if len(names) > _MAX_LEGEND else None
        axes.legend(handles=lines, fontsize="x-small", title=more, title_fontsize="x-small")
    axes.set_title(plain_label(title, 45), fontsize="medium")
    axes.set_xlabel(_LABELS[over])
    axes.locator_params(axis="x", nbins=6)  # more labels of five digits would touch


def _draw_array(logged: LoggedArray, name: str, ax: Any) -> Any:
    """Draw a vector or matrix as a heat map."""
    values, axes = logged.values, logged.axes
    if values.ndim not in (1, 2):
        raise ValueError(
            f"{name!r} has {values.ndim} dimensions, {values.shape}; only vectors and matrices can be drawn."
        )
    columns = axes.labels(values.shape[1]) if values.ndim == 2 else ["value"]
    matrix = values.reshape(len(values), -1)
    title = f"{name}, batch {logged.step}"
    return draw_matrix(matrix, axes.labels(len(values)), columns, axes.rows, axes.columns, title, ax)


def _chosen(history: History, names: Sequence[str]) -> list[str]:
    """Return the names of the series and arrays that match, in the order of logging."""
    known = [*history.series, *history.arrays]
    if not names:
        found = [name for name in history.series if any(fnmatch.fnmatchcase(name, one) for one in _DEFAULT)]
        if not found:
            others = f"Logged: {', '.join(map(repr, known[:10]))}; name one." if known else NOTHING_LOGGED
            raise ValueError(f"The run {history.name!r} has logged no loss, metric or learning rate. {others}")
        return found
    matching: dict[str, None] = {}
    for wanted in names:
        if not isinstance(wanted, str):
            raise TypeError(f"names must be names of metrics, but got {wanted!r}.")
        spellings = (wanted, f"metrics/{wanted}")
        found = [name for name in known if name in spellings] or [
            name for name in known if any(fnmatch.fnmatchcase(name, one) for one in spellings)
        ]
        if not found:
            logged = f"Logged: {', '.join(map(repr, known[:20]))}." if known else NOTHING_LOGGED
            hint = did_you_mean(wanted, known) or f" {logged}"
            raise ValueError(f"The run {history.name!r} has logged no {wanted!r}.{hint}")
        matching.update(dict.fromkeys(found))
    return list(matching)


def _panels(history: History, names: Sequence[str]) -> dict[str, list[str]]:
    """Group names by panel: all losses, a metric on all data, the learning rates; arrays alone."""
    panels: dict[str, list[str]] = {}
    for name in names:
        panels.setdefault(name if name in history.arrays else _title(name), []).append(name)
    return panels


def _title(name: str) -> str:
    if name.startswith("lr-"):
        return "learning rate"
    first, _, rest = name.partition("/")
    if first == "metrics" and "/" in rest:
        return rest.partition("/")[2]
    return "loss" if first == "loss" else name


def _label(name: str, title: str) -> str:
    """Return what tells a curve from the others of its panel."""
    return (
        name.removeprefix("lr-")
        .removeprefix("metrics/")
        .removeprefix("loss/")
        .removesuffix(f"/{title}")
        .removesuffix("/total")
    )
