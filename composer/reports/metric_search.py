"""Search in the metrics of a run that has more than figures can show: all of them in a few points each."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from composer._html import Html, search_box
from composer._secrets.masking import mask_text
from composer._text import shortened
from composer.history.downsample import downsample
from composer.history.series import Series
from composer.reports.curves import COLORS, switch
from composer.reports.run_clock import AXES

__all__ = ["metric_search"]

_MOST_POINTS: Final = 240_000
_LEAST_POINTS: Final = 6
_POINTS_OF_ONE: Final = 500
_NAME_LENGTH: Final = 160


def metric_search(known: Mapping[str, Series], most_bytes: int = 1_600_000) -> Html:
    """Return a search box that draws the metrics whose names have some words.

    Each metric has up to 500 points, and at least 6: the first, the last, the smallest and the largest value of a long
    one stay. If they are too many, the last ones are left out, and the number of these is told.

    Args:
        known: The metrics by name.
        most_bytes: The size of their data on the page.

    >>> loss = Series("loss", np.array([0, 1]), np.array([0.9, 0.5]))
    >>> metric_search({"loss": loss}).count('type="search"')
    1
    """
    names = list(known)[: _MOST_POINTS // _LEAST_POINTS]
    while True:
        points = min(_POINTS_OF_ONE, _MOST_POINTS // max(1, len(names)))
        packed = _packed([_curve(known[name], points) for name in names])
        if len(packed) <= most_bytes or len(names) < 2:
            break
        # Names and values that do not compress.
        names = names[: int(len(names) * min(0.9, most_bytes / len(packed)))]
    left_out = len(known) - len(names)
    told = f"{len(names):,} metrics of up to {points:,} points each, with their minima and maxima."
    if left_out:
        told += f" {left_out:,} more are not on this page; History.read(run) has them."
    layout = {
        "meta": "alone",
        "hovermode": "closest",
        "colorway": COLORS,
        "xaxis": dict(AXES["step"]),
        "yaxis": {"automargin": True},
        "showlegend": True,
        "margin": {"l": 65, "r": 10, "t": 72, "b": 50},
        "updatemenus": [switch("Log scale", "relayout", [{"yaxis.type": "log"}], [{"yaxis.type": "linear"}])],
    }
    return search_box("Find metrics", packed, layout, told)


def _curve(series: Series, points: int) -> dict[str, Any]:
    """Return a metric as the script of the page reads it."""
    kept = downsample(series.values, points)
    values = series.values[kept]
    name = shortened(" ".join(mask_text(series.name).split()), _NAME_LENGTH)
    pairs = zip(values.tolist(), np.isfinite(values).tolist(), strict=True)
    rounded = [float(f"{value:.5g}") if is_finite else None for value, is_finite in pairs]
    return {"name": name, "x": series.step[kept].tolist(), "y": rounded}


def _packed(curves: list[dict[str, Any]]) -> str:
    return base64.b64encode(gzip.compress(json.dumps(curves, separators=(",", ":")).encode(), 6, mtime=0)).decode()
