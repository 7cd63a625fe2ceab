"""Measure how much sooner a recipe reaches a target than a tuned baseline, by `composer.explore(confirm=)`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import composer
from benchmarks import environment
from benchmarks.kept import without_folder
from benchmarks.report import Goal, Report
from benchmarks.tasks import TASKS, Task
from composer.exploration import Exploration, Variant
from composer.exploration.kept_runs import KeptRun
from composer.exploration.paired_runs import PairedRuns, compare_runs
from composer.exploration.variant import BASELINE
from composer.statistics import Estimate, mean_interval

__all__ = ["confirmed", "measure", "summarize"]

PAIRS = 8
_COLUMNS = (
    "time to target",
    "seconds",
    "±",
    "reached",
    "times the baseline's",
    "interval",
    "times the recipe's",
    "interval",
    "p",
    "verdict",
    "metric after equal time",
)
_NOTES = (
    "Measured by `composer.explore(confirm=)`: the recipe is given, with its learning rate; explore tunes the learning "
    "rate of the baseline. Runs are paired by seed and alternate. They are evaluated on half of the held-out data; the "
    "baseline is tuned on the other half. A test after 6 and 8 pairs decides about the recipe.",
    "Seconds are CPU time of training on one thread, without evaluations and the start, until the target, interpolated "
    "between about 12 evaluations: mean of the runs that reached it, and half its 95 % interval (BCa bootstrap).",
    "Ratios are geometric means over all pairs with BCa intervals of 95 %; a run that did not reach the target counts "
    "with the limit of its pair. For a recipe without a part, a ratio above 1 to the recipe's time means that the part "
    "saves time. p is that of a one-sided sign-flip test, adjusted for the number of parts (Holm).",
    "The last column is how much better the metric is after equal time: that of the recipe than that of the baseline, "
    "and of the recipe than without the part.",
)


def confirmed(task: Task, pairs: int = PAIRS, *, is_tuned: bool = True, folder: Path | None = None) -> Exploration:
    """Compare the recipe of a task with its tuned baseline, and with itself without each of its parts.

    Args:
        task: The task.
        pairs: Number of pairs of runs at most, at least 6.
        is_tuned: Whether to tune the learning rate of the baseline.
        folder: Folder of the records, with which an interrupted measurement continues; None for a temporary one.
    """
    return composer.explore(
        task.program,
        target=task.target,
        confirm=task.recipe,
        without=("batch size",) if is_tuned else ("batch size", "learning rate"),
        pairs=pairs,
        folder=folder,
        clock="cpu",
        progress=lambda line: print(f"    {line}", file=sys.stderr, flush=True),
    )


def measure(
    names: Iterable[str] = tuple(TASKS),
    pairs: int = PAIRS,
    *,
    is_tuned: bool = True,
    folder: Path | None = None,
) -> Report:
    """Compare the recipes of tasks with their baselines.

    Args:
        names: Which of ``TASKS``.
        pairs: Number of pairs of runs at most, at least 6.
        is_tuned: Whether to tune the learning rate of the baselines.
        folder: Folder of all records; None for a temporary one.
    """
    rows: list[list[Any]] = []
    goals: list[Goal] = []
    notes: list[str] = [*_NOTES]
    samples: dict[str, Any] = {}
    for name in names:
        task = TASKS[name]
        found = confirmed(task, pairs, is_tuned=is_tuned, folder=None if folder is None else folder / name)
        print(f"{name}: {found}", file=sys.stderr, flush=True)
        found_rows, goal = summarize(name, found)
        rows += found_rows
        goals.append(goal)
        samples[name] = _samples(found)
        notes.append(f"{name}: {task.about}. Target: {task.target}. {_told(found)}")
    title = "Time to a target, with and without the methods"
    return Report("time_to_target", title, list(_COLUMNS), rows, goals, notes, samples, environment.describe())


def summarize(name: str, found: Exploration) -> tuple[list[list[Any]], Goal]:
    """Return the rows of a task, and the goal that its recipe is to meet.

    Args:
        name: The task.
        found: What :func:`confirmed` returned.
    """
    choices = _choices(found)
    runs = {label: _runs(found, variant) for label, variant in choices.items()}
    recipe = _compared(found)
    rows = [_row(name, "baseline", runs["baseline"], found)]
    if "untuned baseline" in choices:
        pairs = _pairs(found, runs["baseline"], runs["untuned baseline"])
        against = _inverse(None if pairs is None else pairs.effect)
        rows.append(_row(name, "untuned baseline", runs["untuned baseline"], found, over_baseline=against))
    slower = _inverse(None if recipe is None else recipe.effect)
    rows.append(_row(name, "recipe", runs["recipe"], found, over_baseline=slower, judged=recipe))
    for label, effect in _parts(found).items():
        # Trained with other seeds than the baseline: the ratio to it is that to the recipe, times the recipe's.
        against = None
        if slower is not None and effect.effect is not None:
            against = Estimate(slower.value * effect.effect.value, math.nan, math.nan)
        rows.append(_row(name, label, runs[label], found, over_baseline=against, over_recipe=effect, judged=effect))
    what = f"{name}: time to the target by the recipe, times the baseline's, upper end of the interval"
    doubt = "" if recipe is not None else "nothing was compared"
    return rows, Goal(what, math.inf if slower is None else slower.high, 1.0, doubt=doubt)


def _choices(found: Exploration) -> dict[str, Variant]:
    """What was trained by pairs, by its label."""
    untuned = {} if found.tuned == BASELINE else {"untuned baseline": BASELINE}
    without = {label: effect.before for label, effect in _parts(found).items()}
    return {"baseline": found.tuned, **untuned, "recipe": found.proposed, **without}


def _parts(found: Exploration) -> dict[str, PairedRuns]:
    """The recipe compared with the recipe without each part, the strongest part first."""
    contributions = () if found.attribution is None else found.attribution.contributions
    # Of a single part, the recipe without it is the baseline.
    compared = [one for one in contributions if len(contributions) > 1]
    return {f"recipe without {one.part.name}": one.effect for one in compared if one.effect is not None}


def _compared(found: Exploration) -> PairedRuns | None:
    """The recipe compared with the tuned baseline, confirmed or not."""
    all_of_them = [*([found.result] if found.result is not None else []), *found.rejected]
    return next((one for one in all_of_them if one.after == found.proposed), None)


def _runs(found: Exploration, variant: Variant) -> list[KeptRun]:
    """Its runs of the confirmation; of what was only trained for the attribution, those."""
    own = [one for one in found.runs if one.variant == variant]
    confirmed = [one for one in own if one.stage == "confirmation"]
    return confirmed or [one for one in own if one.stage == "attribution"]


def _pairs(found: Exploration, before: Sequence[KeptRun], after: Sequence[KeptRun]) -> PairedRuns | None:
    """Runs with the same seeds compared; None if there are none."""
    seeds = sorted({one.seed for one in before} & {one.seed for one in after})
    if not seeds:
        return None
    first, second = ({one.seed: one.outcome for one in runs} for runs in (before, after))
    plan, variants = found.plan, (before[0].variant, after[0].variant)
    outcomes = [first[seed] for seed in seeds], [second[seed] for seed in seeds]
    return compare_runs(plan.goal, variants, *outcomes, plan.limit)


def _row(
    name: str,
    label: str,
    runs: Sequence[KeptRun],
    found: Exploration,
    *,
    over_baseline: Estimate | None = None,
    over_recipe: PairedRuns | None = None,
    judged: PairedRuns | None = None,
) -> list[Any]:
    times = [time for one in runs if (time := one.reached(found.plan.goal)) is not None]
    quality = None if judged is None else judged.quality
    return [
        f"{name}: {label}",
        *_with_reach(times),
        f"{len(times)} of {len(runs)}",
        *_cells(over_baseline),
        *_cells(None if over_recipe is None else over_recipe.effect),
        "-" if judged is None else f"{judged.adjusted:.2g}",
        "-" if judged is None else str(judged.decision),
        "-" if quality is None else f"{quality.value:+.3f} ({quality.low:+.3f} to {quality.high:+.3f})",
    ]


def _with_reach(times: Sequence[float]) -> list[Any]:
    """The mean of some times, and half its interval."""
    if not times:
        return ["never", "-"]
    found = mean_interval(times)
    return [found.value, (found.high - found.low) / 2 if found.has_interval else "-"]


def _inverse(effect: Estimate | None) -> Estimate | None:
    """How many times the time is, from how many times as fast."""
    if effect is None:
        return None
    return Estimate(*(1 / end if end else math.inf for end in (effect.value, effect.high, effect.low)))


def _cells(ratio: Estimate | None) -> list[str]:
    """Cells of a ratio and its interval."""
    if ratio is None:
        return ["-", "-"]
    return [f"{ratio.value:.2f}", f"{ratio.low:.2f} to {ratio.high:.2f}" if ratio.has_interval else "-"]


def _told(found: Exploration) -> str:
    """What the baseline and the recipe are."""
    tuned = "the program as it is" if found.tuned == BASELINE else f"tuned: {', '.join(found.tuned.changes)}"
    return f"The baseline is {tuned}. The recipe is {', '.join(found.proposed.changes)}."


def _samples(found: Exploration) -> Mapping[str, Any]:
    """The exploration in JSON types, with the curves of each choice."""
    told = {key: value for key, value in found.to_json().items() if key != "runs"}
    curves: dict[str, Any] = {}
    for label, variant in _choices(found).items():
        runs = [one.to_json(found.plan.goal) for one in _runs(found, variant)]
        curves[label] = [
            {"seed": one["seed"], "cpu": one["seconds"], "values": one["values"], "reached": one["reached"]}
            for one in runs
        ]
    return {"exploration": {**told, "command": without_folder(found.command)}, "curves": curves}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", choices=[[], *TASKS], help="which; all by default")
    parser.add_argument("--pairs", type=int, default=PAIRS, help=f"of runs at most, at least 6 (default {PAIRS})")
    parser.add_argument("--folder", type=Path, help="folder of all records; a later command with it continues")
    parser.add_argument("--quick", action="store_true", help="6 pairs, an untuned baseline, and nothing is written")
    given = parser.parse_args()
    names = given.tasks or tuple(TASKS)
    pairs = 6 if given.quick else given.pairs
    report = measure(names, pairs, is_tuned=not given.quick, folder=given.folder)
    print(report.text())
    if not given.quick and not given.tasks:
        report.write()


if __name__ == "__main__":
    main()
