"""Matplotlib figures without pyplot: no window, no backend change, no global list of figures."""

from __future__ import annotations

import functools
import io
from typing import TYPE_CHECKING, Any

from composer._lazy import import_extra
from composer._secrets.masking import mask_text

if TYPE_CHECKING:
    import numpy as np

__all__ = ["axes_grid", "figure_pixels", "figure_png", "one_axes", "plain_label"]

_EXTRA = "examples"  # it installs matplotlib


def axes_grid(purpose: str, rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, list[Any]]:
    """Return a new figure and its axes, row by row.

    The last expression of a notebook cell shows the figure, whether or not pyplot is imported.

    Args:
        purpose: The feature that needs matplotlib; the error message starts with this.
        rows: Number of rows of axes.
        columns: Number of columns of axes.
        size: Width and height of each axes, in inches.

    Raises:
        MissingConditionalImportError: matplotlib is not installed.

    >>> figure, axes = axes_grid("This example", 2, 3, (3, 2))
    >>> len(axes), figure.get_size_inches().tolist()
    (6, [9.0, 4.0])
    """
    module: Any = import_extra("matplotlib.figure", _EXTRA, purpose)
    figure = module.Figure(figsize=(columns * size[0], rows * size[1]), layout="constrained")
    # IPython registers a printer for figures only when pyplot is imported; this one is for notebooks without it.
    figure._repr_png_ = functools.partial(figure_png, figure)
    return figure, figure.subplots(rows, columns, squeeze=False).ravel().tolist()


def one_axes(ax: Any, purpose: str, size: tuple[float, float] = (6.4, 3.6)) -> Any:
    """Return the given axes, or those of a new figure.

    Args:
        ax: Axes of matplotlib, or None.
        purpose: The feature that needs them.
        size: Width and height of a new figure, in inches.

    Raises:
        MissingConditionalImportError: matplotlib is not installed.
        TypeError: ``ax`` is something else.

    >>> one_axes([], "This example")
    Traceback (most recent call last):
    ...
    TypeError: ax must be the axes of a matplotlib figure, such as plt.subplots()[1]; got list.
    """
    if ax is None:
        return axes_grid(purpose, 1, 1, size)[1][0]
    if not isinstance(ax, import_extra("matplotlib.axes", _EXTRA, purpose).Axes):
        raise TypeError(
            f"ax must be the axes of a matplotlib figure, such as plt.subplots()[1]; got {type(ax).__name__}."
        )
    return ax


def figure_png(figure: Any) -> bytes:
    """Return a figure as the content of a PNG file.

    Args:
        figure: The figure.

    >>> figure_png(axes_grid("This example", 1, 1, (2, 1))[0])[:4]
    b'\\x89PNG'
    """
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()


def figure_pixels(figure: Any, dpi: float = 100) -> np.ndarray:
    """Return a figure as an image, bytes of shape (H, W, 3).

    Args:
        figure: The figure.
        dpi: Pixels per inch.

    >>> figure_pixels(axes_grid("This example", 1, 1, (2, 1))[0]).shape
    (100, 200, 3)
    """
    import numpy as np

    agg: Any = import_extra("matplotlib.backends.backend_agg", _EXTRA, "Drawing a figure")
    figure.set_dpi(dpi)
    canvas = agg.FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def plain_label(text: object, width: int | None = None) -> str:
    """Return text that matplotlib shows as it is, on one line: ``$`` would begin a formula.

    Args:
        text: Any object that can be converted to text; secrets are masked.
        width: The largest number of characters; longer text loses its middle.

    >>> plain_label("cost in $ of a\\nvery long name", 20)
    'cost in \\\\$ …long name'
    """
    plain = " ".join(mask_text(str(text)).split())
    plain = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in plain)
    if width is not None and len(plain) > width:
        half = (width - 1) // 2
        plain = f"{plain[: width - 1 - half]}…{plain[-half:]}" if half else plain[: width - 1] + "…"
    return plain.replace("$", r"\$")
