"""Statistical power: which gains a number of paired runs can tell from noise, before they are run."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from composer._numbers import non_negative, positive
from composer.statistics._arguments import Floats, at_least, finite, open_unit
from composer.statistics._special import special
from composer.statistics.bootstrap import Estimate

__all__ = ["Prospect", "pair_spread", "pairs_needed", "power_of", "prospect", "smallest_gain"]

# The most pairs of which the sign-flip test is simulated, the number of simulations, and numbers held at once.
_SIMULATED_PAIRS = 12
_SIMULATIONS = 4000
_CHUNK = 4_000_000


@dataclass(frozen=True)
class Prospect:
    """What a number of pairs can tell, stated before they are run.

    Args:
        num_pairs: Number of pairs.
        spread: Standard deviation of the log ratios of pairs of equal runs.
        smallest_gain: The smallest gain that is found with probability ``power``, as a fraction; infinite if none is.
        power: That probability.
        alpha: Share of changes without effect that are accepted.

    >>> print(prospect(num_pairs=8, spread=0.1))
    8 pairs with a spread of 10 % can tell gains of at least 10.5 % (power 80 %, alpha 5 %)
    >>> print(prospect(num_pairs=4, spread=0.1))
    4 pairs can tell no gain, however large: that takes at least 5 pairs at alpha 5 %
    """

    num_pairs: int
    spread: float
    smallest_gain: float
    power: float
    alpha: float

    def is_possible(self, gain: float) -> bool:
        """Return whether a gain can be told from noise.

        Args:
            gain: The gain, as a fraction; 0.1 is 1.1 times as fast.

        >>> (
        ...     prospect(num_pairs=8, spread=0.1).is_possible(0.3),
        ...     prospect(num_pairs=8, spread=0.1).is_possible(0.03),
        ... )
        (True, False)
        """
        return gain >= self.smallest_gain

    def __str__(self) -> str:
        """What can be told, in a sentence."""
        if math.isinf(self.smallest_gain):
            least = math.ceil(-math.log2(self.alpha))
            return (
                f"{self.num_pairs} pairs can tell no gain, however large: that takes at least {least} pairs at alpha "
                f"{_percent(self.alpha)}"
            )
        return (
            f"{self.num_pairs} pairs with a spread of {_percent(self.spread)} can tell gains of at least "
            f"{_percent(self.smallest_gain)} (power {_percent(self.power)}, alpha {_percent(self.alpha)})"
        )


def prospect(num_pairs: int, spread: float, methods: int = 1, power: float = 0.8, alpha: float = 0.05) -> Prospect:
    """Return what a number of pairs can tell.

    Args:
        num_pairs: Number of pairs.
        spread: Standard deviation of the log ratios of pairs of equal runs (:func:`pair_spread`).
        methods: Number of methods that are compared; alpha is divided among them, as Holm's method does for the first.
        power: Probability of finding the gain.
        alpha: Share of placebos that are accepted, over all methods.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of range.

    >>> round(prospect(num_pairs=8, spread=0.1, methods=5).smallest_gain, 3)
    0.167
    """
    each = open_unit("alpha", alpha) / at_least("methods", methods, 1)
    return Prospect(num_pairs, spread, smallest_gain(num_pairs, spread, power, each), power, each)


def pair_spread(logs: Sequence[float]) -> Estimate:
    """Return the standard deviation of the log ratios of pairs of equal runs (A/A runs), with its 95 % interval.

    Their mean is zero, since both runs of a pair are alike, so that it need not be estimated: s^2 = sum of d^2 / n, and
    n s^2 / sigma^2 follows the chi-square distribution with n degrees of freedom. With few pairs the interval is wide:
    the upper end is 2.2 times the estimate with 6.

    Args:
        logs: Logarithms of the ratios of the times of equal runs.

    Raises:
        TypeError: A logarithm is not a number.
        ValueError: There is none, or one is not finite.

    >>> str(pair_spread([0.1, -0.1, 0.1, -0.1, 0.1, -0.1]))
    '0.1 [0.06444, 0.2202]'

    Paper: Cochran 1934, https://doi.org/10.1017/S0305004100016595
    """
    values = finite("logs", logs)
    number = len(values)
    value = math.sqrt(float(np.mean(values**2)))
    ends = (value * math.sqrt(number / float(special().chdtri(number, tail))) for tail in (0.025, 0.975))
    return Estimate(value, *ends)


def power_of(gain: float, num_pairs: int, spread: float, alpha: float = 0.05) -> float:
    """Return the probability that the one-sided sign-flip test finds a gain, if log ratios are normal.

    With up to 12 pairs this is the share of 4,000 simulated tests, the same ones in each call. The test rejects at

        level = floor(alpha 2^n) / 2^n = k / 2^n

    if fewer than k sets of pairs have a sum of log ratios that is not positive, so that the gain which is just found is
    the k-th largest of minus their means. With more pairs its power is almost that of Student's test, whose statistic
    follows the noncentral t distribution.

    Args:
        gain: The true gain, as a fraction; 0.1 is 1.1 times as fast.
        num_pairs: Number of pairs, at least 2.
        spread: Standard deviation of the log ratios of pairs.
        alpha: Share of changes without effect that are accepted.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of range.

    >>> round(power_of(0.1, num_pairs=8, spread=0.1), 2)
    0.77

    Paper: Hoeffding 1952 (power of permutation tests), https://doi.org/10.1214/aoms/1177729436
    """
    level = _level(num_pairs, alpha)
    shift = math.log1p(non_negative("gain", gain)) / positive("spread", spread)
    if level == 0:
        return 0.0
    if num_pairs <= _SIMULATED_PAIRS:
        return float(np.mean(_just_found(num_pairs, level) < shift))
    return 1 - _below(num_pairs - 1, math.sqrt(num_pairs) * shift, _critical(num_pairs, level))


def smallest_gain(num_pairs: int, spread: float, power: float = 0.8, alpha: float = 0.05) -> float:
    """Return the smallest gain that a number of pairs can tell from noise, as a fraction; see :func:`power_of`.

    Args:
        num_pairs: Number of pairs, at least 2.
        spread: Standard deviation of the log ratios of pairs.
        power: Probability of finding the gain.
        alpha: Share of changes without effect that are accepted.

    Returns:
        The gain; infinite if there are too few pairs for any p-value to be as small as ``alpha``.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of range.

    >>> round(smallest_gain(6, spread=0.05), 3), smallest_gain(4, spread=0.05)
    (0.063, inf)
    """
    level = _level(num_pairs, alpha)
    positive("spread", spread)
    open_unit("power", power)
    if level == 0:
        return math.inf
    if num_pairs <= _SIMULATED_PAIRS:
        shift = float(np.quantile(_just_found(num_pairs, level), power))
    else:
        shift = _noncentrality(num_pairs - 1, _critical(num_pairs, level), power) / math.sqrt(num_pairs)
    exponent = max(shift, 0.0) * spread
    return math.expm1(exponent) if exponent < 700 else math.inf


def pairs_needed(
    gain: float, spread: float, power: float = 0.8, alpha: float = 0.05, max_pairs: int = 1000
) -> int | None:
    """Return how many pairs a gain takes, or None if more than a maximum.

    Args:
        gain: The true gain, as a fraction; 0.1 is 1.1 times as fast.
        spread: Standard deviation of the log ratios of pairs.
        power: Probability of finding the gain.
        alpha: Share of changes without effect that are accepted.
        max_pairs: The most pairs that could be run.

    Raises:
        TypeError: An argument is not a number.
        ValueError: An argument is out of range.

    >>> (
    ...     pairs_needed(0.3, spread=0.05),
    ...     pairs_needed(0.1, spread=0.15),
    ...     pairs_needed(0.01, spread=0.3, max_pairs=100),
    ... )
    (5, 17, None)
    """
    open_unit("power", power)
    numbers = range(2, at_least("max_pairs", max_pairs, 2) + 1)
    return next((number for number in numbers if power_of(gain, number, spread, alpha) >= power), None)


def _level(num_pairs: int, alpha: float) -> float:
    """The largest p-value of so many pairs that is at most alpha, 0 if there is none."""
    at_least("num_pairs", num_pairs, 2)
    open_unit("alpha", alpha)
    # With many pairs any alpha is a possible p-value but for rounding.
    return math.floor(alpha * 2**num_pairs) / 2**num_pairs if num_pairs < 50 else alpha


@functools.lru_cache(maxsize=32)
def _just_found(num_pairs: int, level: float) -> Floats:
    """The means of log ratios of spread 1 from which on the sign-flip test of each simulation rejects, sorted."""
    patterns = np.arange(1, 2**num_pairs)
    members = (patterns >> np.arange(num_pairs)[:, None] & 1).astype(np.float64)
    members /= members.sum(axis=0)
    rank = round(level * 2**num_pairs)
    draws = np.random.default_rng(0).normal(size=(_SIMULATIONS, num_pairs))
    parts = np.array_split(draws, math.ceil(draws.shape[0] * len(patterns) / _CHUNK))
    found = [np.partition(part @ members, rank - 1, axis=-1)[:, rank - 1] for part in parts]
    return np.sort(-np.concatenate(found))


def _critical(num_pairs: int, level: float) -> float:
    """The quantile of Student's distribution."""
    return float(special().stdtrit(num_pairs - 1, 1 - level))


def _noncentrality(freedom: int, critical: float, power: float) -> float:
    """The noncentrality with which Student's test rejects with a probability."""
    low, high = 0.0, critical + 20.0
    for _ in range(60):
        middle = (low + high) / 2
        if _below(freedom, middle, critical) > 1 - power:
            low = middle
        else:
            high = middle
    return high


def _below(freedom: int, shift: float, critical: float) -> float:
    """The distribution function of the noncentral t distribution."""
    found = float(special().nctdtr(freedom, shift, critical))
    # SciPy gives NaN far from the center.
    return found if math.isfinite(found) else float(shift < critical)


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g} %"
