"""Compare pairs of runs by their time to a target, with censored times of runs that did not reach it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from composer._numbers import real_number
from composer.statistics._arguments import checked_times
from composer.statistics._special import special
from composer.statistics.bootstrap import RESAMPLES, Estimate, mean_interval
from composer.statistics.holm import SMALLEST_EFFECT, Decision, decide
from composer.statistics.paired import Ratio
from composer.statistics.sign_flip import sign_flip_test

__all__ = ["Comparison", "compare", "log_ratios", "share_interval"]

Time = float | None


@dataclass(frozen=True)
class Comparison:
    """What pairs of runs tell about a change.

    Args:
        num_pairs: Number of pairs.
        num_known: Pairs of which at least one run reached the target; the others say nothing about which is sooner.
        reached_before: Number of runs that reached the target without the change.
        reached_after: Number of runs that reached it with the change.
        ratio: How many times as fast the runs with the change reach the target, None if no run reached it. A run that
            did not counts with its limit, which draws the ratio of its pair towards 1.
        p_value: One-sided p-value of the sign-flip test; small if the change makes runs faster.
        two_sided_p_value: Small if it makes them faster or slower.
        sooner: Probability that the run with the change is the sooner one of a pair, ties counted half, among the
            pairs that are known.
        saved: Restricted mean time difference in seconds: how much sooner runs with the change are at the target, each
            run counted up to ``horizon``.
        horizon: Seconds up to which ``saved`` counts, None if every run reached the target.

    >>> str(compare([10.0, 11.0, 10.5, 9.5, 10.0, 10.0], [8.0, 8.5, 8.8, 7.5, 8.2, 7.9]))
    '1.25 times as fast [1.21, 1.28], p = 0.016, 6 pairs'
    """

    num_pairs: int
    num_known: int
    reached_before: int
    reached_after: int
    ratio: Ratio | None
    p_value: float
    two_sided_p_value: float
    sooner: Estimate
    saved: Estimate
    horizon: float | None

    def decide(
        self, p_value: float | None = None, smallest_effect: float = SMALLEST_EFFECT, alpha: float = 0.05
    ) -> Decision:
        """Return whether the change pays, does not, or whether that is undecided; see :func:`decide`.

        Args:
            p_value: The p-value adjusted for the number of methods, by default that of this comparison alone.
            smallest_effect: The smallest gain of interest, as a fraction.
            alpha: The chance at which a change without effect may be said to pay.

        >>> compare([10.0] * 6, [8.0] * 6).decide(), compare([10.0] * 6, [8.0] * 6).decide(p_value=0.2)
        (<Decision.PAYS: 'pays'>, <Decision.UNDECIDED: 'undecided'>)
        """
        p_value = self.p_value if p_value is None else p_value
        return decide(self.ratio, p_value, smallest_effect, alpha, self.reached_after - self.reached_before)

    def __str__(self) -> str:
        """The ratio with its interval and p-value, and how many runs did not reach the target."""
        if self.ratio is None:
            return f"no run reached the target, {self.num_pairs} pairs"
        low, high = (f"{end:.3g}" for end in (self.ratio.low, self.ratio.high))
        interval = f"[{low}, {high}]" if self.num_known > 1 else "(one pair: no interval)"
        missed = [
            f"{self.num_pairs - reached} of {self.num_pairs} runs {name} did not reach the target"
            for name, reached in (("before", self.reached_before), ("after", self.reached_after))
            if reached < self.num_pairs
        ]
        parts = [f"{self.ratio.value:.3g} times as fast {interval}", f"p = {self.p_value:.2g}"]
        return ", ".join([*parts, f"{self.num_pairs} pairs", *missed])


def compare(
    before: Sequence[Time],
    after: Sequence[Time],
    limit: float | Sequence[float] | None = None,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Comparison:
    """Compare times to a target of runs without and with a change, paired by seed.

    A run that did not reach the target within its limit is censored: its time is None. It is kept, since leaving such
    runs out would favor methods that sometimes fail. What is known of a pair decides how it is used:

    - both reached the target: the logarithm of the ratio of the times;
    - one did: it was sooner; the other counts with its limit in the ratio, which is a bound for this pair;
    - none did: the pair tells nothing about the ratio and about which is sooner, and counts as zero in ``saved``.

    The ratio is the geometric mean, with the interval of :func:`~composer.statistics.mean_interval` on the logarithms
    and the p-values of :func:`~composer.statistics.sign_flip_test`. The interval of ``sooner`` is that of Clopper and
    Pearson, which is conservative.

    Args:
        before: Seconds to the target of each run without the change, None where it was not reached.
        after: Seconds of the runs with the change, in the same order.
        limit: Seconds that the runs were given, one number or one for each pair (the smaller limit of its two runs).
            Times beyond it count as not reached.
        resamples: Number of bootstrap samples.
        seed: Seed of the bootstrap samples, and of random signs of more than 16 pairs.

    Raises:
        TypeError: A time or limit is not a number.
        ValueError: There are no pairs, or not as many runs before as after, a time or limit is not positive and finite,
            or a time is None without a limit.

    >>> found = compare([10.0, None, 12.0, 11.0], [8.0, 9.0, 9.0, None], limit=20.0)
    >>> found.reached_before, found.reached_after, found.sooner.value, found.saved.value, found.horizon
    (3, 3, 0.75, 1.75, 20.0)

    Papers: Royston and Parmar 2013 (restricted mean time), https://doi.org/10.1186/1471-2288-13-152; Clopper and
    Pearson 1934, https://doi.org/10.1093/biomet/26.4.404; Buyse 2010 (pairwise comparison of censored times),
    https://doi.org/10.1002/sim.3923
    """
    before, after, limits = _checked(before, after, limit)
    logs = _logs(before, after, limits)
    known = [value for value in logs if value is not None]
    ratio = None
    if known:
        logarithm = mean_interval(known, resamples, seed)
        ratio = Ratio(*(_exp(value) for value in (logarithm.value, logarithm.low, logarithm.high)))
    test = sign_flip_test(known or [0.0], seed)
    wins = sum(value > 0 for value in known) + sum(value == 0 for value in known) / 2
    censored = [end for one, two, end in zip(before, after, limits, strict=True) if one is None or two is None]
    horizon = min(censored, default=math.inf)
    saved = [
        min(math.inf if one is None else one, horizon) - min(math.inf if two is None else two, horizon)
        for one, two in zip(before, after, strict=True)
    ]
    return Comparison(
        num_pairs=len(logs),
        num_known=len(known),
        reached_before=sum(time is not None for time in before),
        reached_after=sum(time is not None for time in after),
        ratio=ratio,
        p_value=test.greater,
        two_sided_p_value=test.two_sided,
        sooner=share_interval(wins, len(known)),
        saved=mean_interval(saved, resamples, seed),
        horizon=horizon if censored else None,
    )


def log_ratios(
    before: Sequence[Time], after: Sequence[Time], limit: float | Sequence[float] | None = None
) -> list[float]:
    """Return the logarithm of the ratio of the times of each pair, as :func:`compare` uses it.

    Args:
        before: Seconds to the target of each run without the change, None where it was not reached.
        after: Seconds of the runs with the change, in the same order.
        limit: Seconds that the runs were given, one number or one for each pair.

    Returns:
        A positive number where the run with the change is faster; 0 where neither reached the target.

    Raises:
        TypeError: A time or limit is not a number.
        ValueError: As for :func:`compare`.

    >>> [round(value, 3) for value in log_ratios([2.0, None, None], [1.0, 5.0, None], limit=10.0)]
    [0.693, 0.693, 0.0]
    """
    return [0.0 if value is None else value for value in _logs(*_checked(before, after, limit))]


def share_interval(count: float, total: int) -> Estimate:
    """Return a share with its 95 % interval by Clopper and Pearson, which covers the true share at least that often.

    Args:
        count: How many of ``total``; a half for a tie.
        total: The number of trials; with none, the interval is everything.

    Raises:
        TypeError: An argument is not a number.
        ValueError: ``count`` is not between 0 and ``total``.

    >>> str(share_interval(6, 6))
    '1 [0.5407, 1]'

    Paper: Clopper and Pearson 1934, https://doi.org/10.1093/biomet/26.4.404
    """
    if not 0 <= real_number("count", count) <= total:
        raise ValueError(f"count must be between 0 and total = {total}, but got {count!r}.")
    if total == 0:
        return Estimate(0.5, 0.0, 1.0)
    inverse = special().betaincinv
    low = float(inverse(count, total - count + 1, 0.025)) if count > 0 else 0.0
    high = float(inverse(count + 1, total - count, 0.975)) if count < total else 1.0
    return Estimate(count / total, low, high)


def _checked(
    before: Sequence[Time], after: Sequence[Time], limit: float | Sequence[float] | None
) -> tuple[list[Time], list[Time], list[float]]:
    """The times, None for those beyond the limit of their pair, and the limits."""
    if len(before) != len(after) or not len(before):
        raise ValueError(
            f"before and after must have the same number of runs, at least 1; got {len(before)} and {len(after)}."
        )
    if limit is None:
        limits = [math.inf] * len(before)
    else:
        given = list(limit) if isinstance(limit, Sequence | np.ndarray) else [limit] * len(before)
        if len(given) != len(before):
            raise ValueError(f"limit must be one number or one for each of {len(before)} pairs, but has {len(given)}.")
        limits = [real_number("limit", end) for end in given]
        wrong = [end for end in limits if not 0 < end < math.inf]
        if wrong:
            raise ValueError(f"limit must be positive and finite, but got {wrong[0]!r}.")
    return checked_times("before", before, limits), checked_times("after", after, limits), limits


def _logs(before: Sequence[Time], after: Sequence[Time], limits: Sequence[float]) -> list[float | None]:
    """The logarithm of the ratio of each pair, None if neither reached the target."""
    return [
        None
        if one is None and two is None
        else math.log(end if one is None else one) - math.log(end if two is None else two)
        for one, two, end in zip(before, after, limits, strict=True)
    ]


def _exp(value: float) -> float:
    """The exponential, infinite where it is too large for a float."""
    return math.exp(value) if value < 700 else math.inf
