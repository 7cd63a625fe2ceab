"""Learning-rate finder: the result of a learning-rate range test (``RangeTest``), its suggestion and plot.

The test multiplies the learning rate by the same factor after each batch, from a value at which nothing is learned to
one at which the loss diverges. In between the loss falls, fastest near a good learning rate. Paper: Cyclical Learning
Rates for Training Neural Networks, Smith 2017, https://arxiv.org/abs/1506.01186
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from composer._numbers import positive, whole_number

__all__ = ["RangeTest", "geometric_learning_rates"]

# Number of standard deviations beyond which a smoothing weight is negligible.
_NUM_STDS = 3
# Default standard deviation of the smoothing weights, in powers of ten of the learning rate.
_DECADES = 0.25
# Fraction of the total fall of the loss within which the curve still counts as the initial, noisy plateau.
_FLAT_FRACTION = 0.25
# Number of standard deviations of the smoothed curve by which the loss must fall. With noise alone, one curve in ten
# does so with 30 batches, one in a hundred with 300.
_SIGNIFICANT = 8.0
# Number of batches after which an unstable learning rate shows in the loss.
_INSTABILITY_LAG = 3
# With fewer losses, noise cannot be distinguished from a slope.
_MIN_LOSSES = 8
# Far beyond any test; a typing error such as 1e12 would otherwise take years.
_MAX_BATCHES = 1_000_000
# The median of the absolute value of a standard normal variable.
_MEDIAN_OF_NORMAL = 0.6745


def geometric_learning_rates(min_lr: float, max_lr: float, num_batches: int) -> list[float]:
    """Return learning rates that increase geometrically from ``min_lr`` to ``max_lr``.

    Args:
        min_lr: The first, above 0.
        max_lr: The last, greater than ``min_lr``.
        num_batches: Number of learning rates, from 2 to 1,000,000.

    Raises:
        ValueError: An argument is out of range.

    >>> geometric_learning_rates(0.001, 1.0, 4)
    [0.001, 0.01, 0.1, 1.0]
    """
    if not 0 < min_lr < max_lr < math.inf:
        raise ValueError(f"min_lr must be above 0 and max_lr greater, but got min_lr={min_lr} and max_lr={max_lr}.")
    num_batches = whole_number("num_batches", num_batches, minimum=2)
    if num_batches > _MAX_BATCHES:
        raise ValueError(f"num_batches must be at most {_MAX_BATCHES:,}, but got {num_batches}; 100 are usual.")
    span = math.log10(max_lr) - math.log10(min_lr)
    inner = [10 ** (math.log10(min_lr) + span * k / (num_batches - 1)) for k in range(1, num_batches - 1)]
    return [min_lr, *inner, max_lr]


@dataclass(frozen=True)
class RangeTest:
    """The tested learning rates and the batch loss at each.

    Attributes:
        learning_rates: Learning rates of the first parameter group, increasing.
        losses: The loss at each learning rate, before the step with it.
        smoothing: Standard deviation, in batches, of the Gaussian weights for smoothing the losses. None is a quarter
            of a power of ten of the learning rate, but at least half a batch.

    Raises:
        ValueError: The numbers of losses and learning rates differ, or ``smoothing`` is not positive.

    >>> test = RangeTest([1e-4, 1e-3, 1e-2, 1e-1, 1.0], [2.0, 1.9, 1.2, 0.8, 9.0], smoothing=0.1)
    >>> test.suggestion
    0.001
    """

    learning_rates: Sequence[float]
    losses: Sequence[float]
    smoothing: float | None = None

    def __post_init__(self) -> None:
        if self.smoothing is not None:
            positive("smoothing", self.smoothing)
        if len(self.learning_rates) != len(self.losses):
            raise ValueError(
                f"learning_rates and losses must have the same length, but got {len(self.learning_rates)} and "
                f"{len(self.losses)}."
            )

    @property
    def smoothed(self) -> list[float]:
        """The losses, smoothed symmetrically so that the curve is not shifted.

        The curve ends where the loss diverges, that is, exceeds all earlier losses or is not finite.
        """
        return self._smooth(self.losses[: self._end()])

    @property
    def suggestion(self) -> float:
        """The learning rate at which the smoothed loss falls fastest, some batches before its minimum.

        Losses after the divergence have no influence.

        Raises:
            ValueError: The loss never falls by more than its noise among batches.
        """
        index = self._steepest()
        if index is None:
            between = (
                f"between {self.learning_rates[0]:.3g} and {self.learning_rates[-1]:.3g}"
                if self.learning_rates
                else "that was tested"
            )
            raise ValueError(
                f"The loss falls at no learning rate {between} by more than its noise among batches, so none can be "
                f"suggested. Use a greater max_lr if the loss has not diverged, a smaller min_lr if it diverged at "
                f"once, or a larger num_batches; otherwise the model does not learn."
            )
        return self.learning_rates[index]

    def plot(self, *, ax: Any = None) -> Any:
        """Plot the losses over the learning rates, with the suggestion if there is one, with matplotlib.

        The vertical axis covers the losses before the divergence.

        Args:
            ax: The axes to draw on. Default: those of a new figure.

        Returns:
            The :class:`matplotlib.figure.Figure`; ``test.plot().savefig("rates.png")`` writes it to a file.

        Raises:
            MissingConditionalImportError: matplotlib is not installed.

        >>> test = RangeTest([1e-4, 1e-3, 1e-2, 1e-1, 1.0], [2.0, 1.9, 1.2, 0.8, 9.0], smoothing=0.1)
        >>> test.plot().axes[0].get_xlabel()
        'learning rate'
        """
        from composer.optim._lr_plot import draw_range_test

        return draw_range_test(self, ax)

    def _repr_html_(self) -> str:
        """Return the plot with the suggestion, for notebooks."""
        from composer.optim._lr_plot import range_test_html

        return range_test_html(self)

    def _end(self) -> int:
        """The number of losses before one after the minimum exceeds all earlier ones, or one is not finite."""
        finite = next((index for index, loss in enumerate(self.losses) if not math.isfinite(loss)), len(self.losses))
        losses = self.losses[:finite]
        if not losses:
            return 0
        # Medians of three, so that a single outlier is not taken for the minimum.
        inner = [sorted(losses[index - 1 : index + 2])[1] for index in range(1, len(losses) - 1)]
        medians = [losses[0], *inner, losses[-1]]
        lowest = min(range(len(losses)), key=medians.__getitem__)
        highest = max(losses[: lowest + 1])
        return next((index for index in range(lowest + 1, len(losses)) if losses[index] > highest), len(losses))

    def _steepest(self) -> int | None:
        """The index at which the loss falls fastest, or None if it does not fall."""
        smoothed = self.smoothed
        if len(smoothed) < 2:
            return None
        lowest = min(range(len(smoothed)), key=smoothed.__getitem__)
        # Smooth again without the losses after the minimum, whose rise would leak into the falling part.
        losses = self.losses[: lowest + 1]
        curve = self._smooth(losses)
        top, bottom = max(curve), curve[-1]
        fall = top - bottom
        if fall <= 0 or fall < _SIGNIFICANT * self._noise(self.losses[: len(smoothed)]):
            return None
        begin = max(index for index, level in enumerate(curve[:-1]) if level >= top - _FLAT_FRACTION * fall)
        logs = [math.log(rate) for rate in self.learning_rates]
        slopes: dict[int, float] = {}
        # The last learning rates before the minimum may already be too large, which takes some batches to show.
        for index in range(begin, max(begin, lowest - _INSTABILITY_LAG) + 1):
            before = max(index - 1, 0)
            slopes[index] = (curve[index + 1] - curve[before]) / (logs[index + 1] - logs[before])
        return min(slopes, key=slopes.__getitem__)

    @property
    def _width(self) -> float:
        """The standard deviation of the smoothing weights, in batches."""
        if self.smoothing is not None:
            return self.smoothing
        if len(self.learning_rates) < 2:
            return 1.0
        decades = math.log10(self.learning_rates[-1] / self.learning_rates[0])
        return max(0.5, _DECADES * (len(self.learning_rates) - 1) / decades)

    def _smooth(self, losses: Sequence[float]) -> list[float]:
        width = self._width
        reach = math.ceil(_NUM_STDS * width)
        found: list[float] = []
        for index in range(len(losses)):
            near = range(max(0, index - reach), min(len(losses), index + reach + 1))
            weights = [math.exp(-0.5 * ((other - index) / width) ** 2) for other in near]
            total = sum(weight * losses[other] for weight, other in zip(weights, near, strict=True))
            found.append(total / sum(weights))
        return found

    def _noise(self, losses: Sequence[float]) -> float:
        """The standard deviation of the smoothed curve due to noise among batches; 0 with too few losses."""
        if len(losses) < _MIN_LOSSES:
            return 0.0
        # Second differences cancel a slope; their median is robust to a bend.
        bends = [abs(one - 2 * two + three) for one, two, three in zip(losses, losses[1:], losses[2:], strict=False)]
        batch = median(bends) / (_MEDIAN_OF_NORMAL * math.sqrt(6))
        return batch / math.sqrt(max(1.0, 2 * math.sqrt(math.pi) * self._width))
