"""Attribution: what each part of a confirmed combination contributes (leave-one-out), and whether parts interact."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from composer.exploration.confirmation import Arms
from composer.exploration.curves import time_to_target
from composer.exploration.paired_runs import PairedRuns, interval_json, with_holm
from composer.exploration.race import replaced
from composer.exploration.trajectory import Trajectory
from composer.exploration.variant import Variant
from composer.statistics.bootstrap import Estimate, mean_interval

__all__ = ["Attribution", "Contribution", "Interaction", "attribute", "break_even"]


@dataclass(frozen=True)
class Contribution:
    """What a part of a combination contributes.

    Args:
        part: The part.
        effect: The combination without the part compared with the whole one.

    >>> Contribution(Variant("EMA"), None).effect is None
    True
    """

    part: Variant
    effect: PairedRuns | None


@dataclass(frozen=True)
class Interaction:
    """How far the effects of two parts differ from what each has without the other.

    Args:
        parts: The parts.
        effect: The factor by which both together are faster than the product of their speeds, or what both together add
            to the sum of their differences; with its interval.
        num_pairs: Number of pairs.

    >>> one = Interaction((Variant("EMA"), Variant("SAM")), Estimate(1.02, 0.95, 1.1), 8)
    >>> one.effect.low
    0.95
    """

    parts: tuple[Variant, Variant]
    effect: Estimate
    num_pairs: int


@dataclass(frozen=True)
class Attribution:
    """The contributions of the parts of a combination.

    Args:
        contributions: One for each part, the largest first.
        interaction: That of the two strongest parts; None if there are fewer, or there was no time.

    >>> Attribution(()).interaction is None
    True
    """

    contributions: tuple[Contribution, ...]
    interaction: Interaction | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the attribution in JSON types."""
        both = self.interaction
        return {
            "contributions": [
                {"part": one.part.name, "effect": None if one.effect is None else one.effect.to_json()}
                for one in self.contributions
            ],
            "interaction": None
            if both is None
            else {
                "parts": [part.name for part in both.parts],
                "effect": interval_json(both.effect),
                "pairs": both.num_pairs,
            },
        }


def attribute(arms: Arms, tuned: Variant, winner: PairedRuns) -> Attribution:
    """Return what each part of a confirmed combination contributes.

    Each part is left out in turn, with fresh seeds, and the combination is compared with what is left (p-values
    adjusted by Holm). With the seeds of the confirmation, parts that do nothing would seem to pay where luck has helped
    the combination. All are trained with a seed before the next one, so that a host that becomes slower hits them
    alike. Of a single part, the confirmation has said it already. The interaction of the two strongest parts
    a and b of a combination is

        T(without a) T(without b) / (T(with both) T(without both))

    Args:
        arms: What trains.
        tuned: The tuned baseline.
        winner: The confirmed combination, compared with the tuned baseline.

    >>> from composer.exploration.variant import BASELINE
    >>> from composer.statistics.holm import Decision
    >>> winner = PairedRuns(BASELINE, Variant("EMA"), 8, 0.01, 0.01, Decision.PAYS)
    >>> attribute(None, BASELINE, winner).contributions[0].part.name
    'EMA'
    """
    parts = [one for one in winner.after.single if one not in tuned.single]
    if len(parts) == 1:
        return Attribution((Contribution(parts[0], winner),))
    arms = arms.fresh()
    arms.runner.up_to(arms.runner.spent + arms.plan.attribution)
    without = {part: replaced(winner.after, part, tuned) for part in parts}
    pairs = arms.plan.pairs
    measured: list[Variant] = []
    for part in parts:
        if arms.fits([winner.after, *(without[one] for one in (*measured, part))], pairs):
            measured.append(part)
    trained = [winner.after, *(without[part] for part in measured)] if measured else []
    if arms.train("attribution", trained, pairs) < pairs:
        measured = []
    effects = with_holm([arms.compare(without[part], winner.after, pairs) for part in measured])
    found = [Contribution(part, effect) for part, effect in zip(measured, effects, strict=True)]
    found.sort(key=lambda one: -_size(one))
    missing = [Contribution(part, None) for part in parts if part not in measured]
    interaction = _interaction(arms, tuned, winner.after, found)
    arms.runner.up_to(math.inf)
    return Attribution((*found, *missing), interaction)


def _size(contribution: Contribution) -> float:
    effect = contribution.effect.effect if contribution.effect is not None else None
    return -math.inf if effect is None else effect.value


def _interaction(
    arms: Arms, tuned: Variant, winner: Variant, contributions: Sequence[Contribution]
) -> Interaction | None:
    """The interaction of the two strongest parts."""
    if len(contributions) < 2:
        return None
    one, two = (contribution.part for contribution in contributions[:2])
    first, second = replaced(winner, one, tuned), replaced(winner, two, tuned)
    neither, pairs = replaced(first, two, tuned), arms.plan.pairs
    both = [winner, neither]
    if not arms.fits(both, pairs) or arms.train("attribution", both, pairs) < pairs:
        return None
    logs: list[float] = []
    for runs in zip(*(arms.runs(variant, pairs) for variant in (first, second, winner, neither)), strict=True):
        values = [_outcome(arms, run) if isinstance(run, Trajectory) else None for run in runs]
        # A run without an outcome says nothing about an interaction.
        known = [value for value in values if value is not None]
        if len(known) == 4:
            logs.append(known[0] + known[1] - known[2] - known[3])
    if len(logs) < 2:
        return None
    found = mean_interval(logs)
    if arms.plan.goal.target is not None:
        found = Estimate(*(math.exp(end) for end in (found.value, found.low, found.high)))
    return Interaction((one, two), found, len(logs))


def _outcome(arms: Arms, run: Trajectory) -> float | None:
    """The logarithm of the time to the target, or how bad the metric is at the end."""
    goal = arms.plan.goal
    if goal.target is not None:
        time = time_to_target(run, goal)
        return None if time is None else math.log(time)
    if run.last is None or not math.isfinite(run.last):
        return None
    return -run.last if goal.maximize else run.last


def break_even(search: float, before: float, after: float, startup: float = 0.0) -> float | None:
    """Return after how many trainings an exploration has saved the time that it took.

        search / (before - after - startup)

    Args:
        search: Wall seconds of the exploration.
        before: Seconds of a training without the change.
        after: Seconds with it.
        startup: Seconds that each training with the change takes more to start, such as for compilation.

    Returns:
        The number of trainings, or None if it never does.

    >>> break_even(search=600.0, before=100.0, after=60.0, startup=10.0), break_even(600.0, 100.0, 100.0)
    (20.0, None)
    """
    saved = before - after - startup
    return search / saved if saved > 0 else None
