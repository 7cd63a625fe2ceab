"""The result of an exploration: a recipe, a verdict for each method, and what it took to find out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from composer._html import save_document
from composer._text import plural, printable
from composer.exploration.attribution import Attribution
from composer.exploration.halving import HeatResult
from composer.exploration.kept_runs import KeptRun
from composer.exploration.paired_runs import PairedRuns, interval_json
from composer.exploration.planning import Plan, clock
from composer.exploration.recipe import as_python, as_train_arguments, as_yaml
from composer.exploration.screening import Screened
from composer.exploration.training_clock import Clock
from composer.exploration.variant import BASELINE, Variant
from composer.statistics.bootstrap import Estimate
from composer.statistics.holm import Decision

__all__ = ["Exploration", "MethodVerdict"]

Source = Literal["attribution", "confirmation", "race", "failure", "none"]

_ORDER = (Decision.PAYS, Decision.UNDECIDED, Decision.DOES_NOT)


@dataclass(frozen=True)
class MethodVerdict:
    """Whether a method pays.

    Args:
        variant: The method, or another change.
        decision: The verdict.
        source: Where it comes from: pairs of runs with and without it in the winner ("attribution"), pairs of runs of
            the whole ("confirmation"), parts of runs in the race, whose interval is a rough one, or a failure.
        effect: How many times as fast it is, or how much better, with its interval; None if that is not known.
        num_runs: Number of pairs, or of runs in the race.
        reason: What there is to add, such as an error.

    >>> MethodVerdict(Variant("EMA"), Decision.PAYS, "attribution").decision
    <Decision.PAYS: 'pays'>
    """

    variant: Variant
    decision: Decision
    source: Source
    effect: Estimate | None = None
    num_runs: int = 0
    reason: str = ""

    @property
    def evidence(self) -> str:
        """Where the verdict comes from, in words: "race, 1 run"."""
        where = {"failure": "fails", "none": "not reached"}.get(self.source, self.source)
        return f"{where}, {plural(self.num_runs, 'pair' if self.source in ('attribution', 'confirmation') else 'run')}"

    def to_json(self) -> dict[str, Any]:
        """Return the verdict in JSON types."""
        return {
            "name": self.variant.name,
            "kind": self.variant.kind,
            "changes": list(self.variant.changes),
            "decision": str(self.decision),
            "source": self.source,
            "effect": interval_json(self.effect),
            "runs": self.num_runs,
            "reason": self.reason,
        }


@dataclass(frozen=True)
class Exploration:
    """What ``composer explore`` found out.

    Args:
        plan: The plan, with the A/A runs of the baseline.
        recipe: What to change: the winner, or the tuned baseline, or :data:`.BASELINE` to keep what is there.
        tuned: The baseline with which methods were compared.
        proposed: What seemed best in the race, confirmed or not.
        result: The recipe compared with the tuned baseline, or that with the program as it is if it is the recipe; None
            if nothing was confirmed.
        overall: The recipe compared with the program as it is, if runs of both are there.
        rejected: What seemed to pay in the race, and was not confirmed.
        verdicts: One for each method that was tried.
        attribution: What each part of the winner contributes.
        refused: Variants that cannot be used or were not tried, with the reason.
        screened: What a step of each method costs in time and memory, as far as it was measured.
        notes: What else a reader should know, such as that the program fixes its own seed.
        costs: Seconds by stage.
        break_even: Number of trainings after which the exploration has saved its time; None if it never does.
        command: The command or call that repeats it.
        runs: The A/A runs, and the pairs of runs of the confirmation; of a given recipe, those of the attribution too.
        heats: What the race compared in each stage.
        counted: What seconds are counted in: wall time, or CPU time.

    >>> from composer.exploration.goal import Goal
    >>> goal = Goal("accuracy", True, target=0.9)
    >>> plan = Plan(goal, (10.0, 11.0), (0.9, 0.9), 12.0, 0.1, 8, 180.0, 192.0, 96.0, 1e9, 5, 20)
    >>> print(Exploration(plan, Variant("EMA", ("algorithms+=EMA()",))).yaml)
    algorithms:
      # besides those that are there
      - EMA
    """

    plan: Plan
    recipe: Variant
    tuned: Variant = BASELINE
    proposed: Variant = BASELINE
    result: PairedRuns | None = None
    overall: PairedRuns | None = None
    rejected: tuple[PairedRuns, ...] = ()
    verdicts: tuple[MethodVerdict, ...] = ()
    attribution: Attribution | None = None
    refused: Mapping[str, str] = field(default_factory=dict[str, str])
    screened: tuple[Screened, ...] = ()
    notes: tuple[str, ...] = ()
    costs: Mapping[str, float] = field(default_factory=dict[str, float])
    break_even: float | None = None
    command: str = ""
    runs: tuple[KeptRun, ...] = ()
    heats: tuple[HeatResult, ...] = ()
    counted: Clock = "wall"

    @property
    def found(self) -> bool:
        """Whether there is something to change."""
        return self.recipe != BASELINE

    @property
    def search_cost(self) -> float:
        """Cost of the search, in trainings of the baseline: all but the confirmation and the attribution."""
        stages = ("noise", "screening", "tuning", "methods", "combinations")
        return sum(self.costs.get(stage, 0.0) for stage in stages) / self.plan.cost

    @property
    def python(self) -> str:
        """The recipe as Python."""
        return as_python(self.recipe.changes)

    @property
    def yaml(self) -> str:
        """The recipe as YAML, to be merged into a configuration by hand."""
        return as_yaml(self.recipe.changes)

    @property
    def train_arguments(self) -> str:
        """The recipe as arguments of ``composer train``, to paste after the name of the configuration."""
        return as_train_arguments(self.recipe.changes)

    @property
    def ranked(self) -> list[MethodVerdict]:
        """The verdicts: what pays first, and the largest effect first."""

        def key(one: MethodVerdict) -> tuple[int, float]:
            return _ORDER.index(one.decision), -(one.effect.value if one.effect is not None else -math.inf)

        return sorted(self.verdicts, key=key)

    def to_json(self) -> dict[str, Any]:
        """Return the exploration in JSON types."""
        return {
            "goal": str(self.plan.goal),
            "found": self.found,
            "recipe": {
                "name": self.recipe.name,
                "changes": list(self.recipe.changes),
                "python": self.python,
                "yaml": self.yaml,
                "train_arguments": self.train_arguments,
            },
            "tuned": self.tuned.name,
            "proposed": {"name": self.proposed.name, "changes": list(self.proposed.changes)},
            "result": None if self.result is None else self.result.to_json(),
            "overall": None if self.overall is None else self.overall.to_json(),
            "rejected": [one.to_json() for one in self.rejected],
            "verdicts": [one.to_json() for one in self.ranked],
            "attribution": None if self.attribution is None else self.attribution.to_json(),
            "refused": dict(self.refused),
            "screened": [one.to_json() for one in self.screened],
            "notes": list(self.notes),
            "plan": self.plan.to_json(),
            "costs": {stage: round(seconds, 1) for stage, seconds in self.costs.items()},
            "search_cost": self.search_cost,
            "clock": self.counted,
            "break_even": self.break_even,
            "command": self.command,
            "runs": [one.to_json(self.plan.goal) for one in self.runs],
            "heats": [one.to_json() for one in self.heats],
        }

    def to_html(self) -> str:
        """Return a page that opens without a network, with figures.

        Raises:
            MissingConditionalImportError: plotly is not installed.
        """
        from composer.exploration.page import exploration_page

        return exploration_page(self)

    def write_html(self, path: str | Path) -> None:
        """Write the page of :meth:`to_html`; an existing page is replaced when the new one is complete.

        Args:
            path: The file.

        Raises:
            FileExistsError: The file is not a page of composer.
            MissingConditionalImportError: plotly is not installed.
            OSError: It cannot be written.

        >>> composer.explore(["train.py"], target="Accuracy>=0.9").write_html("explore.html")  # doctest: +SKIP
        """
        save_document(self.to_html(), Path(path))

    def __str__(self) -> str:
        """The exploration as text."""
        lines = [*self._headline(), "", *str(self.plan).splitlines()]
        if self.verdicts:
            lines += ["", f"Methods ({self._unit}, with 95 % intervals):"]
            steps = {one.variant.name: f"; {one}" for one in self.screened if one.is_usable}
            lines += [f"{_verdict_line(one)}{steps.get(one.variant.name, '')}" for one in self.ranked]
        lines += self._interaction()
        if self.refused:
            lines += ["", "Not tried:"]
            lines += [f"  {printable(name)}: {printable(reason)}" for name, reason in self.refused.items()]
        if self.notes:
            lines += ["", *(f"Note: {printable(note)}" for note in self.notes)]
        if self.found:
            lines += ["", "Write:", *(f"  {line}".rstrip() for line in self.python.splitlines())]
        spent = ", ".join(f"{stage} {clock(seconds)}" for stage, seconds in self.costs.items())
        kind = " in CPU time" if self.counted == "cpu" else ""
        lines += ["", f"Cost{kind}: {spent}; the search took {self.search_cost:.1f} trainings of the baseline."]
        lines += [self.saving] if self.saving else []
        return "\n".join([*lines, *([f"Repeat: {self.command}"] if self.command else [])])

    @property
    def headline(self) -> list[str]:
        """The recipe and how much it gains, and what was not confirmed, a line each."""
        return [line.strip() for line in self._headline()]

    @property
    def saving(self) -> str:
        """After how many trainings the recipe has saved the time of the search; empty if that is not its purpose."""
        if not self.found or self.plan.goal.target is None:
            return ""
        if self.break_even is None:
            return "It does not save this time in any number of trainings."
        return f"It has saved this time after {plural(math.ceil(self.break_even), 'training')}."

    @property
    def _unit(self) -> str:
        return (
            "times as fast"
            if self.plan.goal.target is not None
            else f"difference of {printable(self.plan.goal.metric)}"
        )

    def _headline(self) -> list[str]:
        """The recipe, and how much it gains."""
        if not self.found:
            lines = ["Keep what you have: nothing that was tried is better by more than noise."]
            if not self.plan.pairs:
                lines = ["Nothing is confirmed: the budget did not suffice."]
            if self.proposed not in (BASELINE, *(one.after for one in self.rejected)):
                lines.append(f"  {printable(self.proposed.name)} seemed best in the race.")
        else:
            lines = [f"{printable(self.recipe.name)}: {self.result}"]
            if self.overall is not None and self.result is not None and self.result.before != BASELINE:
                lines.append(f"  compared with the program as it is: {self.overall}")
            if self.result is not None and self.result.quality is not None and self.plan.goal.target is not None:
                lines.append(f"  {printable(self.plan.goal.metric)} after equal time: {_signed(self.result.quality)}")
        return lines + [f"  not confirmed: {printable(one.after.name)}: {one}" for one in self.rejected]

    def _interaction(self) -> list[str]:
        both = None if self.attribution is None else self.attribution.interaction
        if both is None:
            return []
        names = " and ".join(printable(part.name) for part in both.parts)
        factor = "times as fast as the product of both" if self.plan.goal.target is not None else "beyond their sum"
        low, high = both.effect.low, both.effect.high
        return ["", f"{names} together: {both.effect.value:.3g} [{low:.3g}, {high:.3g}] {factor}"]


def _signed(estimate: Estimate) -> str:
    interval = f" [{estimate.low:+.3g}, {estimate.high:+.3g}]" if estimate.has_interval else ""
    return f"{estimate.value:+.3g}{interval} (positive is better)"


def _verdict_line(one: MethodVerdict) -> str:
    effect = "-" if one.effect is None else str(one.effect)
    reason = f"; {printable(one.reason)}" if one.reason else ""
    return f"  {one.decision!s:>9}  {effect:<22} {printable(one.variant.name)} ({one.evidence}{reason})"
