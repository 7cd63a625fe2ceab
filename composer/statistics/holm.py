"""Multiple comparisons (Holm's adjusted p-values) and the decision whether a method pays."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from composer._numbers import in_unit_interval, non_negative
from composer.statistics._arguments import open_unit
from composer.statistics.paired import Ratio

__all__ = ["SMALLEST_EFFECT", "Decision", "decide", "holm_adjusted"]

# Gains below this fraction are not worth a method.
SMALLEST_EFFECT = 0.03


class Decision(StrEnum):
    """Whether a method pays.

    >>> str(Decision.DOES_NOT)
    'does not'
    """

    PAYS = "pays"
    DOES_NOT = "does not"
    UNDECIDED = "undecided"


def holm_adjusted(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the number of tests, by Holm's step-down method.

    Rejecting where the adjusted value is at most alpha makes a false rejection among all tests at most as likely as
    alpha, however the tests depend on each other. With the p-values in ascending order,

        adjusted(i) = max over j <= i of min(1, (m - j + 1) p(j))

    Args:
        p_values: The p-value of each of the m tests.

    Returns:
        The adjusted p-values, in the given order.

    Raises:
        TypeError: A p-value is not a number.
        ValueError: A p-value is outside [0, 1].

    >>> holm_adjusted([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]

    Paper: Holm 1979, A Simple Sequentially Rejective Multiple Test Procedure, https://www.jstor.org/stable/4615733
    """
    checked = [in_unit_interval(f"p_values[{number}]", value) for number, value in enumerate(p_values)]
    adjusted = [0.0] * len(checked)
    largest = 0.0
    for rank, number in enumerate(sorted(range(len(checked)), key=checked.__getitem__)):
        largest = max(largest, min(1.0, (len(checked) - rank) * checked[number]))
        adjusted[number] = largest
    return adjusted


def decide(
    ratio: Ratio | None,
    p_value: float,
    smallest_effect: float = SMALLEST_EFFECT,
    alpha: float = 0.05,
    more_reached: int = 0,
) -> Decision:
    """Return whether a method pays, does not, or whether that is undecided.

    - ``does not``: the whole interval of the ratio lies below the smallest effect of interest.
    - ``pays``: the adjusted p-value is at most ``alpha``, the interval lies above 1, and the estimate reaches the
      smallest effect of interest.
    - ``undecided``: everything else; more pairs may decide it.

    Where a run missed its target, the ratio is known on one side only: a method with which more runs missed it than
    without cannot pay, and one with which fewer did is not said not to pay.

    Args:
        ratio: How many times as fast the runs are with the method, None if nothing is known.
        p_value: One-sided p-value that they are faster, adjusted for the number of methods (:func:`holm_adjusted`).
        smallest_effect: The smallest gain of interest, as a fraction.
        alpha: The chance at which a method without effect may be said to pay.
        more_reached: How many more runs reached the target with the method than without it.

    Raises:
        TypeError: An argument is not a number.
        ValueError: ``p_value`` is outside [0, 1], ``smallest_effect`` is negative, or ``alpha`` is not in (0, 1).

    >>> decide(Ratio(1.3, 1.2, 1.4), p_value=0.01), decide(Ratio(1.3, 0.9, 1.7), p_value=0.2)
    (<Decision.PAYS: 'pays'>, <Decision.UNDECIDED: 'undecided'>)
    >>> decide(Ratio(0.98, 0.95, 1.01), p_value=0.9)
    <Decision.DOES_NOT: 'does not'>

    Paper: Lakens 2017 (equivalence tests and the smallest effect of interest), https://doi.org/10.1177/1948550617697177
    """
    in_unit_interval("p_value", p_value)
    least = 1 + non_negative("smallest_effect", smallest_effect)
    open_unit("alpha", alpha)
    if ratio is None:
        return Decision.UNDECIDED
    if ratio.high < least and more_reached <= 0:
        return Decision.DOES_NOT
    pays = p_value <= alpha and ratio.low > 1 and ratio.value >= least and more_reached >= 0
    return Decision.PAYS if pays else Decision.UNDECIDED
