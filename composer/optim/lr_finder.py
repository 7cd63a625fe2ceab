"""What a learning-rate range test has found.

The rate grows from batch to batch by the same factor, from one at which nothing is learned to one at which the loss
explodes. In between the loss falls, fastest near a rate that is good to train with. Paper: Cyclical Learning Rates for
Training Neural Networks, Smith 2017, https://arxiv.org/abs/1506.01186
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from composer._lazy import import_extra
from composer._text import positive

__all__ = ["RangeTest", "geometric_rates"]

# So many standard deviations away a weight of the smoothing is negligible.
_REACH = 3
# How wide the weights are by default, in powers of ten of the rate.
_DECADES = 0.25
# The share of the whole fall in which the flat part before it, with its noise, may still be.
_FLAT = 0.25
# By how many standard deviations of the smoothed curve it has to fall. Of noise alone, as many as one curve in ten does
# with 30 batches, one in a hundred with 300.
_SIGNIFICANT = 8.0
# After how many batches an unstable rate shows in the loss.
_LAG = 3
# With fewer losses nobody can tell noise from a slope.
_FEW = 8
# The median of the absolute value of a standard normal variable.
_MEDIAN_OF_NORMAL = 0.6745
# Of a plot, in ranges of the loss.
_ROOM_BELOW, _ROOM_ABOVE = 0.05, 0.25


def geometric_rates(min_lr: float, max_lr: float, num_batches: int) -> list[float]:
    """Return rates that grow from one end to the other by the same factor from batch to batch.

    Args:
        min_lr: The first, above 0.
        max_lr: The last, greater.
        num_batches: Their number, 2 or more.

    Raises:
        ValueError: An argument is out of its range.

    >>> geometric_rates(0.001, 1.0, 4)
    [0.001, 0.01, 0.1, 1.0]
    """
    if not 0 < min_lr < max_lr < math.inf:
        raise ValueError(f"min_lr must be above 0 and max_lr greater, but got min_lr={min_lr} and max_lr={max_lr}.")
    if num_batches < 2:
        raise ValueError(f"num_batches must be 2 or more, but got {num_batches}.")
    span = math.log10(max_lr) - math.log10(min_lr)
    inner = [10 ** (math.log10(min_lr) + span * k / (num_batches - 1)) for k in range(1, num_batches - 1)]
    return [min_lr, *inner, max_lr]


@dataclass(frozen=True)
class RangeTest:
    """Rates that were tried, and the loss of the batch at each.

    Attributes:
        rates: Learning rates of the first parameter group, growing.
        losses: The loss at each, before the step with it.
        smoothing: Standard deviation, in batches, of the bell-shaped weights by which losses are averaged. None is a
            quarter of a power of ten of the rate, but one batch or more.

    Raises:
        ValueError: There are not as many losses as rates, or ``smoothing`` is not positive.

    >>> test = RangeTest([1e-4, 1e-3, 1e-2, 1e-1, 1.0], [2.0, 1.9, 1.2, 0.8, 9.0], smoothing=0.1)
    >>> test.suggestion
    0.001
    """

    rates: Sequence[float]
    losses: Sequence[float]
    smoothing: float | None = None

    def __post_init__(self) -> None:
        if self.smoothing is not None:
            positive("smoothing", self.smoothing)
        if len(self.rates) != len(self.losses):
            raise ValueError(f"There must be a loss for each rate; got {len(self.rates)} and {len(self.losses)}.")

    @property
    def smoothed(self) -> list[float]:
        """The losses, each averaged with those around it, so that the curve is not shifted.

        It ends where the loss diverges: from there on it is greater than ever before, or no number.
        """
        return self._smooth(self.losses[: self._end()])

    @property
    def suggestion(self) -> float:
        """The rate at which the smoothed loss falls fastest: where it falls, but some batches before its minimum.

        Losses from where it diverges on have no influence, however they explode.

        Raises:
            ValueError: The loss never falls, or by no more than batches differ.
        """
        place = self._steepest()
        if place is None:
            between = f"between {self.rates[0]:.3g} and {self.rates[-1]:.3g}" if self.rates else "that was tried"
            raise ValueError(
                f"The loss falls at no learning rate {between} by more than batches differ, so none can be suggested. "
                f"Pass a greater max_lr if the loss has not exploded, a smaller min_lr if it exploded at once, or a "
                f"larger num_batches; or the model does not learn."
            )
        return self.rates[place]

    def plot(self, path: str | Path) -> Path:
        """Draw the losses over the rates, with the suggestion if there is one, into a file.

        The vertical axis shows what comes before the loss diverges.

        Args:
            path: Where to; the ending (``.png``, ``.svg``, ``.pdf``) gives the format.

        Returns:
            The path.

        Raises:
            MissingConditionalImportError: ``matplotlib`` is not installed.
        """
        figure: Any = import_extra("matplotlib.figure", "examples", "RangeTest.plot").Figure(figsize=(6, 4))
        axes = figure.subplots()
        curve, place = self.smoothed, self._steepest()
        axes.plot(self.rates, self.losses, color="lightgray", label="loss of the batch")
        axes.plot(self.rates[: len(curve)], curve, color="tab:blue", label="smoothed")
        if place is not None:
            rate = self.rates[place]
            axes.axvline(rate, color="tab:orange", linestyle="--", label=f"suggestion: {rate:.2g}")
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
        if curve:
            shown = self.losses[: len(curve)]
            low, high = min(shown), max(shown)
            room = (high - low) or abs(high) or 1.0
            axes.set_ylim(low - _ROOM_BELOW * room, high + _ROOM_ABOVE * room)
        axes.legend()
        path = Path(path)
        figure.savefig(path, bbox_inches="tight")
        return path

    def _repr_html_(self) -> str:
        """Return the plot with the suggestion, for notebooks."""
        from composer.optim._lr_plot import range_test_html

        return range_test_html(self)

    def _end(self) -> int:
        """The number of losses before it diverges: after its minimum it is greater than ever before, or no number."""
        finite = next((place for place, loss in enumerate(self.losses) if not math.isfinite(loss)), len(self.losses))
        losses = self.losses[:finite]
        if not losses:
            return 0
        # Medians of three, so that neither a single lucky batch nor the first that explodes is taken for the minimum.
        inner = [sorted(losses[place - 1 : place + 2])[1] for place in range(1, len(losses) - 1)]
        medians = [losses[0], *inner, losses[-1]]
        lowest = min(range(len(losses)), key=medians.__getitem__)
        highest = max(losses[: lowest + 1])
        return next((place for place in range(lowest + 1, len(losses)) if losses[place] > highest), len(losses))

    def _steepest(self) -> int | None:
        """Where the loss falls fastest; None where it does not fall."""
        whole = self.smoothed
        if len(whole) < 2:
            return None
        lowest = min(range(len(whole)), key=whole.__getitem__)
        # Smoothed without what comes after, whose rise would reach back to where the loss still falls.
        losses = self.losses[: lowest + 1]
        curve = self._smooth(losses)
        top, bottom = max(curve), curve[-1]
        fall = top - bottom
        if fall <= 0 or fall < _SIGNIFICANT * self._noise(self.losses[: len(whole)]):
            return None
        begin = max(place for place, level in enumerate(curve[:-1]) if level >= top - _FLAT * fall)
        logs = [math.log(rate) for rate in self.rates]
        slopes: dict[int, float] = {}
        # The last rates before the minimum may be too large already: that takes some batches to show.
        for place in range(begin, max(begin, lowest - _LAG) + 1):
            before = max(place - 1, 0)
            slopes[place] = (curve[place + 1] - curve[before]) / (logs[place + 1] - logs[before])
        return min(slopes, key=slopes.__getitem__)

    @property
    def _width(self) -> float:
        """The standard deviation of the weights, in batches."""
        if self.smoothing is not None:
            return self.smoothing
        if len(self.rates) < 2:
            return 1.0
        decades = math.log10(self.rates[-1] / self.rates[0])
        return max(0.5, _DECADES * (len(self.rates) - 1) / decades)

    def _smooth(self, losses: Sequence[float]) -> list[float]:
        width = self._width
        reach = math.ceil(_REACH * width)
        found: list[float] = []
        for place in range(len(losses)):
            near = range(max(0, place - reach), min(len(losses), place + reach + 1))
            weights = [math.exp(-0.5 * ((other - place) / width) ** 2) for other in near]
            total = sum(weight * losses[other] for weight, other in zip(weights, near, strict=True))
            found.append(total / sum(weights))
        return found

    def _noise(self, losses: Sequence[float]) -> float:
        """The standard deviation of the smoothed curve where batches differ by chance; 0 where there are too few."""
        if len(losses) < _FEW:
            return 0.0
        # Of second differences, in which a slope is not seen, and by their median, which a bend does not change.
        bends = [abs(one - 2 * two + three) for one, two, three in zip(losses, losses[1:], losses[2:], strict=False)]
        batch = median(bends) / (_MEDIAN_OF_NORMAL * math.sqrt(6))
        return batch / math.sqrt(max(1.0, 2 * math.sqrt(math.pi) * self._width))
