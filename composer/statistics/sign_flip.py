"""Sign-flip permutation test of paired differences: exact for up to 16 pairs, Monte Carlo for more."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from composer.statistics._arguments import Floats, finite

__all__ = ["EXACT_PAIRS", "SignFlipTest", "flipped_sums", "sign_flip_test", "tie_width"]

# The most pairs of which all combinations of signs are enumerated, and the number of random ones for more pairs.
EXACT_PAIRS = 16
_RANDOM = 99_999


@dataclass(frozen=True)
class SignFlipTest:
    """The p-values of a sign-flip test.

    Args:
        greater: One-sided p-value; small if the mean is greater than zero.
        less: One-sided p-value; small if the mean is less than zero.
        two_sided: Small if the mean differs from zero in either direction.
        exact: Whether all combinations of signs were enumerated.

    >>> sign_flip_test([1.0, 2.0, 3.0]).exact
    True
    """

    greater: float
    less: float
    two_sided: float
    exact: bool


def sign_flip_test(differences: Sequence[float], seed: int = 0) -> SignFlipTest:
    """Return how often random signs give a mean as extreme as that of paired differences.

    If a method does nothing, the two runs of a pair are exchangeable and each difference is as likely to have the
    opposite sign. No distribution is assumed. All 2^n combinations of signs are enumerated for up to 16 pairs; of more,
    99,999 random ones are drawn, and the observed one is counted with them, so that the test never rejects too often.

    With n pairs no p-value is below 2^-n: 1/64 with 6 pairs, 1/256 with 8.

    Args:
        differences: Differences of pairs, such as logarithms of ratios of times.
        seed: Seed of the random signs.

    Raises:
        TypeError: A difference is not a number.
        ValueError: There is no difference, or one is not finite.

    >>> sign_flip_test([0.1, 0.2, 0.3, 0.4, 0.5, 0.6]).greater
    0.015625

    Papers: Fisher 1935, The Design of Experiments, section 21; Phipson and Smyth 2010 (the observed one counts),
    https://doi.org/10.2202/1544-6115.1585
    """
    values = finite("differences", differences)
    exact = len(values) <= EXACT_PAIRS
    *_, sums = flipped_sums(values, exact, seed)
    tie = tie_width(values)
    return SignFlipTest(
        greater=float(np.mean(sums >= sums[0] - tie)),
        less=float(np.mean(sums <= sums[0] + tie)),
        two_sided=float(np.mean(np.abs(sums) >= abs(sums[0]) - tie)),
        exact=exact,
    )


def flipped_sums(values: Floats, exact: bool, seed: int) -> Iterator[Floats]:
    """Yield, after each value, the sums of all values so far under each combination of signs.

    The first sum is always that of the observed signs. In an exact enumeration the sums double in number, and sum i
    extends the sum i modulo the earlier number.

    Args:
        values: The differences of pairs, (n,).
        exact: Whether to enumerate all combinations of signs.
        seed: Seed of the random signs otherwise.

    >>> [sums.tolist() for sums in flipped_sums(np.array([1.0, 2.0]), exact=True, seed=0)]
    [[1.0, -1.0], [3.0, 1.0, -1.0, -3.0]]
    """
    generator = np.random.default_rng(seed)
    sums: Floats = np.zeros(1 if exact else _RANDOM + 1)
    for value in values:
        if exact:
            sums = np.concatenate((sums + value, sums - value))
        else:
            signs = np.where(generator.random(len(sums)) < 0.5, -1.0, 1.0)
            signs[0] = 1.0
            sums = sums + signs * value
        yield sums


def tie_width(values: Floats) -> float:
    """Return the difference below which two sums of signed values are equal but for rounding.

    Args:
        values: The differences of pairs.

    >>> tie_width(np.array([0.5, -0.5]))
    1e-12
    """
    return 1e-12 * float(np.sum(np.abs(values)))
