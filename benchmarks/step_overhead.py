"""Measure the overhead of a training step over a hand-written loop, on a tiny model."""

from __future__ import annotations

import argparse
import statistics
from typing import Any, TypeAlias

import torch
from torch import nn

from benchmarks import contenders, environment
from benchmarks.contenders import CONTENDERS, SETTINGS, Task, make_loader
from benchmarks.report import Goal, Report, doubt_of, spread
from benchmarks.step_timing import CLOCKS, forget_garbage

BATCH_SIZE, NUM_FEATURES, NUM_CLASSES = 32, 64, 10
NUM_BATCHES = 64  # different ones; a loader repeats them
BY_HAND = {"composer": "full, times the same by hand", "default": "full with its own accuracy, times the same by hand"}

Samples: TypeAlias = dict[str, dict[str, list[list[float]]]]
"""Microseconds a step by contender, setting, round and repetition."""


def time_steps(
    name: str, settings: list[str], repeats: int, steps: int, warmup: int, device: str = "cpu", clock: str = "wall"
) -> dict[str, list[float]]:
    """Train as a contender does; return for each setting the microseconds a step of each repetition.

    Args:
        name: The contender.
        settings: Which of "bare" and "full".
        repeats: Number of trainings in each setting, alternating.
        steps: Number of steps timed in each.
        warmup: Number of warmup steps.
        device: "cpu" or "cuda".
        clock: "wall", or "cpu", which is less sensitive to other load on the host.
    """
    torch.set_num_threads(1)
    contender = CONTENDERS[name]
    contender.load()
    times: dict[str, list[float]] = {setting: [] for setting in settings}
    for _ in range(repeats):
        for setting in settings:
            times[setting].append(_train_once(contender, setting == "full", steps, warmup, device, clock))
    return times


def _train_once(contender: contenders.Contender, full: bool, steps: int, warmup: int, device: str, clock: str) -> float:
    torch.manual_seed(0)
    marks: list[float] = []

    def mark() -> None:
        if not marks:
            forget_garbage()
        if device != "cpu":
            torch.accelerator.synchronize()
        marks.append(CLOCKS[clock]())

    batches = [
        (torch.randn(BATCH_SIZE, NUM_FEATURES, device=device), torch.randint(NUM_CLASSES, (BATCH_SIZE,), device=device))
        for _ in range(NUM_BATCHES)
    ]
    module = nn.Sequential(nn.Linear(NUM_FEATURES, 64), nn.ReLU(), nn.Linear(64, NUM_CLASSES))
    task = Task(make_loader(batches, steps, warmup, mark), module, full, NUM_CLASSES, device)
    contender.train(task)
    if (
        full
        and contender.train is not contenders.train_raw
        and task.seen[0] != contenders.NUM_CALLBACKS * len(task.loader)
    ):
        raise RuntimeError(f"{contender.title} called the callbacks {task.seen[0]} times in {len(task.loader)} steps.")
    begin, end = marks
    return (end - begin) / steps * 1e6


def measure(
    names: list[str] | None = None,
    rounds: int = 5,
    repeats: int = 3,
    steps: int = 2000,
    warmup: int = 200,
    device: str = "cpu",
    clock: str = "wall",
) -> Report:
    """Time every contender that is installed, in turn, as often as there are rounds.

    Args:
        names: The contenders; "raw" among them.
        rounds: Number of processes of each contender.
        repeats: Number of runs in each process.
        steps: Number of steps timed in each run.
        warmup: Number of warmup steps.
        device: "cpu" or "cuda".
        clock: "wall" or "cpu".
    """
    names = contenders.present(names)
    samples: Samples = {name: {} for name in names}
    for _ in range(rounds):
        for name in names:
            settings = [setting for setting in SETTINGS if CONTENDERS[name].only in ("", setting)]
            if name == "raw":
                settings = ["bare"]
            counts: dict[str, Any] = {
                "repeats": repeats,
                "steps": steps,
                "warmup": warmup,
                "device": device,
                "clock": clock,
            }
            times = contenders.ask(name, "benchmarks.step_overhead:time_steps", settings=settings, **counts)
            for setting, values in times.items():
                samples[name].setdefault(setting, []).append(values)
    return _report(samples, rounds, repeats, steps, device, clock)


def _report(samples: Samples, rounds: int, repeats: int, steps: int, device: str, clock: str) -> Report:
    # A round's median against the median of the raw loop in the same round, so that a slow moment hits both.
    raw = [statistics.median(values) for values in samples["raw"]["bare"]]
    doubt = doubt_of("the raw loop", [value for found in samples["raw"]["bare"] for value in found])
    rows: list[list[Any]] = []
    goals: list[Goal] = []
    for setting in SETTINGS:
        for name, by_setting in samples.items():
            if setting not in by_setting and name != "raw":
                continue
            each = by_setting.get(setting, by_setting.get("bare", []))
            values = [statistics.median(found) for found in each]
            over = [value - base for value, base in zip(values, raw, strict=True)]
            ratio = statistics.median(value / base for value, base in zip(values, raw, strict=True))
            flat = [value for found in each for value in found]
            label = f"{setting}: {CONTENDERS[name].title}"
            best_over = min(flat) - min(value for found in samples["raw"]["bare"] for value in found)
            rows.append(
                [label, statistics.median(flat), spread(flat), min(flat), statistics.median(over), best_over, ratio]
            )
            if name == "composer" and setting == "bare":
                goals.append(Goal("bare, times the raw loop", ratio, 1.05, doubt=doubt))
                goals.append(Goal("bare, over raw", statistics.median(over), 25, "us", doubt))
            elif name in BY_HAND and setting == "full" and "hand" in samples:
                same = [statistics.median(found) for found in samples["hand"]["full"]]
                times = statistics.median(value / base for value, base in zip(values, same, strict=True))
                by_hand = [value for found in samples["hand"]["full"] for value in found]
                unclear = doubt or doubt_of("the same by hand", by_hand)
                goals.append(Goal(BY_HAND[name], times, 1.1, doubt=unclear))
    notes = [
        f"A multilayer perceptron {NUM_FEATURES}-64-{NUM_CLASSES}, batches of {BATCH_SIZE}, SGD, one thread, fp32, "
        f"device {device}; {steps} steps measured with the {clock} clock after a warm-up.",
        f"{rounds} rounds; in each, every contender in turn starts a new process, which trains "
        f"{'once' if repeats == 1 else f'{repeats} times'} in each setting.",
        "Before the clock starts, garbage is collected, so that no full collection falls into the steps of some.",
        "Median and half the interquartile range of all runs; 'over raw' and the ratio are medians over the rounds, "
        "each relative to the raw loop of the same round; 'minimum over raw' compares the fastest runs of both.",
        "bare: no progress bar, loggers, metrics or callbacks. full: a progress bar on a terminal, a linear schedule "
        "stepped each batch, torchmetrics' MulticlassAccuracy updated each batch, three callbacks at the end of a "
        "batch. Both are relative to the bare hand-written loop; 'the same by hand' is that loop with all features of "
        "full, with tqdm.",
    ]
    columns = ["µs per step", "median", "spread", "minimum", "over raw", "minimum over raw", "times raw"]
    title = "Cost of a training step over a hand-written loop"
    return Report("step_overhead", title, columns, rows, goals, notes, samples, environment.describe(device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--clock", default="wall", choices=list(CLOCKS))
    parser.add_argument("--only", nargs="+", choices=list(CONTENDERS), help="contenders in addition to the raw loop")
    given = parser.parse_args()
    names = ["raw", *(name for name in given.only if name != "raw")] if given.only else None
    report = measure(names, given.rounds, given.repeats, given.steps, device=given.device, clock=given.clock)
    print(report.text())
    if names is None and given.clock == "wall":
        report.write()


if __name__ == "__main__":
    main()
