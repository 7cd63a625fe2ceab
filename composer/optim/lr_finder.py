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
from typing import Any

from composer._lazy import import_extra
from composer._text import positive

__all__ = ["RangeTest", "geometric_rates"]

# So many standard deviations away a weight of the smoothing is negligible.
_REACH = 3


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
        smoothing: Standard deviation, in batches, of the bell-shaped weights by which losses are averaged.

    Raises:
        ValueError: There are not as many losses as rates, or ``smoothing`` is not positive.

    >>> test = RangeTest([1e-4, 1e-3, 1e-2, 1e-1, 1.0], [2.0, 1.9, 1.2, 0.8, 9.0], smoothing=0.1)
    >>> test.suggestion
    0.01
    """

    rates: Sequence[float]
    losses: Sequence[float]
    smoothing: float = 3.0

    def __post_init__(self) -> None:
        positive("smoothing", self.smoothing)
        if len(self.rates) != len(self.losses):
            raise ValueError(f"There must be a loss for each rate; got {len(self.rates)} and {len(self.losses)}.")

    @property
    def smoothed(self) -> list[float]:
        """The losses, each averaged with those around it, so that the curve is not shifted."""
        reach = math.ceil(_REACH * self.smoothing)
        found: list[float] = []
        for place in range(len(self.losses)):
            near = range(max(0, place - reach), min(len(self.losses), place + reach + 1))
            weights = [math.exp(-0.5 * ((other - place) / self.smoothing) ** 2) for other in near]
            total = sum(weight * self.losses[other] for weight, other in zip(weights, near, strict=True))
            found.append(total / sum(weights))
        return found

    @property
    def suggestion(self) -> float | None:
        """The rate at which the smoothed loss falls fastest, before its minimum; None where it never falls."""
        curve = self.smoothed
        lowest = min(range(len(curve)), key=lambda place: curve[place], default=0)
        logs = [math.log(rate) for rate in self.rates]
        slopes: dict[int, float] = {}
        for place in range(1, lowest + 1):
            after = min(place + 1, lowest)
            slopes[place] = (curve[after] - curve[place - 1]) / (logs[after] - logs[place - 1])
        best = min(slopes, key=lambda place: slopes[place], default=None)
        return self.rates[best] if best is not None and slopes[best] < 0 else None

    def plot(self, path: str | Path) -> Path:
        """Draw the losses over the rates, with the suggestion, into a file.

        Args:
            path: Where to; the ending (``.png``, ``.svg``, ``.pdf``) gives the format.

        Returns:
            The path.

        Raises:
            MissingConditionalImportError: ``matplotlib`` is not installed.
        """
        figure: Any = import_extra("matplotlib.figure", "examples", "RangeTest.plot").Figure(figsize=(6, 4))
        axes = figure.subplots()
        axes.plot(self.rates, self.losses, color="lightgray", label="loss of the batch")
        axes.plot(self.rates, self.smoothed, color="tab:blue", label="smoothed")
        if self.suggestion is not None:
            axes.axvline(
                self.suggestion, color="tab:orange", linestyle="--", label=f"suggestion: {self.suggestion:.2g}"
            )
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
        axes.legend()
        path = Path(path)
        figure.savefig(path, bbox_inches="tight")
        return path
