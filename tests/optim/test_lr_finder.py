from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from composer.optim.lr_finder import RangeTest, geometric_learning_rates


@settings(max_examples=50, deadline=None)
@given(low=st.floats(1e-9, 1e-3), factor=st.floats(1.5, 1e8), number=st.integers(2, 50))
def test_rates_grow_by_one_factor(low, factor, number):
    rates = geometric_learning_rates(low, low * factor, number)
    assert (rates[0], rates[-1], len(rates)) == (low, low * factor, number)
    steps = [later / earlier for earlier, later in itertools.pairwise(rates)]
    assert steps == pytest.approx([factor ** (1 / (number - 1))] * (number - 1), rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(place=st.integers(25, 60), slope=st.floats(0.3, 3), noise=st.floats(0, 0.002))
def test_suggestion_is_where_the_loss_falls_fastest(place, slope, noise):
    """A sigmoid falls fastest in its middle; the explosion that follows does not matter, nor does a little noise."""
    rates = geometric_learning_rates(1e-7, 10, 100)
    losses = [2 / (1 + math.exp((k - place) / (5 * slope))) + noise * (-1) ** k for k in range(85)] + [9.0] * 15
    found = RangeTest(rates, losses).suggestion
    assert abs(math.log(found / rates[place]) / math.log(rates[1] / rates[0])) <= 3


def test_smoothing_keeps_lines_and_places():
    rates = geometric_learning_rates(1e-3, 1, 31)
    line = [3 - 0.1 * k for k in range(31)]
    assert RangeTest(rates, line).smoothed[9:22] == pytest.approx(line[9:22])
    dip = [1.0] * 15 + [0.0] + [1.0] * 15
    smoothed = RangeTest(rates, dip, smoothing=2.0).smoothed
    assert min(range(31), key=smoothed.__getitem__) == 15
    weights = [math.exp(-0.5 * (k / 2.0) ** 2) for k in range(-6, 7)]
    assert smoothed[15] == pytest.approx(1 - 1 / sum(weights))


NAN = math.nan


@pytest.mark.parametrize("losses", [[1.0, 1.0, 1.0], [1.0, 2.0, 3.0], [1.0], [], [NAN, 1.0, 0.5], [1.0, NAN, 0.5]])
def test_no_suggestion_where_the_loss_never_falls(losses):
    test = RangeTest([0.1, 0.2, 0.4][: len(losses)], losses, smoothing=0.5)
    with pytest.raises(ValueError, match=r"The loss falls at no learning rate .* Use a greater max_lr if"):
        _ = test.suggestion
    axes = test.plot().axes[0]
    assert [line.get_label() for line in axes.lines] == ["loss of the batch", "smoothed"]


def rise_and_fall(number, start, end, *, noise=0.0, seed=0, tail=1e3):
    """Flat, falling by 1 between two shares of the range, rising a little, then of the tail's height."""
    draw, losses = random.Random(seed), []
    for k in range(number):
        u = k / (number - 1)
        share = min(max((u - start) / (end - start), 0.0), 1.0)
        level = 2.0 - 0.5 * (1 - math.cos(math.pi * share)) + max(0.0, u - end) / 0.05
        losses.append(level + draw.gauss(0, noise) if u < end + 0.05 else tail)
    return geometric_learning_rates(1e-7, 10, number), losses


SHAPES = {
    "number": st.sampled_from([10, 30, 100, 300]),
    "start": st.floats(0.3, 0.6),
    "width": st.floats(0.15, 0.3),
    "seed": st.integers(0, 1000),
}


@settings(max_examples=60, deadline=None)
@given(**SHAPES)
def test_suggestion_lies_where_the_loss_falls(number, start, width, seed):
    """Whatever the number of batches; noise that few batches cannot tell from a fall apart."""
    rates, losses = rise_and_fall(number, start, start + width, noise=0.05 if number >= 30 else 0.0, seed=seed)
    place = rates.index(RangeTest(rates, losses).suggestion) / (number - 1)
    assert start - 1.01 / (number - 1) <= place <= start + width


@settings(max_examples=40, deadline=None)
@given(**SHAPES, tail=st.sampled_from([3.5, 1e12, 1e300, math.inf, math.nan]))
def test_the_height_of_the_explosion_has_no_influence(number, start, width, seed, tail):
    noise = 0.05 if number >= 30 else 0.0
    found = [
        RangeTest(*rise_and_fall(number, start, start + width, noise=noise, seed=seed, tail=t)) for t in (1e3, tail)
    ]
    assert found[0].suggestion == found[1].suggestion
    assert found[0].smoothed == found[1].smoothed
    assert max(found[0].smoothed) < 3.5


@settings(max_examples=25, deadline=None)
@given(**SHAPES, power=st.integers(-20, 20), shift=st.sampled_from([0.0, -8.0, 64.0]))
def test_the_scale_of_the_loss_has_no_influence(number, start, width, seed, power, shift):
    noise = 0.05 if number >= 30 else 0.0
    rates, losses = rise_and_fall(number, start, start + width, noise=noise, seed=seed)
    other = RangeTest(rates, [(loss + shift) * 2.0**power for loss in losses])
    assert math.log(other.suggestion / RangeTest(rates, losses).suggestion) == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize(("number", "least"), [(30, 32), (100, 37), (300, 38)])
def test_noise_is_no_fall(number, least):
    """Of forty curves; with few batches some may pass for a fall."""
    refused = 0
    for seed in range(40):
        draw = random.Random(seed)
        losses = [2 + draw.gauss(0, 0.1) for _ in range(number - 4)] + [10.0, 1e3, 1e9, math.inf]
        try:
            _ = RangeTest(geometric_learning_rates(1e-7, 10, number), losses).suggestion
        except ValueError:
            refused += 1
    assert refused >= least


def test_the_plot_shows_what_comes_before_the_explosion():
    for tail in (1e12, math.inf, math.nan):
        low, high = RangeTest(*rise_and_fall(60, 0.4, 0.6, tail=tail)).plot().axes[0].get_ylim()
        assert 0.8 < low < 1.0
        assert 2.0 < high < 2.6


def test_plot(tmp_path):
    rates = geometric_learning_rates(1e-4, 1, 30)
    test = RangeTest(rates, [3 - 0.1 * k for k in range(30)])
    falls = test.plot()
    assert falls.axes[0].lines[-1].get_label() == f"suggestion: {test.suggestion:.2g}"
    falls.savefig(tmp_path / "falls.png")
    assert (tmp_path / "falls.png").read_bytes().startswith(b"\x89PNG")
    assert test.plot(ax=falls.axes[0]) is falls


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1.0, 10), "min_lr must be above 0"),
        ((1.0, 0.1, 10), "max_lr greater"),
        ((0.1, math.inf, 10), "max_lr greater"),
        ((0.1, 1.0, 1), "num_batches must be 2 or greater"),
        ((0.1, 1.0, 10**30), "num_batches must be at most 1,000,000, but got 1000"),
    ],
)
def test_wrong_rates(arguments, message):
    with pytest.raises(ValueError, match=message):
        geometric_learning_rates(*arguments)


def test_wrong_tests():
    with pytest.raises(ValueError, match="must have the same length, but got 2 and 1"):
        RangeTest([0.1, 0.2], [1.0])
    with pytest.raises(ValueError, match="smoothing must be greater than 0"):
        RangeTest([0.1], [1.0], smoothing=0)
