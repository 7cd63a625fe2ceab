"""Names for type checkers; made by `python -m tests.stubs` from the table in the module."""

from composer._plots.curves import draw_curve
from composer._plots.figures import axes_grid, figure_pixels, figure_png, one_axes, plain_label
from composer._plots.matrices import draw_matrix

__all__ = [
    "axes_grid",
    "draw_curve",
    "draw_matrix",
    "figure_pixels",
    "figure_png",
    "one_axes",
    "plain_label",
]
