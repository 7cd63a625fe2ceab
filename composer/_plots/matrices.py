"""Heat maps of matrices, such as confusion matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from composer._plots.curves import drawable
from composer._plots.figures import axes_grid, one_axes, plain_label

__all__ = ["draw_matrix"]

# Up to this many rows and columns each cell shows its number, and each row its label.
_MOST_NUMBERS, _MOST_LABELS = 16, 48
_LABEL_WIDTH = 16


def draw_matrix(
    values: Any,
    row_labels: Sequence[object],
    column_labels: Sequence[object],
    row_title: str = "",
    column_title: str = "",
    title: str = "",
    ax: Any = None,
) -> Any:
    """Draw a matrix as a heat map, and return its figure; NaN, infinite values and those beyond 1e300 are gaps.

    Small matrices show the number in each cell; larger ones have a color bar, and only some labels.

    Args:
        values: The matrix, (R, C), as an array.
        row_labels: R labels.
        column_labels: C labels.
        row_title: What the rows are.
        column_title: What the columns are.
        title: Title of the figure.
        ax: The axes to draw on; None makes a new figure.

    Raises:
        MissingConditionalImportError: matplotlib is not installed.
        ValueError: The matrix has another number of dimensions, or of labels.

    >>> figure = draw_matrix([[3, 1], [0, 2]], ["cat", "dog"], ["cat", "dog"], "target", "predicted")
    >>> [text.get_text() for text in figure.axes[0].texts]
    ['3', '1', '0', '2']
    """
    import numpy as np

    array = np.asarray(values, dtype=float)
    if array.ndim != 2 or array.shape != (len(row_labels), len(column_labels)):
        raise ValueError(
            f"values must be a matrix with {len(row_labels)} rows and {len(column_labels)} columns, as many as labels; "
            f"its shape is {array.shape}."
        )
    rows, columns = array.shape
    shown = drawable(array)
    has_numbers = max(rows, columns) <= _MOST_NUMBERS
    if ax is None:
        axes = axes_grid("Drawing a matrix", 1, 1, _size(rows, columns, has_numbers))[1][0]
    else:
        axes = one_axes(ax, "Drawing a matrix")
    # Zero is the lightest color, so that a matrix of counts with equal cells is not all dark.
    low, high = (float(np.nanmin(shown)), float(np.nanmax(shown))) if np.isfinite(shown).any() else (0.0, 1.0)
    low = min(low, 0.0)
    image = axes.imshow(shown, cmap="Blues", vmin=low, vmax=high if high > low else low + 1, aspect="equal")
    for axis, labels in ((axes.yaxis, row_labels), (axes.xaxis, column_labels)):
        at = range(0, len(labels), max(1, math.ceil(len(labels) / _MOST_LABELS)))
        axis.set_ticks(list(at), [plain_label(labels[index], _LABEL_WIDTH) for index in at], fontsize="small")
    if max((len(str(label)) for label in column_labels), default=0) > 3 or columns > _MOST_NUMBERS:
        axes.tick_params(axis="x", rotation=90)
    axes.set(ylabel=row_title, xlabel=column_title)
    if title:
        axes.set_title(plain_label(title, 60), fontsize="medium")
    if has_numbers:
        _write_numbers(axes, array, image)
    else:
        axes.figure.colorbar(image, ax=axes, shrink=0.8)
    return axes.figure


def _size(rows: int, columns: int, has_numbers: bool) -> tuple[float, float]:
    """Return the size of a figure in which cells and title are readable, in inches."""
    cell = 0.45 if has_numbers else max(0.15, min(0.45, 8 / max(rows, columns)))
    width, height = (min(cell * count, 9.0) for count in (columns, rows))
    return max(width + 1.6, 3.6), max(height + 1.4, 2.4)


def _write_numbers(axes: Any, array: Any, image: Any) -> None:
    """Write the value of each cell on it, in black or white."""
    import numpy as np

    shown, finite = drawable(array), array[np.isfinite(array)]
    are_counts = bool((finite == finite.round()).all())
    for (row, column), value in np.ndenumerate(array):
        number, style = float(value), {}
        if math.isfinite(shown[row, column]):
            red, green, blue, _ = image.cmap(image.norm(number))
            # The brightness that the eye perceives, ITU-R BT.601.
            style["color"] = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
        text = _number(number, are_counts)
        axes.text(column, row, text, ha="center", va="center", fontsize="small", **style)


def _number(value: float, is_count: bool) -> str:
    """Return a number in at most five characters or so."""
    if not math.isfinite(value):
        return str(value)
    if abs(value) >= 1e14:
        return f"{value:.0e}"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 100 * size:
            return f"{value / size:.0f}{unit}"
    return str(round(value)) if is_count else f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
