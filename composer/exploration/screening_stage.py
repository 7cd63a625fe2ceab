"""The screening of an exploration: within a share of its time, and from records where they are there."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from composer._text import plural, printable
from composer.exploration.planning import Plan
from composer.exploration.program_facts import ProgramFacts
from composer.exploration.screening import ROUNDS, STEPS, Screened, num_together, screen
from composer.exploration.screening_probe import SCREENING_PROBE
from composer.exploration.training_clock import Clock
from composer.exploration.trajectory import Trajectory
from composer.exploration.variant import TUNED_KINDS, Variant
from composer.trials import Record, Target, Trial
from composer.trials.records import Records
from composer.trials.worker import hash_of
from composer.trials.workspace import Workspace

__all__ = ["KEPT_FOR_RACE", "Screening", "ScreeningStage"]

_FILE = "screening.jsonl"
# Share of the search that screening may take, and of a run of the baseline that the steps of a variant may.
_SHARE, _STEPS_SHARE = 0.2, 0.05
# Numbers of blocks and of steps of a block, at least.
_LEAST_SIZE = (2, STEPS // 2)
# Seconds that a variant may take to start, if a run of the baseline takes less.
_LEAST_LIMIT = 20.0
# Trainings of the baseline that a search keeps for its race: without one, costs of steps tell nothing.
KEPT_FOR_RACE = 3.0
# Unchanged runs that take part, and steps of a variant before its first block.
_UNCHANGED, _FIRST_STEPS = 2, 5
# Logarithms of speeds that differ by less are equal.
_EQUAL = 0.1


@dataclass(frozen=True)
class Screening:
    """What screening found out.

    Args:
        variants: What can be used: of groups, the ones whose steps are the fastest come first.
        refused: What cannot be used, with the reason.
        screened: The cost of a step of each variant that was measured.
        seconds: Wall seconds.
        notes: What the reader should know.
        has_failed: Whether steps could not be measured in turn, for another reason than time.

    >>> Screening((Variant("EMA"),)).seconds
    0.0
    """

    variants: tuple[Variant, ...]
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    screened: tuple[Screened, ...] = ()
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    has_failed: bool = False


class ScreeningStage:
    """Screens the variants of a program: the first of each group, and the next one where that cannot be used.

    The records are kept in the folder of the trials, so that a search that is repeated sees the same costs.

    Args:
        target: The program.
        facts: The facts of the program.
        workspace: Folder of the records, and what forks the processes.
        ranks: Number of processes of a run.
        changes: Assignments that hold for all runs.
        time_limit: Seconds that a variant may take to start at most.
        clock: What seconds are counted in.
        kept: Trainings of the baseline that are left of the plan's search.
        say: Called with what is measured.

    >>> ScreeningStage(Target("script", "train.py"), ProgramFacts(), where)(
    ...     plan, runs, variants
    ... )  # doctest: +SKIP
    """

    def __init__(
        self,
        target: Target,
        facts: ProgramFacts,
        workspace: Workspace,
        *,
        ranks: int = 1,
        changes: Sequence[str] = (),
        time_limit: float = 300.0,
        clock: Clock = "wall",
        kept: float = KEPT_FOR_RACE,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._target, self._facts, self._workspace, self._ranks = target, facts, workspace, ranks
        self._changes, self._time_limit, self._say = tuple(changes), time_limit, say
        self._clock: Clock = clock
        self._kept = kept
        self._records = Records(workspace.folder / _FILE)

    def __call__(self, plan: Plan, runs: Sequence[Trajectory], variants: Sequence[Variant]) -> Screening:
        """Screen variants.

        Args:
            plan: The plan, which says how much time there is.
            runs: The A/A runs.
            variants: The variants. Learning rates and batch sizes are not screened: they apply as they are.
        """
        size = _size(plan.seconds, fmean(run.seconds / max(run.batches, 1) for run in runs))
        left = plan.search - sum(run.cost for run in runs) - self._kept * plan.cost
        found: dict[Variant, Screened] = {}
        seconds, pace, failure = 0.0, 1.0, ""
        together = num_together(self._facts)
        while part := _next(variants, found)[:together]:
            if seconds >= _SHARE * plan.search:
                break
            (rounds, steps), number = _fitting(runs, size, len(part), (left - seconds) / pace)
            part = part[:number]
            if not part:
                break
            self._say(f"screening: {', '.join(one.name for one in part)}")
            try:
                record = self._screened(part, rounds, steps, self._limit(plan, runs, seconds))
            except RuntimeError as error:
                failure = f"Steps could not be measured in turn: {str(error).splitlines()[0]}"
                break
            seconds += record.seconds
            pace = max(record.seconds / ((len(part) + _UNCHANGED) * _expected(runs, rounds, steps)), pace)
            for variant, value in zip(part, record.result["screened"], strict=True):
                found[variant] = Screened.from_json(variant, value)
        notes = [failure] if failure else _unscreened(_next(variants, found))
        return Screening(*_ordered(variants, found), tuple(found.values()), seconds, tuple(notes), bool(failure))

    def _limit(self, plan: Plan, runs: Sequence[Trajectory], spent: float) -> float:
        """Seconds that a variant may take to start, or for a block."""
        if self._clock == "cpu":  # a host that is loaded may take any time for the seconds of a CPU clock
            return self._time_limit
        left = plan.budget - sum(run.cost for run in runs) - spent
        return min(self._time_limit, max(_LEAST_LIMIT, plan.cost), left)

    def _screened(self, variants: Sequence[Variant], rounds: int, steps: int, limit: float) -> Record:
        """Return the record of some variants that are screened together."""
        key = self._key(variants, rounds, steps, limit)
        known = self._records.get(key)
        if known is not None and _is_same(known):
            return known
        began = time.monotonic()
        found = screen(
            self._target,
            variants,
            self._facts,
            self._workspace,
            ranks=self._ranks,
            changes=self._changes,
            time_limit=limit,
            rounds=rounds,
            steps=steps,
            clock=self._clock,
        )
        result = {"screened": [one.to_json() for one in found]}
        seconds = time.monotonic() - began if self._clock == "wall" else sum(one.cpu_seconds for one in found)
        record = Record("screening", key, "completed", seconds, result=result, sources=dict(self._facts.sources))
        self._records.add(record)
        return record

    def _key(self, variants: Sequence[Variant], *size: float) -> str:
        trials = [
            Trial("screen", self._target, SCREENING_PROBE, {}, (*self._changes, *one.changes), ranks=self._ranks)
            for one in variants
        ]
        told = [[one.key for one in trials], size, self._facts.without_effect, self._clock]
        return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:24]


def _size(seconds: float, step: float) -> tuple[int, int]:
    """Numbers of blocks and of steps of a block, so that screening a variant takes a small part of a run."""
    number = _STEPS_SHARE * seconds / step
    steps = STEPS if number >= 2 * STEPS else _LEAST_SIZE[1]
    return min(max(int(number / steps), _LEAST_SIZE[0]), ROUNDS), steps


def _expected(runs: Sequence[Trajectory], rounds: int, steps: int) -> float:
    """Seconds that a variant is expected to take for its start and its blocks, as of the A/A runs."""
    start = fmean(run.cost - run.seconds for run in runs)
    step = fmean(run.seconds / max(run.batches, 1) for run in runs)
    return max(start, 0.0) + (_FIRST_STEPS + rounds * (steps + 1)) * step


def _fitting(
    runs: Sequence[Trajectory], size: tuple[int, int], number: int, left: float
) -> tuple[tuple[int, int], int]:
    """Numbers of blocks and steps, fewer if there is no time for all variants, and of the variants that fit then."""
    for each in (size, _LEAST_SIZE):
        expected = _expected(runs, *each)
        fitting = number if (number + _UNCHANGED) * expected <= left else int(max(left, 0.0) / expected) - _UNCHANGED
        if fitting >= number:
            break
    return each, max(min(fitting, number), 0)


def _unscreened(variants: Sequence[Variant]) -> list[str]:
    """What to say of the variants for which there was no time."""
    if not variants:
        return []
    names = ", ".join(printable(one.name) for one in variants)
    number = plural(len(variants), "method")
    return [f"There was no time to measure the steps of {number} before the race: {names}."]


def _next(variants: Sequence[Variant], found: Mapping[Variant, Screened]) -> list[Variant]:
    """The variants to screen now: of each group the first one, if those before it cannot be used.

    What only changes the speed of steps comes first: the race is told by this measurement what it gains.
    """
    groups: dict[str, list[Variant]] = {}
    for one in variants:
        if one.kind not in TUNED_KINDS:
            groups.setdefault(one.group or one.name, []).append(one)
    first = [next((one for one in group if not _is_refused(found.get(one))), None) for group in groups.values()]
    left = [one for one in first if one is not None and one not in found]
    return sorted(left, key=lambda one: not one.speed_only)


def _ordered(
    variants: Sequence[Variant], found: Mapping[Variant, Screened]
) -> tuple[tuple[Variant, ...], dict[str, str]]:
    """What can be used, and why the rest cannot. If there is no time for all, the slowest steps are left out."""
    usable = [one for one in variants if not _is_refused(found.get(one))]
    speeds: dict[str, float] = {}
    for one in usable:
        screened = found.get(one)
        speed = 1.0 if screened is None or screened.speed is None else screened.speed.value
        speeds.setdefault(one.group or one.name, speed)
    # Steps whose difference is noise are equal, and keep their order.
    usable.sort(key=lambda one: -round(math.log(speeds[one.group or one.name]) / _EQUAL))
    return tuple(usable), {one.name: found[one].error for one in variants if _is_refused(found.get(one))}


def _is_refused(screened: Screened | None) -> bool:
    """Whether a variant cannot be used; one for which memory did not suffice may fit when it trains alone."""
    return screened is not None and not screened.is_usable and "out of memory" not in screened.error.lower()


def _is_same(record: Record) -> bool:
    """Whether the sources of the program are those of a record."""
    return all(hash_of(Path(path)) == known for path, known in record.sources.items())
