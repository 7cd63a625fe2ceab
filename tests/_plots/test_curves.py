"""Curves with gaps, and a legend when there are several."""

from __future__ import annotations

import math

import numpy as np
import pytest

from composer._plots import draw_curve, figure_pixels, one_axes


@pytest.mark.parametrize("y", [[], [1.0], [math.nan], [1.0, math.inf, 2.0], [math.nan, 1.0, math.nan]])
def test_gaps_and_single_values_can_be_drawn(y) -> None:
    axes = one_axes(None, "A test")
    draw_curve(axes, range(len(y)), y, "loss")
    (line,) = axes.lines
    assert np.isfinite(line.get_ydata()).tolist() == np.isfinite(y).tolist()
    assert line.get_marker() == "."  # else a value between two gaps would be invisible
    before = figure_pixels(axes.figure)
    line.remove()
    assert (figure_pixels(axes.figure) != before).any() == bool(np.isfinite(y).any())


@pytest.mark.parametrize("y", [[1e308, -1e308], [1e308], [8e307, 0.0, -8e307], [1e300, -1e300]])
def test_values_at_the_end_of_the_range_of_floats(y) -> None:
    axes = one_axes(None, "A test")
    draw_curve(axes, range(len(y)), y, "loss")
    figure_pixels(axes.figure)
    assert np.isfinite(axes.lines[0].get_ydata()).tolist() == [abs(value) <= 1e300 for value in y]


def test_long_curves_have_no_markers() -> None:
    axes = one_axes(None, "A test")
    draw_curve(axes, range(100), range(100), "loss")
    assert axes.lines[0].get_marker() == "None"
    assert axes.get_legend() is None


def test_legend_of_several_curves() -> None:
    axes = one_axes(None, "A test")
    for name in ("a", "_hidden from matplotlib", "x" * 100):
        draw_curve(axes, [0, 1], [0, 1], name)
    shown = [text.get_text() for text in axes.get_legend().get_texts()]
    assert shown[:2] == ["a", " _hidden from matplotlib"]
    assert len(shown[2]) == 40
