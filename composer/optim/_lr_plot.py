"""Plot a learning-rate range test as SVG for notebooks, in light and dark themes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from composer._html import escaped

if TYPE_CHECKING:
    from composer.optim.lr_finder import RangeTest

__all__ = ["range_test_html"]

_WIDTH, _HEIGHT = 520, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 12, 40
_CURVE, _SUGGESTION = "#3b82f6", "#e67e22"
_LABEL = 'font-size="11" fill="currentColor"'


def range_test_html(test: RangeTest) -> str:
    """Return a range test as HTML: the suggestion and a plot of the losses over the learning rates.

    Args:
        test: The range test.

    >>> from composer.optim.lr_finder import RangeTest
    >>> "<svg" in range_test_html(RangeTest([1e-4, 1e-3, 1e-2], [2.0, 1.9, 1.2]))
    True
    """
    try:
        rate, message = test.suggestion, f"suggested learning rate: {test.suggestion:.3g}"
    except ValueError as error:
        rate, message = None, str(error)
    count = f"{len(test.learning_rates)} learning rate{'s' * (len(test.learning_rates) != 1)}"
    title = f"<div><strong>Learning-rate range test</strong>, {count}; {escaped(message)}</div>"
    curve = test.smoothed
    if len(curve) < 2:
        return title
    return f"<div>{title}{_plot(test.learning_rates, test.losses, curve, rate)}</div>"


def _plot(learning_rates: Sequence[float], losses: Sequence[float], curve: Sequence[float], rate: float | None) -> str:
    low, high = min(losses[: len(curve)]), max(losses[: len(curve)])
    margin = (high - low) or abs(high) or 1.0
    low, high = low - 0.05 * margin, high + 0.25 * margin
    first, last = math.log10(learning_rates[0]), math.log10(learning_rates[-1])

    def x(value: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * (math.log10(value) - first) / ((last - first) or 1.0)

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    def line(values: Sequence[float], color: str, width: float) -> str:
        # Clip values outside the range to the edge; skip NaN.
        numbers = [(rate, value) for rate, value in zip(learning_rates, values, strict=False) if not math.isnan(value)]
        shown = [(x(rate), y(max(low, min(value, high)))) for rate, value in numbers]
        points = " ".join(f"{left:.1f},{top:.1f}" for left, top in shown)
        return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="{width}"/>'

    bottom = _HEIGHT - _BOTTOM
    elements = [
        f'<path d="M{_LEFT},{_TOP}V{bottom}H{_WIDTH - _RIGHT}" fill="none" stroke="currentColor" opacity=".5"/>',
        line(losses, "rgba(128,128,128,.6)", 1),
        line(curve, _CURVE, 2),
    ]
    step = max(1, math.ceil((last - first) / 8))
    for power in range(math.ceil(first - 1e-9), math.floor(last + 1e-9) + 1, step):
        elements.append(
            f'<text x="{x(10.0**power):.0f}" y="{bottom + 16}" text-anchor="middle" {_LABEL}>1e{power}</text>'
        )
    for fraction in (0.0, 0.5, 1.0):
        value = low + fraction * (high - low)
        elements.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.0f}" text-anchor="end" {_LABEL}>{value:.3g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) // 2
    elements.append(
        f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle" {_LABEL}>loss over learning rate</text>'
    )
    if rate is not None:
        at = f"{x(rate):.1f}"
        elements.append(
            f'<path d="M{at},{_TOP}V{bottom}" stroke="{_SUGGESTION}" stroke-width="1.5" stroke-dasharray="5 4"/>'
        )
        elements.append(f'<text x="{at}" y="{_TOP + 10}" dx="5" font-size="11" fill="{_SUGGESTION}">{rate:.2g}</text>')
    size = f'width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="max-width:100%">{"".join(elements)}</svg>'
