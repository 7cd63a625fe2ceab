"""How groups of runs differ from the first: rows of values with differences, intervals and p-values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from composer._text import plural
from composer.statistics.bootstrap import Estimate
from composer.statistics.comparison import compare, log_ratios
from composer.statistics.crossing import Crossing
from composer.statistics.groups import mean_difference, student_p_value
from composer.statistics.holm import holm_adjusted
from composer.statistics.paired import Ratio

__all__ = ["PERMUTATION", "Difference", "Row", "censored_row", "row"]

_ALPHA = 0.05
PERMUTATION = "a permutation test"
"""What ``Difference.verdict_test`` is where groups have enough runs."""
# Runs of the same number of steps differ in time by a few percent.
_SAME_LENGTH = 1.05


@dataclass(frozen=True)
class _PValues:
    """The two-sided p-values of one difference.

    Attributes:
        permutation: That of a permutation test, which assumes no distribution.
        least: The smallest that this test can give with so few runs.
        student: That of Student's t-test; None if its spread would be that of times which were cut off, or there is
            none, as the values are all the same.
        test: What this t-test is called.
    """

    permutation: float
    least: float
    student: float | None
    test: str


@dataclass(frozen=True)
class Difference:
    """How far a group differs from the first.

    Attributes:
        estimate: Mean of the group minus that of the first, with its 95 % interval; None if it cannot be told, or a
            run did not reach the target.
        ratio: Mean of the group divided by that of the first; of times to a target in pairs of the same seed, how many
            times as long. None if it cannot be told.
        p_value: Two-sided p-value of a permutation test, adjusted for the number of groups (Holm); None without
            repetitions.
        note: What limits it, such as that there is one run on a side.
        verdict_p_value: The p-value that decides whether it is more than noise: ``p_value``, or if the groups have too
            few runs for a permutation test to reach 5 %, that of Student's t-test, adjusted likewise; without a spread
            within the groups there is no such test, and it is ``p_value``.
        verdict_test: The test that ``verdict_p_value`` is of, such as "Welch's test"; empty without one.
        more_reached: How many more runs of the group than of the first reached the target.

    >>> Difference(None, None, None, "1 of 3 runs did not reach the target").estimate is None
    True
    """

    estimate: Estimate | None
    ratio: Ratio | None = None
    p_value: float | None = None
    note: str = ""
    verdict_p_value: float | None = None
    verdict_test: str = ""
    more_reached: int = 0

    @property
    def sign(self) -> int:
        """1 if the whole interval is above that of no difference, -1 if below, 0 if neither.

        Without an interval it is 0; but where runs do not differ within groups, the value itself counts, as the
        permutation test takes it.
        """
        if self.estimate is not None:
            is_known = self.estimate.has_interval or self.verdict_test != PERMUTATION
            low, high = (self.estimate.low, self.estimate.high) if is_known else (self.estimate.value,) * 2
            return (low > 0) - (high < 0)
        if self.ratio is not None:
            return (self.ratio.low > 1) - (self.ratio.high < 1)
        return 0

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return self.ratio is not None if self.estimate is None else self.estimate.has_interval


@dataclass(frozen=True)
class Row:
    """A measure of all groups.

    Attributes:
        name: What is measured.
        unit: Its unit, such as "s"; empty for a metric.
        larger_is_better: Whether larger values are better; None if unknown.
        values: The value of each run of each group; NaN or None where there is none.
        differences: Of each group but the first.

    >>> row("accuracy", "", True, [[0.5], [0.75]]).differences[0].estimate.value
    0.25
    """

    name: str
    unit: str
    larger_is_better: bool | None
    values: list[list[float | None]]
    differences: list[Difference]

    def means(self) -> list[float | None]:
        """Return the mean of each group; None if a run has no finite value."""
        return [
            math.fsum(known) / len(known) if len(known) == len(some) else None
            for some in self.values
            for known in [[value for value in some if value is not None and math.isfinite(value)]]
        ]

    def better(self, difference: Difference) -> bool | None:
        """Return whether a group is better than the first by more than noise, worse, or None if neither can be told.

        Where runs missed the target, the side of which more did is never the better one, as in
        :func:`composer.statistics.decide`.

        Args:
            difference: The difference of the group.
        """
        if self.larger_is_better is None or not difference.sign:
            return None
        if difference.verdict_p_value is not None and difference.verdict_p_value > _ALPHA:
            return None
        is_better = (difference.sign > 0) == self.larger_is_better
        more_missed = -difference.more_reached if is_better else difference.more_reached
        return None if more_missed > 0 else is_better

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the row in JSON types.

        Args:
            names: Names of the groups.
        """
        means = self.means()
        return {
            "measure": self.name,
            "unit": self.unit,
            "larger_is_better": self.larger_is_better,
            "groups": {
                name: {"values": [_number(value) for value in some], "mean": mean}
                for name, some, mean in zip(names, self.values, means, strict=True)
            },
            "differences": {
                name: {
                    "value": None if one.estimate is None else one.estimate.value,
                    "interval": _interval(one.estimate),
                    "ratio": None if one.ratio is None else one.ratio.value,
                    "ratio_interval": _interval(one.ratio),
                    "p_value": one.p_value,
                    "verdict_p_value": one.verdict_p_value,
                    "verdict_test": one.verdict_test,
                    "better": self.better(one),
                    "note": one.note,
                }
                for name, one in zip(names[1:], self.differences, strict=True)
            },
        }


def row(name: str, unit: str, larger_is_better: bool | None, values: Sequence[Sequence[float | None]]) -> Row:
    """Return a row of means, with the differences of the groups from the first.

    Args:
        name: What is measured.
        unit: Its unit.
        larger_is_better: Whether larger values are better; None if unknown.
        values: The value of each run of each group.

    >>> row("accuracy", "", True, [[0.5, 0.6], [0.75, float("nan")]]).differences[0].note
    'a run has no finite value, which the mean cannot leave out'
    """
    lists = [list(some) for some in values]
    return Row(name, unit, larger_is_better, lists, _adjusted(*(_unpaired(lists[0], some) for some in lists[1:])))


def censored_row(name: str, groups: Sequence[Sequence[Crossing | None]], seeds: Sequence[Sequence[int | None]]) -> Row:
    """Return the row of the time to a target, where some runs may not have reached it.

    Groups that have the same seeds are compared in pairs, with runs that did not reach the target; other groups only if
    all of their runs did, since leaving runs out would favor a group that sometimes fails.

    Args:
        name: What is measured.
        groups: When each run of each group reached the target; None if its log has no times.
        seeds: The seed of each run; None if unknown.

    >>> runs = [[Crossing(9.0, 8.0, 10.0, False, 20.0)], [Crossing(None, 20.0, math.inf, False, 20.0)]]
    >>> censored_row("time to target", runs, [[1], [1]]).differences[0].note
    'not reached by all runs'
    """
    values = [[None if one is None else one.time for one in some] for some in groups]
    differences: list[tuple[Difference, _PValues | None]] = []
    for some, own in zip(groups[1:], seeds[1:], strict=True):
        paired = _paired(groups[0], some, seeds[0], own)
        if paired is None:
            before, after = ([None if one is None else one.time for one in side] for side in (groups[0], some))
            paired = _unpaired(before, after, "not reached by all runs")
        differences.append(paired)
    return Row(name, "s", False, values, _adjusted(*differences))


def _paired(
    before: Sequence[Crossing | None],
    after: Sequence[Crossing | None],
    seeds: Sequence[int | None],
    others: Sequence[int | None],
) -> tuple[Difference, _PValues | None] | None:
    """Return the difference of runs in pairs of the same seed, with its p-values; None if they are no such pairs."""
    by_seed = [
        {seed: one for seed, one in zip(some, side, strict=True) if seed is not None and one is not None}
        for some, side in ((seeds, before), (others, after))
    ]
    if by_seed[0].keys() != by_seed[1].keys() or not 2 <= len(by_seed[0]) == len(before) == len(after):
        return None
    pairs = [(by_seed[0][seed], by_seed[1][seed]) for seed in by_seed[0]]
    if any(one.time == 0 for pair in pairs for one in pair):
        return None  # reached before training; a ratio of times means nothing
    times = [one.time for one, _ in pairs], [two.time for _, two in pairs]
    reached = [sum(time is not None for time in side) for side in times]
    missed = 2 * len(pairs) - sum(reached)
    # Until the shorter run of a pair ended, both had the same chance. If all runs reached the target, their times are
    # known, whichever ended first.
    limits = [min(one.limit, two.limit) if missed else max(one.limit, two.limit) for one, two in pairs]
    if any(limit <= 0 for limit in limits):
        return None
    found = compare(*times, limits)
    if found.ratio is None:
        return Difference(None, note=_unknown(reached, len(pairs)), more_reached=reached[1] - reached[0]), None
    saved = found.saved
    # Times that are cut off say little of seconds; the ratio, in which such a run counts with its length, is a bound.
    estimate = None if missed else Estimate(-saved.value, -saved.high, -saved.low)
    ratio = Ratio(1 / found.ratio.value, 1 / found.ratio.high, _inverse(found.ratio.low))
    # Pairs of which no run reached the target tell nothing.
    known = [
        (ratio, any(_is_cut(one, limit) for one in pair))
        for ratio, pair, limit in zip(log_ratios(*times, limits), pairs, limits, strict=True)
        if any(one.time is not None and one.time <= limit for one in pair)
    ]
    # If runs end soon after the target, times cut off there are all alike, whatever they would have been.
    student = None if any(is_cut for _, is_cut in known) else student_p_value([ratio for ratio, _ in known])
    p_values = _PValues(found.two_sided_p_value, 2.0 ** (1 - found.num_known), student, "Student's t-test of pairs")
    note = _pairs_note(reached, len(pairs), found.num_known)
    return Difference(estimate, ratio, note=note, more_reached=reached[1] - reached[0]), p_values


def _is_cut(run: Crossing, limit: float) -> bool:
    """Return whether a run counts with the length of the other run of its pair, which ended before."""
    return run.limit > _SAME_LENGTH * limit if run.time is None else run.time > limit


def _unknown(reached: Sequence[int], number: int) -> str:
    """Return why no pair tells which run was sooner."""
    if not any(reached):
        return "not reached by any run"
    return (
        f"reached by {reached[1]} of {number} runs and by {reached[0]} of {number} of the baseline, but never before "
        f"the other run of the pair ended"
    )


def _pairs_note(reached: Sequence[int], number: int, num_known: int) -> str:
    """Return how many pairs there are, and what limits them."""
    notes = [f"{number} pairs of the same seed"]
    missed = 2 * number - sum(reached)
    if missed:
        counts = f" ({number - reached[1]} of this group, {number - reached[0]} of the baseline)"
        notes.append(f"{missed} of {2 * number} runs did not reach it and count with their length{counts}")
    if num_known < number:
        notes.append(f"of {plural(number - num_known, 'pair')} it is not known which run was sooner")
    return "; ".join(notes)


def _inverse(value: float) -> float:
    return math.inf if value == 0 else 1 / value


def _unpaired(
    before: Sequence[float | None],
    after: Sequence[float | None],
    missing: str = "a run has no finite value, which the mean cannot leave out",
) -> tuple[Difference, _PValues | None]:
    """Return the difference of the means of two groups, with its p-values; None without an interval."""
    sides = [[value for value in some if value is not None and math.isfinite(value)] for some in (before, after)]
    if len(sides[0]) < len(before) or len(sides[1]) < len(after):
        return Difference(None, note=missing), None
    found = mean_difference(sides[0], sides[1])
    if min(len(before), len(after)) == 1:
        return Difference(found.difference, found.ratio, note=found.limitation), None
    least = 2 / math.comb(len(before) + len(after), len(before))
    p_values = _PValues(found.permutation_p_value, least, found.welch_p_value, "Welch's test")
    return Difference(found.difference, found.ratio, note=found.limitation), p_values


def _adjusted(*differences: tuple[Difference, _PValues | None]) -> list[Difference]:
    """Return differences with p-values adjusted for their number."""
    known = [one for _, one in differences if one is not None]
    permutation = holm_adjusted([one.permutation for one in known])
    # A few runs have few permutations: however far they differ, more groups would hide it.
    is_enough = all(one.least <= _ALPHA / len(known) for one in known)
    student = [None if is_enough else one.student for one in known]
    tests = [PERMUTATION if value is None else one.test for value, one in zip(student, known, strict=True)]
    verdict = holm_adjusted(
        [one.permutation if value is None else value for value, one in zip(student, known, strict=True)]
    )
    adjusted = iter(zip(permutation, verdict, tests, strict=True))
    found: list[Difference] = []
    for difference, p_values in differences:
        p_value, deciding, test = (None, None, "") if p_values is None else next(adjusted)
        found.append(replace(difference, p_value=p_value, verdict_p_value=deciding, verdict_test=test))
    return found


def _interval(one: Estimate | Ratio | None) -> list[float] | None:
    if one is None or not (math.isfinite(one.low) and math.isfinite(one.high)):
        return None
    return [one.low, one.high]


def _number(value: float | None) -> float | str | None:
    """Return a number that JSON can express; NaN and infinity as text."""
    return value if value is None or math.isfinite(value) else str(value)
