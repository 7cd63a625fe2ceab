"""Plot a learning-rate range test with matplotlib, and show it in notebooks."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from composer._html import escaped
from composer._lazy import MissingConditionalImportError
from composer._plots import draw_curve, figure_png, one_axes

if TYPE_CHECKING:
    from composer.optim.lr_finder import RangeTest

__all__ = ["draw_range_test", "range_test_html"]

# Margins of the plot, as fractions of the range of the loss.
_ROOM_BELOW, _ROOM_ABOVE = 0.05, 0.25


def draw_range_test(test: RangeTest, ax: Any = None) -> Any:
    """Draw the losses over the learning rates, and the suggestion if there is one; return the figure.

    Args:
        test: The range test.
        ax: The axes to draw on; None makes a new figure.

    >>> from composer.optim.lr_finder import RangeTest
    >>> figure = draw_range_test(RangeTest([1e-4, 1e-3, 1e-2], [2.0, 1.9, 1.2], smoothing=0.1))
    >>> figure.axes[0].get_xscale()
    'log'
    """
    axes = one_axes(ax, "RangeTest.plot")
    curve = test.smoothed
    draw_curve(axes, test.learning_rates, test.losses, "loss of the batch", color="C0", alpha=0.35)
    draw_curve(axes, test.learning_rates[: len(curve)], curve, "smoothed", color="C0")
    rate, _ = _suggestion(test)
    if rate is not None:
        axes.axvline(rate, color="C1", linestyle="--", label=f"suggestion: {rate:.2g}")
        axes.legend(fontsize="small")
    axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
    if curve:
        # The losses after the divergence would flatten the rest.
        shown = test.losses[: len(curve)]
        low, high = min(shown), max(shown)
        margin = (high - low) or abs(high) or 1.0
        axes.set_ylim(low - _ROOM_BELOW * margin, high + _ROOM_ABOVE * margin)
    return axes.figure


def range_test_html(test: RangeTest) -> str:
    """Return a range test as HTML: the suggestion, and the plot if matplotlib is installed.

    Args:
        test: The range test.

    >>> from composer.optim.lr_finder import RangeTest
    >>> "<img" in range_test_html(RangeTest([1e-4, 1e-3, 1e-2], [2.0, 1.9, 1.2]))
    True
    """
    rate, message = _suggestion(test)
    if rate is not None:
        message = f"suggested learning rate: {rate:.3g}"
    count = f"{len(test.learning_rates)} learning rate{'s' * (len(test.learning_rates) != 1)}"
    title = f"<div><strong>Learning-rate range test</strong>, {count}; {escaped(message)}</div>"
    if len(test.smoothed) < 2:
        return title
    try:
        picture = base64.b64encode(figure_png(draw_range_test(test))).decode()
    except MissingConditionalImportError as error:
        return f"<div>{title}<div>{escaped(str(error))}</div></div>"
    return f'<div>{title}<img alt="Losses over learning rates" src="data:image/png;base64,{picture}"></div>'


def _suggestion(test: RangeTest) -> tuple[float | None, str]:
    """Return the suggested learning rate, or why there is none."""
    try:
        return test.suggestion, ""
    except ValueError as error:
        return None, str(error)
