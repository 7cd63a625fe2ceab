"""Heat maps of matrices."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from matplotlib import colors

from composer._plots import draw_matrix, figure_pixels


def numbers(figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([[3, 1], [0, 12345]], ["3", "1", "0", "12345"]),
        ([[0.5, 0.001], [1.0, math.nan]], ["0.50", "0.00", "1.00", "nan"]),
        ([[1.5e6, 2e9], [-123456, math.inf]], ["1500k", "2000M", "-123k", "inf"]),
        ([[math.nan, math.nan], [math.nan, math.nan]], ["nan"] * 4),
        ([[0, 0], [0, 0]], ["0"] * 4),
        ([[1e308, -1e308], [1e300, 9.9e13]], ["1e+308", "-1e+308", "1e+300", "99000G"]),
    ],
)
def test_small_matrices_show_their_numbers(values, shown) -> None:
    figure = draw_matrix(values, "ab", "cd", "target", "predicted", "title")
    assert numbers(figure) == shown
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["c", "d"]
    assert (axes.get_ylabel(), axes.get_xlabel(), axes.get_title()) == ("target", "predicted", "title")
    assert figure_pixels(figure).min() < 255


def test_numbers_are_readable_on_their_cells() -> None:
    figure = draw_matrix(np.arange(36).reshape(6, 6), range(6), range(6))
    axes = figure.axes[0]
    image = axes.images[0]
    for text, value in zip(axes.texts, range(36), strict=True):
        back, front = np.mean(image.cmap(image.norm(value))[:3]), np.mean(colors.to_rgb(text.get_color()))
        assert abs(back - front) > 0.3


def test_large_matrices_have_a_color_bar_and_some_labels() -> None:
    figure = draw_matrix(np.eye(300), range(300), range(300))
    axes = figure.axes[0]
    assert not numbers(figure)
    assert len(figure.axes) == 2
    assert 20 <= len(axes.get_yticks()) <= 48
    assert (figure.get_size_inches() < 12).all()


def test_on_given_axes() -> None:
    figure = draw_matrix([[1]], ["a"], ["a"])
    assert draw_matrix([[1, 2]], ["a"], ["a", "b"], ax=figure.axes[0]) is figure


@pytest.mark.parametrize("values", [[1, 2], [[[1]]], [[1, 2, 3]]])
def test_labels_must_fit(values) -> None:
    expected = re.escape(f"its shape is {np.shape(values)}")
    with pytest.raises(ValueError, match=expected):
        draw_matrix(values, ["a"], ["a", "b"])
