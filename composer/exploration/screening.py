"""Screening: what a step of each variant costs in time and memory, and which variants cannot be used at all."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from composer.exploration.program_facts import FACTS_PROBE, ProgramFacts
from composer.exploration.screening_probe import SCREENING_PROBE
from composer.exploration.training_clock import Clock
from composer.exploration.variant import BASELINE, Variant
from composer.statistics.paired import Ratio, paired_ratio
from composer.trials import Study, Target, Trial
from composer.trials.interleave import Contest
from composer.trials.workspace import Workspace, threads_each

__all__ = ["ROUNDS", "STEPS", "Screened", "num_together", "program_facts", "screen"]

_AGAIN = "again"
# Blocks of each variant, and steps of each; the unchanged run takes part twice.
ROUNDS, STEPS = 5, 8
# Variants that are in memory at the same time.
_TOGETHER, _TOGETHER_ON_ACCELERATOR = 6, 2


@dataclass(frozen=True)
class Screened:
    """What a step of a variant costs.

    Args:
        variant: The variant.
        speed: How many times as fast a step is as one of the unchanged run; None if the variant cannot be used.
        memory: Peak memory as a multiple of that of the unchanged run; NaN if it is not known.
        error: Why it cannot be used.
        cpu_seconds: CPU time of its steps and its start, with its share of those of the unchanged runs.
        startup: Seconds of its first steps beyond those of usual ones, such as for compilation, that the unchanged run
            does not take.

    >>> Screened(Variant("BlurPool"), None, math.nan, "no convolution").is_usable
    False
    """

    variant: Variant
    speed: Ratio | None
    memory: float = math.nan
    error: str = ""
    cpu_seconds: float = 0.0
    startup: float = 0.0

    @property
    def is_usable(self) -> bool:
        """Whether it trains."""
        return self.speed is not None

    def to_json(self) -> dict[str, Any]:
        """Return it in JSON types."""
        speed = None if self.speed is None else [self.speed.value, self.speed.low, self.speed.high]
        memory = self.memory if math.isfinite(self.memory) else None
        return {
            "name": self.variant.name,
            "speed": speed,
            "memory": memory,
            "error": self.error,
            "cpu_seconds": self.cpu_seconds,
            "startup": self.startup,
        }

    @classmethod
    def from_json(cls, variant: Variant, value: Mapping[str, Any]) -> Screened:
        """Return what :meth:`to_json` described.

        Args:
            variant: The variant.
            value: What it returned.
        """
        speed = None if value["speed"] is None else Ratio(*value["speed"])
        memory = math.nan if value["memory"] is None else value["memory"]
        return cls(variant, speed, memory, value["error"], value["cpu_seconds"], value.get("startup", 0.0))

    def __str__(self) -> str:
        """The cost of a step in time and memory, as changes; or why the variant cannot be used."""
        if self.speed is None:
            return self.error
        memory = f", memory {self.memory - 1:+.0%}" if math.isfinite(self.memory) else ""
        return f"step {1 / self.speed.value - 1:+.0%}{memory}"


def program_facts(
    target: Target,
    workspace: Workspace,
    *,
    ranks: int = 1,
    changes: Sequence[str] = (),
    time_limit: float = 600.0,
    assignments: Sequence[str] = (),
) -> ProgramFacts:
    """Train one step of a program, and return the facts about it.

    Args:
        target: The program.
        workspace: Folder of the records, and what forks the processes.
        ranks: Number of processes.
        changes: Assignments that hold for all runs.
        time_limit: Seconds after which the trial is ended.
        assignments: Assignments to check, see :attr:`.ProgramFacts.invalid`.

    Raises:
        RuntimeError: The program does not train; the error has its traceback.

    >>> with workspace(None, [FACTS_PROBE]) as where:  # doctest: +SKIP
    ...     program_facts(Target("script", "train.py"), where).inputs
    'images'
    """
    threads = threads_each(ranks) if ranks > 1 else 0
    trial = Trial(
        "facts",
        target,
        FACTS_PROBE,
        {"assignments": list(assignments)},
        tuple(changes),
        ranks=ranks,
        time_limit=time_limit,
        threads=threads,
    )
    record = Study(workspace.folder, server=workspace.server).run([trial])["facts"]
    if not record.is_completed:
        raise RuntimeError(f"The program does not train: {record.error}\n{record.details}")
    return replace(ProgramFacts.from_json(record.result), sources=record.sources)


def screen(
    target: Target,
    variants: Sequence[Variant],
    facts: ProgramFacts,
    workspace: Workspace,
    *,
    ranks: int = 1,
    changes: Sequence[str] = (),
    time_limit: float = 300.0,
    rounds: int = ROUNDS,
    steps: int = STEPS,
    clock: Clock = "wall",
) -> list[Screened]:
    """Measure some steps of each variant in turn with the unchanged run, without evaluations.

    Variants train blocks of steps in turn, :func:`num_together` at a time.

    A step is one of the optimizer: with another batch size, it trains another number of samples.

    Args:
        target: The program.
        variants: The variants.
        facts: The facts of the program.
        workspace: Folder for the trials, and what forks the processes.
        ranks: Number of processes of a run.
        changes: Assignments that hold for all runs.
        time_limit: Seconds that a variant may take to start, or for a block.
        rounds: Number of blocks of each variant, at least 2.
        steps: Number of steps of a block.
        clock: What seconds of steps are counted in.

    Raises:
        RuntimeError: The unchanged run does not train.

    >>> with workspace(None, [SCREENING_PROBE]) as where:  # doctest: +SKIP
    ...     screen(Target("script", "train.py"), space_of(facts).variants, facts, where)[0].is_usable
    True
    """
    together = num_together(facts)
    found: list[Screened] = []
    for begin in range(0, len(variants), together):
        part = variants[begin : begin + together]
        arms = {"base": BASELINE, _AGAIN: BASELINE, **{f"variant-{number}": one for number, one in enumerate(part)}}
        trials = {
            name: Trial(
                f"screen-{name}",
                target,
                SCREENING_PROBE,
                {"expected": list(facts.without_effect), "clock": clock},
                (*changes, *variant.changes),
                ranks=ranks,
                # A trial is ended by the contest, or by this process.
                time_limit=time_limit * (rounds + 2) * len(arms),
                threads=threads_each(ranks) if ranks > 1 else 0,
            )
            for name, variant in arms.items()
        }
        with Contest(workspace.folder, trials, workspace.server, steps=steps, limit=time_limit) as contest:
            racing = [name for name in trials if name not in contest.failed]
            for _ in range(rounds):
                racing = contest.play(racing)
            if not {"base", _AGAIN} <= {*racing}:
                raise RuntimeError(f"The program does not train: {contest.failed.get('base') or contest.failed}")
            found += [_screened(contest, name, arms[name]) for name in list(arms)[2:]]
    return found


def num_together(facts: ProgramFacts) -> int:
    """Return how many variants are in memory at the same time.

    Args:
        facts: The facts of the program.

    >>> num_together(ProgramFacts(device="cuda"))
    2
    """
    return _TOGETHER if facts.device == "cpu" else _TOGETHER_ON_ACCELERATOR


def _screened(contest: Contest, name: str, variant: Variant) -> Screened:
    """Return the result of a variant, compared with both unchanged runs."""
    shared = (contest.cpu_seconds["base"] + contest.cpu_seconds[_AGAIN]) / (len(contest.cpu_seconds) - 2 or 1)
    spent = contest.cpu_seconds.get(name, 0.0) + shared
    if name in contest.failed:
        return Screened(variant, None, error=contest.failed[name], cpu_seconds=spent)
    seconds = contest.seconds()
    pairs = zip(seconds["base"], seconds[_AGAIN], strict=True)
    speed = paired_ratio([math.sqrt(one * two) for one, two in pairs], seconds[name])
    memory, base = contest.memory.get(name, 0), contest.memory.get("base", 0)
    startup = _startup(contest, name) - min(_startup(contest, "base"), _startup(contest, _AGAIN))
    return Screened(variant, speed, memory / base if memory and base else math.nan, "", spent, max(startup, 0.0))


def _startup(contest: Contest, name: str) -> float:
    """Seconds of the first steps of a variant beyond those of as many usual ones."""
    first, usual = contest.warmups[name], contest.seconds()[name]
    return first.total - (len(first.skipped) + len(first.seconds)) * statistics.median(usual)
