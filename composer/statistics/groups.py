"""Compare two groups of runs with different seeds by a metric: difference and ratio, with intervals and p-values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from composer._text import one_of
from composer.statistics._arguments import Floats, at_least, finite
from composer.statistics._special import special
from composer.statistics.bootstrap import RESAMPLES, Estimate, bca_ends, resample, stretched
from composer.statistics.paired import Ratio

__all__ = ["MeanDifference", "mean_difference", "student_p_value"]

Indices = npt.NDArray[np.intp]

_Z = NormalDist().inv_cdf(0.975)
# The most ways of choosing a group that are enumerated, and the number of random ones if there are more.
_EXACT_CHOICES = 20_000
_RANDOM = 19_999
# Values that differ by less, relative to the largest, are the same but for rounding.
_TIE = 1e-12


@dataclass(frozen=True)
class MeanDifference:
    """How far two groups of runs differ.

    Args:
        before: Mean (or median) of the first group.
        after: The same of the second.
        num_before: Number of runs of the first group.
        num_after: Number of runs of the second.
        difference: ``after - before``.
        ratio: ``after / before``, None if a value is not positive, or the ratio is no finite number.
        welch_p_value: Two-sided p-value of Welch's test of the means; None for medians, for a single run, and if the
            values of each group are all the same.
        permutation_p_value: Two-sided p-value of a permutation test.

    >>> print(mean_difference([0.90, 0.91, 0.92], [0.94, 0.95, 0.96]))
    +0.04 [0.01687, 0.06313], p = 0.1, 3 and 3 runs
    >>> print(mean_difference([0.90], [0.94]))
    +0.04 (no interval: that takes 2 runs on each side), 1 and 1 runs
    """

    before: float
    after: float
    num_before: int
    num_after: int
    difference: Estimate
    ratio: Ratio | None
    welch_p_value: float | None
    permutation_p_value: float

    def __str__(self) -> str:
        """The difference with its interval and p-value, or that there is no interval."""
        runs = f"{self.num_before} and {self.num_after} runs"
        value, low, high = self.difference.value, self.difference.low, self.difference.high
        if min(self.num_before, self.num_after) == 1:
            return f"{value:+.4g} ({self.limitation}), {runs}"
        interval = f"[{low:.4g}, {high:.4g}]" if self.difference.has_interval else f"({self.limitation})"
        return f"{value:+.4g} {interval}, p = {self.permutation_p_value:.2g}, {runs}"

    @property
    def limitation(self) -> str:
        """Why there is no interval; empty if there is one."""
        if self.difference.has_interval:
            return ""
        if min(self.num_before, self.num_after) == 1:
            return "no interval: that takes 2 runs on each side"
        return "no interval: the values of each group are all the same"


def mean_difference(
    before: Sequence[float],
    after: Sequence[float],
    statistic: str = "mean",
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> MeanDifference:
    """Compare two groups of runs whose seeds are not paired.

    The intervals are those of the BCa bootstrap of both groups, stretched for small groups by

        t(df) * sqrt((s1^2 / n1 + s2^2 / n2) / (s1^2 (n1 - 1) / n1^2 + s2^2 (n2 - 1) / n2^2)) / 1.96

    with Welch's degrees of freedom df; for the ratio, of the logarithm. A single run on a side has no interval: nothing
    is known of how far another seed would be. Nor have groups whose values are all the same, as the accuracies of two
    runs on a few samples may be by chance; the permutation test still holds for these.

    The permutation test assumes the same spread in groups of different sizes: if 3 runs have three times the standard
    deviation of 12 others, it rejects 28 % of groups with equal means at 5 %, and Welch's test 7 %. Of equal sizes, 5
    and 5 runs, it rejects 7 % even with five times the spread.

    Args:
        before: The metric of each run of the first group.
        after: The metric of each run of the second.
        statistic: ``"mean"`` or ``"median"``.
        resamples: Number of bootstrap samples.
        seed: Seed of the bootstrap samples, and of the permutations if there are more than 20,000.

    Raises:
        TypeError: A value is not a number.
        ValueError: A group is empty, a value is not finite, or ``statistic`` is not known.

    >>> found = mean_difference([10.0, 11.0, 12.0, 13.0], [8.0, 8.5, 9.0, 9.5])
    >>> round(found.difference.value, 2), round(found.ratio.value, 3), round(found.permutation_p_value, 3)
    (-2.75, 0.761, 0.029)

    Papers: Welch 1947, https://doi.org/10.1093/biomet/34.1-2.28; Efron 1987 (BCa),
    https://doi.org/10.1080/01621459.1987.10478410
    """
    one_of("statistic", statistic, ("mean", "median"))
    at_least("resamples", resamples, 2)
    one, two = (np.sort(finite(name, values)) for name, values in (("before", before), ("after", after)))
    first, second = _statistic(one, statistic), _statistic(two, statistic)
    positive = bool(one[0] > 0 and two[0] > 0) and 0 < second / first < math.inf
    difference = Estimate(second - first, -math.inf, math.inf)
    ratio = Ratio(second / first, 0.0, math.inf) if positive else None
    is_spread = min(len(one), len(two)) > 1 and not (_is_constant(one) and _is_constant(two))
    if is_spread:
        samples = resample(one, statistic, resamples, seed), resample(two, statistic, resamples, seed + 1)
        difference = _interval(one, two, statistic, samples, logarithm=False)
        if positive:
            logarithm = _interval(one, two, statistic, samples, logarithm=True)
            ratio = Ratio(*(math.exp(min(end, 700.0)) for end in (logarithm.value, logarithm.low, logarithm.high)))
    welch = _welch(one, two) if statistic == "mean" and is_spread else None
    permutation = _permutation(one, two, statistic, seed)
    return MeanDifference(first, second, len(one), len(two), difference, ratio, welch, permutation)


def student_p_value(values: Sequence[float]) -> float | None:
    """Return the two-sided p-value of Student's t-test that the mean is zero, such as that of differences of pairs.

    Args:
        values: The values.

    Returns:
        The p-value; None without a spread: of a single value, or if all are the same.

    Raises:
        TypeError: A value is not a number.
        ValueError: There is no value, or one is not finite.

    >>> round(student_p_value([0.1, 0.2, 0.3]), 4)
    0.0742

    Paper: Student 1908, https://doi.org/10.1093/biomet/6.1.1
    """
    ordered = finite("values", values)
    number, mean = len(ordered), float(np.mean(ordered))
    if _is_constant(np.sort(ordered)):
        return None
    error = float(np.std(ordered, ddof=1)) / math.sqrt(number)
    return 2 * float(special().stdtr(number - 1, -abs(mean) / error))


def _is_constant(ordered: Floats) -> bool:
    """Return whether sorted values are all the same, but for rounding."""
    return bool(ordered[-1] - ordered[0] <= _TIE * np.max(np.abs(ordered)))


def _statistic(values: Floats, statistic: str) -> float:
    """The mean or median of sorted values."""
    return math.fsum(values) / len(values) if statistic == "mean" else float(np.median(values))


def _interval(one: Floats, two: Floats, statistic: str, samples: tuple[Floats, Floats], logarithm: bool) -> Estimate:
    """The difference of a statistic or of its logarithm, with its interval."""
    scaled = np.log if logarithm else np.asarray
    first, second = (_statistic(values, statistic) for values in (one, two))
    value = float(scaled(second) - scaled(first))
    left_out = [scaled(_left_out(values, statistic)) for values in (one, two)]
    influences = np.concatenate((-_influences(left_out[0]), _influences(left_out[1])))
    ends = bca_ends(value, scaled(samples[1]) - scaled(samples[0]), influences)
    # The deviation of the logarithm is that of the value relative to it.
    relative = (one / first, two / second) if logarithm else (one, two)
    return stretched(value, ends, _widening(_squared_errors(*_scaled(*relative)), (len(one), len(two))))


def _left_out(values: Floats, statistic: str) -> Floats:
    """The statistic without each value in turn."""
    return np.array([_statistic(np.delete(values, number), statistic) for number in range(len(values))])


def _influences(left_out: Floats) -> Floats:
    """How much each value moves a statistic, from the statistic without it."""
    number = len(left_out)
    return (number - 1) / number * (np.mean(left_out) - left_out)


def _scaled(one: Floats, two: Floats) -> tuple[Floats, Floats]:
    """The values relative to the largest, so that their squares are finite."""
    largest = max(float(np.max(np.abs(values))) for values in (one, two))
    return one / largest, two / largest


def _squared_errors(one: Floats, two: Floats) -> list[float]:
    """The squared standard error of the mean of each group."""
    return [float(np.var(values, ddof=1)) / len(values) for values in (one, two)]


def _widening(variances: Sequence[float], numbers: tuple[int, int]) -> float:
    """The factor by which the interval of small groups is stretched."""
    total = sum(variances)
    shrunk = sum(variance * (number - 1) / number for variance, number in zip(variances, numbers, strict=True))
    return float(special().stdtrit(_freedom(variances, numbers), 0.975)) * math.sqrt(total / shrunk) / _Z


def _freedom(variances: Sequence[float], numbers: tuple[int, int]) -> float:
    """The degrees of freedom of Welch's test, from the variances of the means."""
    shares = [variance / sum(variances) for variance in variances]
    return 1 / sum(share**2 / (number - 1) for share, number in zip(shares, numbers, strict=True))


def _welch(one: Floats, two: Floats) -> float:
    """The two-sided p-value of Welch's test."""
    one, two = _scaled(one, two)
    variances = _squared_errors(one, two)
    gap = abs(float(np.mean(two) - np.mean(one)))
    freedom = _freedom(variances, (len(one), len(two)))
    return 2 * float(special().stdtr(freedom, -gap / math.sqrt(sum(variances))))


def _permutation(one: Floats, two: Floats, statistic: str, seed: int) -> float:
    """The two-sided p-value of a permutation test, the observed groups counted among the permutations."""
    together = np.concatenate((one, two))
    size = len(one)
    reduce = np.mean if statistic == "mean" else np.median
    gaps = np.concatenate(
        [
            np.abs(reduce(together[orders[:, size:]], axis=-1) - reduce(together[orders[:, :size]], axis=-1))
            for orders in _orders(len(together), size, seed)
        ]
    )
    tie = _TIE * float(np.max(np.abs(together)))
    return float(np.mean(gaps >= gaps[0] - tie))


def _orders(number: int, size: int, seed: int) -> Iterator[Indices]:
    """Orders of the numbers below ``number`` in parts, of which the first ``size`` are a group; the given one first."""
    if math.comb(number, size) <= _EXACT_CHOICES:
        chosen = np.array(list(itertools.combinations(range(number), size)))
        is_left = np.ones((len(chosen), number), dtype=bool)
        np.put_along_axis(is_left, chosen, values=False, axis=1)
        yield np.hstack((chosen, np.nonzero(is_left)[1].reshape(len(chosen), number - size)))
        return
    given = np.arange(number)[None]
    yield given
    generator = np.random.default_rng(seed)
    rows = max(1, 1_000_000 // number)
    for done in range(0, _RANDOM, rows):
        yield generator.permuted(np.repeat(given, min(rows, _RANDOM - done), axis=0), axis=1)
