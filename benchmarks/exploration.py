"""Explore four programs with placebos among the methods, and let Optuna search the same space for the same time."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

import composer
from benchmarks import environment
from benchmarks import kept as kept_files
from benchmarks.explored import PROGRAMS, TARGETS
from benchmarks.kept import kept, without_folder
from benchmarks.optuna_study import Problem, study
from benchmarks.placebos import PLACEBOS
from benchmarks.report import RESULTS, Report, published_samples
from benchmarks.report import Goal as Limit
from composer.exploration import Exploration, Goal, Request, Variant
from composer.exploration.choice import Choice
from composer.exploration.paired_runs import compare_runs
from composer.exploration.program_facts import FACTS_PROBE, ProgramFacts
from composer.exploration.screening import program_facts
from composer.exploration.trial_runner import PROBE, TrialRunner
from composer.trials import Target
from composer.trials.workspace import workspace

__all__ = ["SEARCH", "explored", "head_to_head", "measure", "optuna_best", "report_of", "restore"]

# Number of the search, raised when it tries other things: explorations by an older one stay on the page beside those by
# the present one, since a repetition that is replaced by a luckier one tells nothing.
SEARCH = 5
_PAIRS = 8
# Added to all seeds of a repetition, times its number; a search uses fewer seeds in a row.
_SEEDS = 100
# The first seed with which the results of both searches are compared; explore uses those below.
_FRESH = 50_000
_GAIN = 1.3
# Repetitions of a program, and of how many the intervals of the recipes have to overlap.
_REPETITIONS, _ALIKE = 5, 4


def explored(name: str, repetition: int, folder: Path) -> dict[str, Any]:
    """Explore a program, and return the result in JSON types.

    Args:
        name: The program.
        repetition: Number of the repetition, which has seeds of its own.
        folder: Folder of the records, with which an interrupted exploration continues.
    """
    begin = time.perf_counter()
    found = composer.explore(
        PROGRAMS[name],
        target=TARGETS[name],
        pairs=_PAIRS,
        extra=PLACEBOS,
        seed=_SEEDS * repetition,
        folder=folder,
        clock="cpu",
        progress=lambda line: print(f"    {line}", file=sys.stderr, flush=True),
    )
    print(found, flush=True)
    return {
        **found.to_json(),
        "command": without_folder(found.command),
        "name": name,
        "repetition": repetition,
        "search": SEARCH,
        "minutes": sum(found.costs.values()) / 60,
        "session_minutes": (time.perf_counter() - begin) / 60,
        "placebos": _accepted(found),
        "limit": found.plan.limit,
    }


def optuna_best(name: str, repetition: int, exploration: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Let Optuna search what an exploration has searched, for as long, and return the best that it found.

    Args:
        name: The program.
        repetition: Number of the repetition, the seed of the sampler.
        exploration: What :func:`explored` returned.
        folder: Folder of the exploration.
    """
    facts = _facts(name, folder)
    unusable = {one["name"] for one in exploration["screened"] if one["speed"] is None}
    variants = tuple(one for one in Choice(extra=PLACEBOS).space(facts).variants if one.name not in unusable)
    rate = facts.learning_rates[0]
    problem = Problem(PROGRAMS[name], Goal.parse(TARGETS[name]), variants, rate, exploration["limit"])
    best = study(problem, 60 * exploration["minutes"], repetition, folder / "optuna.journal")
    return {**asdict(best), "variant": {"name": best.variant.name, "changes": list(best.variant.changes)}}


def head_to_head(
    name: str, repetition: int, ours: Sequence[str], optunas: Sequence[str], limit: float, folder: Path
) -> dict[str, Any]:
    """Train the results of both searches with fresh seeds, in pairs, on data that neither has chosen by.

    Args:
        name: The program.
        repetition: Number of the repetition.
        ours: Changes of the recipe.
        optunas: Changes of Optuna's best trial.
        limit: Seconds of training after which a run is censored.
        folder: Folder of the records.
    """
    goal = Goal.parse(TARGETS[name])
    arms = Variant("Optuna", tuple(optunas), "combination"), Variant("explore", tuple(ours), "combination")
    first = _FRESH + _SEEDS * repetition
    with workspace(folder, [PROBE]) as where:
        runner = TrialRunner(Target.of(PROGRAMS[name]), goal, where, clock="cpu")
        runs: tuple[list[Any], list[Any]] = [], []
        for number in range(_PAIRS):
            requests = [Request(one, first + number, limit, split="confirmation") for one in arms]
            # The order alternates, so that what changes with time hits both alike.
            order = (0, 1) if number % 2 == 0 else (1, 0)
            for which, outcome in zip(order, runner.train([requests[each] for each in order]), strict=True):
                runs[which].append(outcome)
    found = compare_runs(goal, arms, *runs, limit)
    print(f"{name}: explore's recipe is {found} (before: Optuna's)", flush=True)
    return {**found.to_json(), "text": str(found)}


def measure(folder: Path, names: Iterable[str], repetitions: Iterable[int], *, with_optuna: bool = True) -> Report:
    """Explore programs, as far as the folder does not have the results, and report all that it has.

    Args:
        folder: Folder of all records.
        names: The programs.
        repetitions: Numbers of the repetitions.
        with_optuna: Whether Optuna searches as well.
    """
    torch.set_num_threads(1)
    names = list(names)
    for repetition in repetitions:
        for name in names:
            own = folder / f"{name}-{repetition}-search{SEARCH}"
            own.mkdir(parents=True, exist_ok=True)
            found = kept(own / "explored.json", lambda n=name, r=repetition, o=own: explored(n, r, o / "runs"))
            if with_optuna:
                best = kept(
                    own / "optuna.json",
                    lambda n=name, r=repetition, o=own, f=found: optuna_best(n, r, f, o / "runs"),
                )
                kept(
                    own / "head_to_head.json",
                    lambda n=name, r=repetition, o=own, f=found, b=best: head_to_head(
                        n, r, f["recipe"]["changes"], b["variant"]["changes"], f["limit"], o / "runs"
                    ),
                )
            print(report_of(folder).text(), flush=True)
    return report_of(folder)


def restore(folder: Path, results: Path = RESULTS) -> int:
    """Write the published explorations into a folder, see :func:`benchmarks.kept.restore`, and return their number.

    Args:
        folder: Folder of all records.
        results: Folder of the published results.
    """
    return kept_files.restore(folder, published_samples("exploration", results))


def report_of(folder: Path) -> Report:
    """Return the report of all results in a folder.

    Args:
        folder: Folder of all records.
    """
    rows: list[list[Any]] = []
    samples: dict[str, Any] = {}
    paths = folder.glob("*/explored.json")
    found = {
        path.parent.name: {file.stem: json.loads(file.read_text()) for file in sorted(path.parent.glob("*.json"))}
        for path in paths
    }
    for name, own in sorted(found.items(), key=lambda pair: _place(pair[1]["explored"])):
        samples[name] = own
        rows.append(_row(own["explored"], own.get("optuna"), own.get("head_to_head")))
    return Report(
        "exploration",
        "What composer explore finds on four programs, and what Optuna finds in the same time",
        list(_COLUMNS),
        rows,
        _limits([one["explored"] for one in samples.values()]),
        list(_NOTES),
        samples,
        environment.describe(),
        arguments="FOLDER --write",
        separate_samples=True,
    )


_COLUMNS = (
    "program, repetition",
    "search",
    "recipe",
    "times as fast as the tuned baseline",
    "as the program as it is",
    "search, in trainings",
    "placebos that pay",
    "CPU minutes",
    "Optuna's trials",
    "Optuna's best",
    "explore's recipe, times as fast as Optuna's best",
)
_NOTES = [
    "Search 1 is that of 24 November 2026. Search 2 doubts what the cost of a step says, tries methods without a run "
    "more often, and confirms the best single method where a combination is not confirmed. Search 3 also expects of "
    "memory layouts and precisions that they gain just what their steps are faster, and search 4 that they do so the "
    "less, the less sure that measurement is. Search 5 is search 4, but what is compiled beside a method is tried only "
    "if there is time to compile it twice. What a search repeats with the same seeds does not replace what an older "
    "one found: both are shown and counted.",
    "Each repetition has other seeds. Five placebos, methods that do nothing, are among the methods.",
    "Ratios are geometric means over pairs of runs with the same fresh seed on held-out data, with BCa intervals of "
    "95 %; times are seconds of training to the target, without evaluations and the start. The recipe is compared with "
    "the tuned baseline, or with the program as it is if that is not tuned or if the recipe is the tuning alone.",
    "All seconds are CPU seconds of the training process, with one thread: `clock='cpu'`.",
    "A search counts the A/A runs, screening, tuning, race and combinations, as multiples of a run of the program as "
    "it is to the target, with start and evaluations. The minutes are those of all runs, also of the confirmation and "
    "the attribution.",
    "Optuna searches the same space as explore, its learning rate continuous, for the same minutes, with its default "
    "sampler (TPE) and its median pruner, and the program as it is as the first trial. Its objective is the time to "
    "the target with seed 0 on the data that explore selects by; each evaluation is reported to the pruner.",
    "Optuna's best and explore's recipe are then trained with 8 seeds that neither has used, in pairs and in turn.",
]


def _facts(name: str, folder: Path) -> ProgramFacts:
    with workspace(folder, [FACTS_PROBE]) as where:
        return program_facts(Target.of(PROGRAMS[name]), where)


def _accepted(found: Exploration) -> list[str]:
    """The placebos that are said to pay, or are in the recipe."""
    names = {one.variant.name for one in found.verdicts if str(one.decision) == "pays"}
    names |= {one.name for one in found.recipe.single}
    changes = {name: change for change in PLACEBOS for name in names if name in change}
    return sorted(changes)


def _place(found: Mapping[str, Any]) -> tuple[int, int, int]:
    return _search_of(found), found["repetition"], list(PROGRAMS).index(found["name"])


def _search_of(found: Mapping[str, Any]) -> int:
    """Number of the search; the first one did not write it."""
    return found.get("search", 1)


def _row(found: Mapping[str, Any], optuna: Mapping[str, Any] | None, both: Mapping[str, Any] | None) -> list[Any]:
    return [
        f"{found['name']}, {found['repetition'] + 1}",
        str(_search_of(found)),
        found["recipe"]["name"] if found["found"] else "nothing",
        _ratio(found["result"]),
        _ratio(found["overall"]),
        f"{found['search_cost']:.1f}",
        f"{len(found['placebos'])} of {len(PLACEBOS)}",
        f"{found['minutes']:.1f}",
        "-" if optuna is None else f"{optuna['trials']} ({optuna['pruned']} pruned, {optuna['failed']} failed)",
        "-" if optuna is None else ", ".join(optuna["variant"]["changes"]) or "nothing",
        _ratio(both),
    ]


def _ratio(found: Mapping[str, Any] | None) -> str:
    """A ratio with its interval, and how many runs did not get there."""
    if found is None or found["effect"] is None:
        return "-"
    ends = (found["effect"][end] for end in ("value", "low", "high"))
    value, low, high = ("inf" if end is None else f"{end:.2f}" for end in ends)
    missed = [
        f"{found['pairs'] - found[key]} {what} missed"
        for key, what in (("reached_before", "before"), ("reached_after", "after"))
        if found[key] is not None and found[key] < found["pairs"]
    ]
    return f"{value} ({low} to {high})" + "".join(f", {each}" for each in missed)


def _limits(found: Sequence[Mapping[str, Any]]) -> list[Limit]:
    """The goals."""
    if not found:
        return []
    tried, accepted = len(PLACEBOS) * len(found), sum(len(one["placebos"]) for one in found)
    costs = [one["search_cost"] for one in found]
    numbers = sorted({_search_of(one) for one in found})
    searches = {number: [one for one in found if _search_of(one) == number] for number in numbers}
    return [
        *(_slow(own, search) for search, own in searches.items()),
        Limit(
            f"placebos that are said to pay, of {tried}",
            100 * accepted / tried,
            5.0,
            "%",
            doubt="" if tried >= 100 else "fewer than 100 are tried",
        ),
        Limit("cost of a search at most", max(costs), 15.0, "trainings"),
        *(_stability(own, search) for search, own in searches.items()),
    ]


def _slow(own: Sequence[Mapping[str, Any]], search: int) -> Limit:
    """Of how many programs the first repetition by a search finds no recipe that is surely faster."""
    gains = {one["name"]: _low(one) for one in own if one["repetition"] == 0}
    what = f"programs whose recipe is not surely {_GAIN} times as fast as the tuned baseline"
    return Limit(
        f"{what} (first repetition, search {search})",
        sum(low < _GAIN for low in gains.values()),
        1,
        doubt="" if len(gains) == len(PROGRAMS) else f"{len(gains)} of {len(PROGRAMS)} programs are measured",
    )


def _stability(own: Sequence[Mapping[str, Any]], search: int) -> Limit:
    """Of how many programs too few repetitions by a search find recipes that are as good as each other."""
    unstable, short = 0, 0
    for name in PROGRAMS:
        effects = [(one["result"] or {}).get("effect") for one in own if one["name"] == name]
        ends = [
            (one["low"] or 0.0, math.inf if one["high"] is None else one["high"]) for one in effects if one is not None
        ]
        # Intervals that overlap in pairs have a point in common, which is the lower end of one of them.
        alike = max((sum(low <= point <= high for low, high in ends) for point, _ in ends), default=0)
        short += len(effects) < _REPETITIONS
        unstable += alike < _ALIKE * len(effects) / _REPETITIONS
    return Limit(
        f"programs whose intervals overlap in fewer than {_ALIKE} of {_REPETITIONS} repetitions (search {search})",
        unstable,
        0,
        doubt=f"{short} of {len(PROGRAMS)} programs have fewer repetitions" if short else "",
    )


def _low(found: Mapping[str, Any]) -> float:
    effect = (found["result"] or {}).get("effect")
    return -math.inf if effect is None or effect["low"] is None else effect["low"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="folder of all records; a later command with it continues")
    parser.add_argument("--tasks", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS), help="all by default")
    parser.add_argument(
        "--repetitions", nargs="*", type=int, default=[0], help="their numbers, from 0; none to report what is there"
    )
    parser.add_argument("--no-optuna", action="store_true", help="explore only")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/ from all that the folder has")
    parser.add_argument(
        "--from-results", action="store_true", help="lay the published explorations into the folder first"
    )
    parser.add_argument("--note", nargs="+", default=[], help="for the page, such as what else the host did meanwhile")
    given = parser.parse_args()
    if given.from_results:
        print(f"restored {restore(given.folder)} explorations", file=sys.stderr)
    report = measure(given.folder, given.tasks, given.repetitions, with_optuna=not given.no_optuna)
    report.notes.extend(given.note)
    if given.write:
        report.write()


if __name__ == "__main__":
    main()
