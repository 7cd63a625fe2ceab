from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.optim.lr_finder import RangeTest, geometric_rates


@settings(max_examples=50, deadline=None)
@given(low=st.floats(1e-9, 1e-3), factor=st.floats(1.5, 1e8), number=st.integers(2, 50))
def test_rates_grow_by_one_factor(low, factor, number):
    rates = geometric_rates(low, low * factor, number)
    assert (rates[0], rates[-1], len(rates)) == (low, low * factor, number)
    steps = [later / earlier for earlier, later in itertools.pairwise(rates)]
    assert steps == pytest.approx([factor ** (1 / (number - 1))] * (number - 1), rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(place=st.integers(25, 60), slope=st.floats(0.3, 3), noise=st.floats(0, 0.002))
def test_suggestion_is_where_the_loss_falls_fastest(place, slope, noise):
    """A sigmoid falls fastest in its middle; the explosion that follows does not matter, nor does a little noise."""
    rates = geometric_rates(1e-7, 10, 100)
    losses = [2 / (1 + math.exp((k - place) / (5 * slope))) + noise * (-1) ** k for k in range(85)] + [9.0] * 15
    found = RangeTest(rates, losses).suggestion
    assert abs(math.log(found / rates[place]) / math.log(rates[1] / rates[0])) <= 3


def test_smoothing_keeps_lines_and_places():
    rates = geometric_rates(1e-3, 1, 31)
    line = [3 - 0.1 * k for k in range(31)]
    assert RangeTest(rates, line).smoothed[9:22] == pytest.approx(line[9:22])
    dip = [1.0] * 15 + [0.0] + [1.0] * 15
    smoothed = RangeTest(rates, dip, smoothing=2.0).smoothed
    assert min(range(31), key=smoothed.__getitem__) == 15
    weights = [math.exp(-0.5 * (k / 2.0) ** 2) for k in range(-6, 7)]
    assert smoothed[15] == pytest.approx(1 - 1 / sum(weights))


@pytest.mark.parametrize("losses", [[1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [1.0], []])
def test_no_suggestion_where_the_loss_never_falls(losses):
    test = RangeTest([0.1, 0.2, 0.4][: len(losses)], losses, smoothing=0.5)
    assert test.suggestion is None


def test_plot(tmp_path):
    rates = geometric_rates(1e-4, 1, 30)
    for name, losses in (("falls.png", [3 - 0.1 * k for k in range(30)]), ("rises.svg", [float(k) for k in range(30)])):
        path = RangeTest(rates, losses).plot(tmp_path / name)
        assert path == tmp_path / name
        head = path.read_bytes()[:300]
        assert head.startswith(b"\x89PNG") if name.endswith("png") else b"<svg" in head or b"<?xml" in head
    assert "suggestion" not in (tmp_path / "rises.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 10), "min_lr must be above 0"),
        ((1.0, 0.1, 10), "max_lr greater"),
        ((0.1, math.inf, 10), "max_lr greater"),
        ((0.1, 1.0, 1), "num_batches must be 2 or more"),
    ],
)
def test_wrong_rates(arguments, message):
    with pytest.raises(ValueError, match=message):
        geometric_rates(*arguments)


def test_wrong_tests():
    with pytest.raises(ValueError, match="a loss for each rate; got 2 and 1"):
        RangeTest([0.1, 0.2], [1.0])
    with pytest.raises(ValueError, match="smoothing must be greater than 0"):
        RangeTest([0.1], [1.0], smoothing=0)
