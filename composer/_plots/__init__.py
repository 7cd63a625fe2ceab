"""Matplotlib figures that work without a display and without pyplot: curves over training time, and matrices.

- ``figures``: a new figure or the user's axes; a figure is shown by a notebook.
- ``curves``: labeled curves on axes.
- ``matrices``: a heat map with its counts, such as a confusion matrix.

Colors come from the user's style (``matplotlib.rcParams``), so that figures are readable in light and dark styles.
"""

from __future__ import annotations

from composer._lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "axes_grid": "composer._plots.figures",
        "draw_curve": "composer._plots.curves",
        "draw_matrix": "composer._plots.matrices",
        "figure_pixels": "composer._plots.figures",
        "figure_png": "composer._plots.figures",
        "one_axes": "composer._plots.figures",
        "plain_label": "composer._plots.figures",
    },
)
