"""Measure the training time to a target metric of a baseline and a recipe of methods, on real data, seed by seed."""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch

from benchmarks import environment
from benchmarks.report import Goal, Report
from benchmarks.tasks import TASKS
from benchmarks.training import Curve, Methods, Setting, Task

TUNING_SEEDS = (1000, 1001)  # none of those that are compared
# The 97.5 % points of Student's distribution with 1, 2, ... degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)

Times = list[float | None]


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the mean of some values and the ends of its interval of 95 %, from Student's distribution.

    Args:
        values: From 1 to 10; of a single one the interval is everything.

    >>> [round(end, 3) for end in interval([1.0, 2.0, 3.0])]
    [2.0, -0.484, 4.484]
    """
    middle = statistics.mean(values)
    if len(values) == 1:
        return middle, -math.inf, math.inf
    if len(values) > len(_STUDENT) + 1:
        raise ValueError(f"values must be at most {len(_STUDENT) + 1}, but there are {len(values)}.")
    reach = _STUDENT[len(values) - 2] * statistics.stdev(values) / math.sqrt(len(values))
    return middle, middle - reach, middle + reach


def ratio_interval(times: Times, others: Times) -> tuple[float, float, float] | None:
    """Return the geometric mean of ``times / others``, seed by seed, and the ends of its interval of 95 %.

    Args:
        times: Seconds to the target for each seed, None where it was not reached.
        others: The same of another choice of methods, in the same order.

    Returns:
        None if there is no seed with which both got there.

    >>> ratio_interval([1.0, 4.0, None], [2.0, 8.0, 3.0])
    (0.5, 0.5, 0.5)
    """
    pairs = [(one, other) for one, other in zip(times, others, strict=True) if one is not None and other is not None]
    if not pairs:
        return None
    middle, low, high = interval([math.log(one / other) for one, other in pairs])
    return math.exp(middle), math.exp(low), math.exp(high)


def best(trials: dict[Setting, list[Curve]], task: Task) -> Setting:
    """Return the setting that takes the least processor time to the target, in the mean over its curves.

    A setting with which some run did not get there comes after those with which all did, by how many did not.

    Args:
        trials: The curves of each setting.
        task: Tells whether the target is reached.
    """

    def cost(setting: Setting) -> tuple[int, float]:
        times = [curve.time_to(task.is_reached) for curve in trials[setting]]
        reached = [time for time in times if time is not None]
        return len(times) - len(reached), statistics.mean(reached) if reached else math.inf

    return min(trials, key=cost)


def variants(task: Task) -> dict[str, Methods]:
    """Return the choices of methods to compare: none, all, and all but one.

    Args:
        task: Whose methods.
    """
    without = {
        f"recipe without {name}": {other: make for other, make in task.methods.items() if other != name}
        for name in task.methods
    }
    return {"baseline": {}, "recipe": task.methods, **without}


def tune(task: Task, seeds: Iterable[int] = TUNING_SEEDS) -> tuple[dict[str, Setting], dict[str, Any]]:
    """Choose settings for baseline and recipe, each from the whole grid, on the validation split.

    The target is harder there by the task's margin, or settings that just reach it would miss it on other data.

    Args:
        task: The task.
        seeds: Those of the trainings.

    Returns:
        The setting of both, and the seconds to the target of all trials.
    """
    task = task.harder()
    chosen: dict[str, Setting] = {}
    record: dict[str, Any] = {}
    for name in ("baseline", "recipe"):
        methods = variants(task)[name]
        trials = {
            setting: [task.train(methods, setting, seed, split="validation") for seed in seeds] for setting in task.grid
        }
        chosen[name] = best(trials, task)
        record[name] = [
            {**asdict(setting), "seconds": [curve.time_to(task.is_reached) for curve in curves]}
            for setting, curves in trials.items()
        ]
        _say(f"{task.name}: {name} is tuned to {chosen[name]}")
    return chosen, record


def compare(task: Task, settings: dict[str, Setting], seeds: int) -> dict[str, list[Curve]]:
    """Train every choice of methods with every seed, in turns, and evaluate on the test split.

    Args:
        task: The task.
        settings: That of the baseline, and that of the recipe and all without a method of it.
        seeds: Number of seeds.
    """
    choices = variants(task)
    curves: dict[str, list[Curve]] = {name: [] for name in choices}
    for seed in range(1, seeds + 1):  # 0 was looked at while the recipes were made
        # Each seed begins with another choice, so that none is always the first or the last.
        names = list(choices)
        shift = seed % len(names)
        for name in names[shift:] + names[:shift]:
            setting = settings["baseline" if name == "baseline" else "recipe"]
            curves[name].append(task.train(choices[name], setting, seed))
            _say(f"{task.name}: seed {seed}, {name}: {curves[name][-1].time_to(task.is_reached)} s")
    return curves


def measure(names: Iterable[str] = tuple(TASKS), seeds: int = 5, tuning_seeds: Iterable[int] = TUNING_SEEDS) -> Report:
    """Tune, train and compare.

    Args:
        names: Which of ``TASKS``.
        seeds: Number of paired trainings of each choice of methods.
        tuning_seeds: Seeds of the trainings that settings are chosen by.
    """
    torch.set_num_threads(1)
    rows: list[list[Any]] = []
    goals: list[Goal] = []
    samples: dict[str, Any] = {}
    notes = [
        f"One thread; {seeds} seeds, paired: for a seed, every choice of methods starts from the same weights and sees "
        "the data in the same order, and the choices train in turn. Seconds are CPU time of training, without "
        "evaluations, until the first of about 12 evaluations on the test split that reaches the target: mean and "
        "half the 95 % confidence interval; wall is the same in wall-clock time.",
        "Ratios are geometric means over the seeds with which both reached the target, with their 95 % confidence "
        "interval, from Student's distribution of the logarithms. For a recipe without a method, a ratio above 1 means "
        "that the method saves time.",
        "Baseline and recipe are each tuned over the same grid of learning rates and durations, by the mean time to "
        f"the target on a validation split with {len(list(tuning_seeds))} other seeds. The target is stricter there by "
        "the margin, because settings that just reach it would miss it on the test split. The recipe without a method "
        "keeps the setting of the recipe. The .json file contains all settings.",
    ]
    for name in names:
        task = TASKS[name]
        _warm_up(task)
        settings, trials = tune(task, tuning_seeds)
        curves = compare(task, settings, seeds)
        found_rows, goal = summarize(task, curves)
        rows += found_rows
        goals.append(goal)
        samples[name] = {
            "settings": {choice: asdict(setting) for choice, setting in settings.items()},
            "tuning": trials,
            "curves": {choice: [asdict(curve) for curve in found] for choice, found in curves.items()},
        }
        notes.append(
            f"{name}: {task.about}. Target: {task.metric} {'at least' if task.higher else 'at most'} {task.target}; "
            f"margin {task.margin}. "
            + " ".join(
                f"The {choice} has the learning rate {setting.rate:g} and {setting.steps} steps."
                for choice, setting in settings.items()
            )
        )
    columns = [
        "time to target",
        "seconds",
        "±",
        "wall",
        "reached",
        "times the baseline's",
        "interval",
        "times the recipe's",
        "interval",
        "final metric",
        "±",
    ]
    title = "Time to a target, with and without the methods"
    return Report("time_to_target", title, columns, rows, goals, notes, samples, environment.describe())


def summarize(task: Task, curves: dict[str, list[Curve]]) -> tuple[list[list[Any]], Goal]:
    """Return the rows of a task, and the goal that its recipe is to meet.

    Args:
        task: The task.
        curves: Those of each choice of methods, by seed.
    """
    times = {name: [curve.time_to(task.is_reached) for curve in found] for name, found in curves.items()}
    walls = {name: [curve.time_to(task.is_reached, "wall") for curve in found] for name, found in curves.items()}
    rows = []
    for name, found in curves.items():
        reached = [time for time in times[name] if time is not None]
        wall = [time for time in walls[name] if time is not None]
        final = interval([curve.values[-1] for curve in found])
        rows.append(
            [
                f"{task.name}: {name}",
                *(_with_reach(interval(reached)) if reached else ["never", "-"]),
                statistics.mean(wall) if wall else "-",
                f"{len(reached)} of {len(found)}",
                *_against(times[name], times["baseline"], name == "baseline"),
                *_against(times[name], times["recipe"], name in ("baseline", "recipe")),
                *_with_reach(final),
            ]
        )
    what = f"{task.name}: time to the target by the recipe, times the baseline's, upper end of the interval"
    ratio = ratio_interval(times["recipe"], times["baseline"])
    missing = sum(time is None for name in ("baseline", "recipe") for time in times[name])
    doubt = f"{missing} runs did not get to the target" if missing else ""
    if not doubt and len(times["recipe"]) == 1:
        doubt = "of one seed there is no interval"
    return rows, Goal(what, ratio[2] if ratio else math.inf, 1.0, doubt=doubt)


def _with_reach(found: tuple[float, float, float]) -> list[Any]:
    """A mean, and half its interval."""
    middle, low, high = found
    return [middle, (high - low) / 2 if math.isfinite(high) else "-"]


def _against(times: Times, others: Times, is_the_same: bool) -> list[str]:
    """Cells of a ratio and its interval."""
    ratio = None if is_the_same else ratio_interval(times, others)
    if ratio is None:
        return ["-", "-"]
    middle, low, high = ratio
    return [f"{middle:.2f}", f"{low:.2f} to {high:.2f}" if math.isfinite(high) else "-"]


def _warm_up(task: Task) -> None:
    """Let pass what happens once in a process: imports, and the kernels' choice of algorithms."""
    for methods in (variants(task)["baseline"], task.methods):
        task.train(methods, Setting(task.grid[0].rate, 6), seed=0, num_evaluations=1)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tasks", nargs="*", choices=[[], *TASKS], help="which; all by default")
    parser.add_argument("--seeds", type=int, default=5, help="at most 10")
    parser.add_argument("--quick", action="store_true", help="one seed, tuned with one other, and nothing is written")
    given = parser.parse_args()
    names = given.tasks or tuple(TASKS)
    report = measure(names, 1, TUNING_SEEDS[:1]) if given.quick else measure(names, given.seeds)
    print(report.text())
    if not given.quick and not given.tasks:
        report.write()


if __name__ == "__main__":
    main()
