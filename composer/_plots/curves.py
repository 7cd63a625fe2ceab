"""Curves on the axes of a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from composer._plots.figures import plain_label

if TYPE_CHECKING:
    import numpy as np

__all__ = ["draw_curve", "drawable"]

# Fewer points are marked, since a curve with gaps of NaN, or of one value, would not be visible.
_FEW = 25
_LABEL_WIDTH = 40
# The ticks of matplotlib overflow between larger values of different sign.
_LARGEST = 1e300


def draw_curve(
    axes: Any, x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, label: str, **style: Any
) -> None:
    """Draw a curve; NaN, infinite values and those beyond 1e300 are gaps.

    Args:
        axes: The axes.
        x: Positions.
        y: Values, as many as positions.
        label: Its name in the legend, shown when there are several curves.
        style: Further arguments of ``Axes.plot``.

    >>> from composer._plots.figures import one_axes
    >>> axes = one_axes(None, "This example")
    >>> draw_curve(axes, [0, 1, 2], [0.5, float("inf"), 0.25], "loss")
    >>> axes.lines[0].get_marker(), axes.get_legend()
    ('.', None)
    >>> draw_curve(axes, [0, 1, 2], [1, 2, 3], "other")
    >>> [text.get_text() for text in axes.get_legend().get_texts()]
    ['loss', 'other']
    """
    values = drawable(y)
    if len(values) <= _FEW:
        style.setdefault("marker", ".")
    name = plain_label(label, _LABEL_WIDTH)
    # Legends leave out names that begin with an underscore.
    axes.plot(x, values, label=f" {name}" if name.startswith("_") else name, **style)
    axes.margins(x=0.02)
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(fontsize="small")


def drawable(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return values as floats, with NaN for those that cannot be drawn: infinite, or beyond 1e300.

    Args:
        values: The values.

    >>> drawable([1, float("inf"), -1e308]).tolist()
    [1.0, nan, nan]
    """
    import numpy as np

    array = np.asarray(values, dtype=float)
    return np.where(np.abs(array) <= _LARGEST, array, np.nan)
