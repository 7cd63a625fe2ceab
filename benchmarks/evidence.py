"""Measure what each method does by itself, on tasks where it should help: pairs of runs with a tuned baseline."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import environment
from benchmarks import kept as kept_files
from benchmarks.evidence_tasks import TASKS, EvidenceTask, describe
from benchmarks.kept import kept
from benchmarks.report import RESULTS, Report, published_samples
from composer.exploration import Goal, Request, Variant
from composer.exploration.curves import time_to_target
from composer.exploration.paired_runs import compare_runs
from composer.exploration.program_facts import FACTS_PROBE
from composer.exploration.runner import Failure, Split
from composer.exploration.screening import program_facts
from composer.exploration.trajectory import Trajectory
from composer.exploration.trial_runner import PROBE, TrialRunner
from composer.exploration.variant import BASELINE
from composer.trials import Target
from composer.trials.workspace import workspace

__all__ = ["measure", "measured", "report_of"]

PAIRS = 8
# Learning rates of the baseline, as multiples of that of the program, and the seeds with which they are compared.
_FACTORS, _TUNING_SEEDS = (0.5, 1.0, 2.0, 4.0), 3
# The first seed of the pairs; the tuning uses those below.
_FRESH = 1000
# Runs may take so many times as long as the slowest run of the tuned baseline while it was tuned.
_PATIENCE = 2.0

Outcome = Trajectory | Failure


class _Runs:
    """Trains variants of a task."""

    def __init__(self, runner: TrialRunner, goal: Goal, limit: float | None) -> None:
        self.goal = goal
        self.limit = limit  # seconds of training after which a run is censored; None for the whole run
        self._runner = runner

    def train(self, variant: Variant, seed: int, split: Split) -> Outcome:
        (outcome,) = self._runner.train([Request(variant, seed, self.limit, self.goal.seconds is None, split)])
        return outcome

    def cost(self, outcome: Outcome) -> float:
        """What is to be small: the logarithm of the time to the target, or the negative of the quality."""
        if isinstance(outcome, Failure):
            raise RuntimeError(f"The baseline has failed: {outcome.error}\n{outcome.details}")
        if self.goal.seconds is None:
            return math.log(time_to_target(outcome, self.goal) or 2 * outcome.seconds)
        value = float(outcome.last if outcome.last is not None else math.nan)
        return -value if self.goal.maximize else value


def measured(name: str, folder: Path) -> dict[str, Any]:
    """Tune the baseline of a task, try each method with it, and return what came of it in JSON types.

    Args:
        name: The task.
        folder: Folder of the records, with which an interrupted measurement continues.
    """
    task = TASKS[name]
    goal = Goal.parse(task.target) if task.target else Goal(task.metric, task.metric != "CrossEntropy", None, math.inf)
    target = Target.of(task.program)
    with workspace(folder, [PROBE, FACTS_PROBE]) as where:
        rate = program_facts(target, where).learning_rates[0]
        runs = _Runs(TrialRunner(target, goal, where, clock="cpu"), goal, None)
        factor, costs = _tuned(runs, rate)
        if task.target:
            runs.limit = _PATIENCE * math.exp(max(costs))
        arms = _arms(task, [f"optimizers.lr={rate * factor:.6g}"] if factor != 1.0 else [])
        outcomes = _paired(runs, [one for pair in arms.values() for one in pair])
    limit = runs.limit or math.inf
    found = [compare_runs(goal, pair, *(outcomes[one] for one in pair), limit) for pair in arms.values()]
    return {
        "name": name,
        **describe(task),
        "factor": factor,
        "limit": runs.limit,
        "pairs": PAIRS,
        "found": {
            method: {**one.to_json(), "errors": _errors(outcomes[one.after])}
            for method, one in zip(arms, found, strict=True)
        },
    }


def _tuned(runs: _Runs, rate: float) -> tuple[float, list[float]]:
    """The best learning rate as a multiple of the program's, and the costs of its runs."""
    found: dict[float, list[float]] = {}
    for factor in _FACTORS:
        variant = BASELINE
        if factor != 1.0:
            variant = Variant(f"lr x{factor:g}", (f"optimizers.lr={rate * factor:.6g}",), "learning_rate")
        found[factor] = [runs.cost(runs.train(variant, seed, "selection")) for seed in range(_TUNING_SEEDS)]
    best = min(found, key=lambda factor: sum(found[factor]))
    return best, found[best]


def _arms(task: EvidenceTask, tuned: Sequence[str]) -> dict[str, tuple[Variant, Variant]]:
    """What is compared for each method: the tuned baseline without and with it."""
    found: dict[str, tuple[Variant, Variant]] = {}
    for method, call in task.methods.items():
        beside = (task.beside or {}).get(method)
        common = (*tuned, *([beside] if beside else []))
        before = Variant(f"without {method}" if beside else "baseline", common, "combination" if common else "baseline")
        found[method] = before if common else BASELINE, Variant(method, (*common, f"algorithms+={call}"))
    return found


def _paired(runs: _Runs, variants: Iterable[Variant]) -> dict[Variant, list[Outcome]]:
    """Train variants with the same fresh seeds, in an order that alternates."""
    distinct = list(dict.fromkeys(variants))
    found: dict[Variant, list[Outcome]] = {one: [] for one in distinct}
    for number in range(PAIRS):
        for one in distinct if number % 2 == 0 else distinct[::-1]:
            found[one].append(runs.train(one, _FRESH + number, "confirmation"))
    return found


def _errors(outcomes: Sequence[Outcome]) -> list[str]:
    return sorted({one.error for one in outcomes if isinstance(one, Failure)})


def measure(folder: Path, names: Iterable[str] = tuple(TASKS)) -> Report:
    """Measure tasks, as far as the folder does not have the results, and report all that it has.

    Args:
        folder: Folder of all records.
        names: The tasks.
    """
    torch.set_num_threads(1)
    for name in names:
        own = folder / name
        own.mkdir(parents=True, exist_ok=True)
        kept(own / "evidence.json", lambda n=name, o=own: measured(n, o / "runs"))
        print(report_of(folder).text(), flush=True)
    return report_of(folder)


def restore(folder: Path, results: Path = RESULTS) -> int:
    """Write the published tasks into a folder, see :func:`benchmarks.kept.restore`, and return their number.

    Args:
        folder: Folder of all records.
        results: Folder of the published results.
    """
    samples = published_samples("evidence", results)
    return kept_files.restore(folder, {name: {"evidence": found} for name, found in samples.items()})


_COLUMNS = (
    "task: method",
    "times as fast",
    "interval",
    "quality",
    "interval",
    "samples a second",
    "p",
    "verdict",
)
_NOTES = (
    "Each method is added alone to a baseline with the best of four learning rates, by three seeds on data that are "
    "not used for the pairs; it has the arguments that are given in the samples, and no learning rate of its own.",
    f"{PAIRS} pairs of runs with the same fresh seed, in alternating order; seconds are CPU seconds of training on one "
    "thread, without evaluations and the start. Ratios are geometric means with BCa intervals of 95 %; a run that did "
    "not reach the target counts with twice the time of the slowest run of the baseline while it was tuned.",
    "Times as fast: to the target. On the tasks with little data there is none: what counts is the metric after the "
    "last step. Quality: how much better the metric is with the method, after equally many samples. Samples a second: "
    "as a multiple of the baseline's.",
    "p is that of a one-sided sign-flip test. A method pays if p is at most 0.05 and the interval says so as well; it "
    "does not if the interval excludes a gain of 3 %, or any if there is no target. Each line answers a question of "
    "its own: p is not adjusted for their number, so that of 20 methods that do nothing about one would seem to pay.",
)


def report_of(folder: Path) -> Report:
    """Return the report of all results in a folder.

    Args:
        folder: Folder of all records.
    """
    results = [kept(path, dict) for name in TASKS if (path := folder / name / "evidence.json").exists()]
    rows = [
        _row(f"{result['name']}: {method}", found, bool(result["target"]))
        for result in results
        for method, found in result["found"].items()
    ]
    tuned = [
        f"{one['name']}: {one['about']}; {one['target'] or one['metric'] + ' at the end'}; best learning rate: "
        f"x{one['factor']:g} of the program's."
        for one in results
    ]
    return Report(
        "evidence",
        "What each method does by itself, on tasks where it should help",
        list(_COLUMNS),
        rows,
        [],
        [*tuned, *_NOTES],
        {one["name"]: one for one in results},
        environment.describe(),
        arguments="FOLDER --write",
    )


def _row(name: str, found: Mapping[str, Any], has_target: bool) -> list[Any]:
    speed = found["effect"] if has_target else None
    quality = found["quality_at_equal_samples"] if has_target else found["effect"]
    missed = found["pairs"] - found["reached_after"] if has_target else 0
    verdict = found["decision"] + (f" ({missed} of {found['pairs']} missed the target)" if missed else "")
    if found["failures"]:
        verdict = f"failed: {found['errors'][0]}"
    throughput = "-" if found["throughput"] is None else f"{found['throughput']:.2f}"
    p_value = f"{found['p_value']:.2g}"
    return [name, *_interval(speed, ".2f"), *_interval(quality, "+.4f"), throughput, p_value, verdict]


def _interval(found: Mapping[str, float | None] | None, form: str) -> tuple[str, str]:
    """An estimate and its interval, of which an end that is not finite is None."""
    if found is None:
        return "-", "-"
    value, low, high = ("inf" if found[end] is None else format(found[end], form) for end in ("value", "low", "high"))
    return value, f"{low} to {high}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of all records; a later command with it continues")
    parser.add_argument(
        "--tasks", nargs="*", choices=list(TASKS), default=list(TASKS), help="all by default; none to report"
    )
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/ from all that the folder has")
    parser.add_argument("--note", nargs="+", default=[], help="for the page, such as what else the host did meanwhile")
    parser.add_argument("--from-results", action="store_true", help="lay the published tasks into the folder first")
    given = parser.parse_args()
    if given.from_results:
        print(f"restored {restore(given.folder)} tasks", file=sys.stderr)
    report = measure(given.folder, given.tasks)
    report.notes.extend(given.note)
    if given.write:
        report.write()


if __name__ == "__main__":
    main()
