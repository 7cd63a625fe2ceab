"""Compare the time of each functional method with MosaicML Composer, and of new forms with their alternatives."""

from __future__ import annotations

import argparse
import gc
import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks import environment, method_cases, own_cases
from benchmarks.method_cases import CASES, KINDS, Case, Work
from benchmarks.report import Goal, Report, spread

# A sample lasts at least this long, by as many runs as it takes.
SAMPLE_SECONDS = 0.004
SIDES = ("ours", "theirs")
_MOST_RUNS = 1000
_built: dict[str, tuple[Work, int]] = {}


def time_case(side: str, label: str, samples: int) -> dict[str, list[float]]:
    """Time a case; return seconds a run by both clocks, for each sample.

    Args:
        side: Which package this process has to have.
        label: Which of ``CASES``. The last one stays built, so that asking again costs nothing.
        samples: Number of samples.

    Raises:
        RuntimeError: It is the process of the other side.
    """
    torch.set_num_threads(1)
    home = Path(method_cases.functional().__file__)
    if home.is_relative_to(environment.PREDECESSOR) != (side == "theirs"):
        raise RuntimeError(f"this was to be {side}, but composer comes from {home.parent}")
    if label not in _built:
        _built.clear()
        gc.unfreeze()
        work = CASES[label].build()
        _time(work, 1)  # what is loaded or made in the first run
        gc.freeze()  # or each collection between samples would look through all that was imported
        once = min(_time(work, 1)[0] for _ in range(2))
        # A run that uses something up is not repeated within a sample.
        runs = 1 if work.prepare else min(max(math.ceil(SAMPLE_SECONDS / max(once, 1e-9)), 1), _MOST_RUNS)
        _built[label] = work, runs
    work, runs = _built[label]
    found = [_time(work, runs) for _ in range(samples)]
    return {"cpu": [cpu for cpu, _ in found], "wall": [wall for _, wall in found]}


def _time(work: Work, runs: int) -> tuple[float, float]:
    """Seconds a run of one sample, by processor and by wall clock."""
    given = work.prepare() if work.prepare else None
    run, repeat = work.run, range(runs)
    gc.collect()
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in repeat:
            run(given)
        return (time.process_time() - cpu) / runs, (time.perf_counter() - wall) / runs
    finally:
        gc.enable()


def time_pair(place: int, rounds: int) -> dict[str, list[float]]:
    """Time both ways of a pair in turns; return processor seconds a run of each.

    Args:
        place: Place among ``own_cases.PAIRS``.
        rounds: Number of samples of each.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    form, instead = (Work(lambda _, run=run: run()) for run in own_cases.PAIRS[place].build())
    for work in (form, instead):
        _time(work, 1)
    found = [(_time(form, 1)[0], _time(instead, 1)[0]) for _ in range(rounds)]
    return {"ours": [one for one, _ in found], "theirs": [other for _, other in found]}


def measure(
    labels: list[str] | None = None, processes: int = 3, rounds: int = 3, samples: int = 3, pairs: bool = True
) -> Report:
    """Time each case in processes of ours and of the predecessor's in turns, then the forms of our own.

    Args:
        labels: Which cases; by default all.
        processes: Number of processes of each side: where one's memory lies makes it some percent faster or slower.
        rounds: Number of times that each is asked; the sides take turns at going first.
        samples: Number of samples each time.
        pairs: Whether to time the forms that the predecessor does not have.
    """
    cases = [CASES[label] for label in labels or CASES]
    found: dict[str, Any] = {case.label: {side: {"cpu": [], "wall": []} for side in SIDES} for case in cases}
    own: dict[str, dict[str, list[float]]] = {}
    for place in range(processes):
        with environment.Worker() as ours, environment.Worker(predecessor=True) as theirs:
            workers = dict(zip(SIDES, (ours, theirs), strict=True))
            for case in cases:
                _compare(workers, case.label, found[case.label], rounds, samples)
                print(f"{place + 1} of {processes}: {case.label}", file=sys.stderr, flush=True)
            if pairs and place == 0:
                own = {
                    pair.label: ours.call("benchmarks.methods:time_pair", place=number, rounds=processes * rounds)
                    for number, pair in enumerate(own_cases.PAIRS)
                }
    return _report(cases, found, own, processes, rounds, samples)


def _compare(
    workers: dict[str, environment.Worker], label: str, found: dict[str, Any], rounds: int, samples: int
) -> None:
    """Add samples of a case by side, clock and round; the error, if the predecessor cannot run it."""
    for turn in range(rounds):
        for side in SIDES if turn % 2 == 0 else SIDES[::-1]:
            if side == "theirs" and "error" in found:
                continue
            try:
                times = workers[side].call("benchmarks.methods:time_case", side=side, label=label, samples=samples)
            except RuntimeError as error:
                if side == "ours":
                    raise
                found["error"] = str(error).splitlines()[0]
                continue
            for clock, values in times.items():
                found[side][clock].append(values)


def ratios(found: dict[str, Any]) -> list[float]:
    """Return our median over theirs for each round, so that a slow moment hits both.

    Args:
        found: Samples of a case by side, clock and round.
    """
    sides = [[statistics.median(values) for values in found[side]["cpu"]] for side in SIDES]
    return [our / their for our, their in zip(*sides, strict=True)]


def _report(
    cases: list[Case],
    found: dict[str, Any],
    own: dict[str, dict[str, list[float]]],
    processes: int,
    rounds: int,
    samples: int,
) -> Report:
    rows: list[list[Any]] = []
    counted: dict[str, list[float]] = {}
    notes = [
        "One thread, CPU time, which equals wall time on an idle host and is less sensitive to other load. "
        f"{processes} pairs of processes, Composer and the predecessor, and {rounds} rounds in each pair; in a round, "
        f"both alternate and take {samples} samples of at least {SAMPLE_SECONDS * 1e3:g} ms. Milliseconds are medians; "
        "the ratio is the median over all rounds of our median over theirs, with half the interquartile range.",
        "Each change of a model is timed on a new copy of the model.",
    ]
    notes += [f"{kind}: {meaning}." for kind, meaning in KINDS.items()]
    for case in cases:
        times = found[case.label]
        our = 1e3 * statistics.median(value for values in times["ours"]["cpu"] for value in values)
        label = f"{case.kind}: {case.label}"
        if "error" in times:
            rows.append([label, our, "fails", "-", "-"])
            notes.append(f"{case.label}: not compared: {times['error']}.")
            continue
        their = 1e3 * statistics.median(value for values in times["theirs"]["cpu"] for value in values)
        ratio = statistics.median(ratios(times))
        rows.append([label, our, their, ratio, spread(ratios(times))])
        if case.unlike:
            notes.append(f"{case.label} is excluded from the goals: {case.unlike}.")
        else:
            counted[case.label] = ratios(times)
    for pair in own_cases.PAIRS:
        if pair.label in own:
            rows.append(_own_row(pair, own[pair.label]))
            form, instead = (f"{pair.number / statistics.median(own[pair.label][s]):,.0f} a second" for s in SIDES)
            notes.append(f"{pair.label}: {form}; {pair.instead}: {instead}.")
    if counted:
        notes.append(_beyond(counted))
    goals = [] if not counted else [_mean_goal(counted), _worst_goal(counted)]
    title = "Cost of the methods beside the predecessor's"
    columns = ["milliseconds", "ours", "theirs", "ours / theirs", "spread"]
    return Report("methods", title, columns, rows, goals, notes, {"cases": found, "own": own}, environment.describe())


def _own_row(pair: own_cases.Pair, times: dict[str, list[float]]) -> list[Any]:
    each = [our / other for our, other in zip(times["ours"], times["theirs"], strict=True)]
    middles = [1e3 * statistics.median(times[side]) for side in SIDES]
    return [f"own: {pair.label}; beside it {pair.instead}", *middles, statistics.median(each), spread(each)]


def _mean_goal(counted: dict[str, list[float]]) -> Goal:
    middles = [statistics.median(each) for each in counted.values()]
    return Goal("geometric mean of ours / theirs", statistics.geometric_mean(middles), 0.8)


def _worst_goal(counted: dict[str, list[float]]) -> Goal:
    middles = {label: statistics.median(each) for label, each in counted.items()}
    worst = max(middles, key=lambda label: middles[label])
    return Goal(f"the largest of ours / theirs, that of {worst}", middles[worst], 1.0)


def _beyond(counted: dict[str, list[float]]) -> str:
    """Which are above 1, and which of these by more than their spread: of two equal ones one is, every second time."""
    above = {label: each for label, each in counted.items() if statistics.median(each) > 1}
    clear = [label for label, each in above.items() if statistics.median(each) - spread(each) > 1]
    return f"Above 1: {', '.join(above) or 'none'}. By more than their spread: {', '.join(clear) or 'none'}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--only", nargs="+", metavar="WORD", help="cases with one of these words; writes nothing")
    given = parser.parse_args()
    labels = [label for label in method_cases.CASES if not given.only or any(word in label for word in given.only)]
    report = measure(labels, given.processes, pairs=not given.only)
    print(report.text())
    if given.only:
        print(*report.notes, sep="\n")
    else:
        report.write()


if __name__ == "__main__":
    main()
