"""Figures without pyplot: shown by notebooks, drawn on the user's axes, with labels that are text."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from composer._lazy import MissingConditionalImportError
from composer._plots import axes_grid, figure_pixels, figure_png, one_axes, plain_label
from tests.design import ROOT

_NOTEBOOK = """
import sys
from IPython.core.formatters import DisplayFormatter
from composer.optim import LinearScheduler

figure = LinearScheduler().plot("4ba")
data, _ = DisplayFormatter().format(figure)
print(data["image/png"][:4] == b"\\x89PNG", "matplotlib.pyplot" in sys.modules)
"""


def test_a_notebook_shows_a_figure_without_pyplot() -> None:
    done = subprocess.run([sys.executable, "-c", _NOTEBOOK], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_figures_can_be_copied() -> None:
    figure, _ = axes_grid("A test", 1, 1, (2, 1))
    for other in (copy.deepcopy(figure), pickle.loads(pickle.dumps(figure))):
        assert other._repr_png_().startswith(b"\x89PNG")


def test_axes_of_the_user() -> None:
    axes = Figure().subplots()
    assert one_axes(axes, "A test") is axes
    with pytest.raises(TypeError, match=r"ax must be the axes of a matplotlib figure.*got tuple"):
        one_axes((axes.figure, axes), "A test")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingConditionalImportError, match=r"A test needs .*'matplotlib'.*composer-torch\[examples\]"):
        axes_grid("A test", 1, 1, (2, 1))


def test_pixels_are_the_image() -> None:
    figure, (axes,) = axes_grid("A test", 1, 1, (2, 1))
    axes.set_facecolor("red")
    axes.axis("off")
    figure.set_facecolor("blue")
    pixels = figure_pixels(figure)
    assert (pixels.dtype, pixels.shape) == (np.uint8, (100, 200, 3))
    assert pixels[0, 0].tolist() == [0, 0, 255]


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=60), st.one_of(st.none(), st.integers(1, 20)))
def test_labels_are_one_line_of_text(text: str, width: int | None) -> None:
    label = plain_label(text, width)
    assert label.isprintable()
    shown = label.replace(r"\$", "$")
    assert "$" not in label.replace(r"\$", "")
    assert width is None or len(shown) <= width


@pytest.mark.parametrize("text", ["$x$", "$\\frac{", "a_b^c", "<b>", "100 %", "\\alpha", "{", "\x00\x1b[31m", "日本"])
@pytest.mark.filterwarnings("ignore:Glyph:UserWarning")
def test_hostile_labels_can_be_drawn(text: str) -> None:
    figure, (axes,) = axes_grid("A test", 1, 1, (2, 1))
    axes.set_title(plain_label(text))
    assert figure_png(figure).startswith(b"\x89PNG")
