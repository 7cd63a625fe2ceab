"""Measure the cost of a schedule per step, compared with torch's schedulers."""

from __future__ import annotations

import argparse
import math
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch

from benchmarks import environment
from benchmarks.report import Goal, Report, spread


def subjects(steps: int) -> dict[str, Any]:
    """Return schedules of ours and of torch, each of an optimizer of its own.

    Args:
        steps: Length of the run that they are for.
    """
    from composer import State
    from composer.optim import (
        CosineAnnealingScheduler,
        CosineAnnealingWithWarmupScheduler,
        LinearScheduler,
        MultiStepScheduler,
        WarmupStableDecayScheduler,
        compile_composer_scheduler,
    )

    def optimizer() -> torch.optim.Optimizer:
        return torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)

    def compiled(schedule: Any) -> Any:
        state = State(model=torch.nn.Linear(1, 1), max_duration=f"{steps}ba", optimizers=optimizer())
        state.timestamp = state.timestamp.copy(batch=steps // 2)
        return compile_composer_scheduler(schedule, state)

    def cosine(step: int) -> float:
        return (1 + math.cos(math.pi * step / steps)) / 2

    return {
        "LambdaLR of torch, cosine": torch.optim.lr_scheduler.LambdaLR(optimizer(), cosine),
        "CosineAnnealingLR of torch": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer(), steps),
        "CosineAnnealingScheduler": compiled(CosineAnnealingScheduler()),
        "CosineAnnealingWithWarmupScheduler": compiled(CosineAnnealingWithWarmupScheduler("0.1dur")),
        "MultiStepScheduler, 2 milestones": compiled(MultiStepScheduler(["0.3dur", "0.6dur"])),
        "WarmupStableDecayScheduler": compiled(WarmupStableDecayScheduler("0.1dur")),
        "a sum of two": compiled(LinearScheduler(0, 1, "0.1dur") + CosineAnnealingScheduler()),
        "a function": compiled(lambda state, ssr: 1 - state.timestamp.batch.value / steps),
    }


def time_steps(rounds: int, calls: int) -> dict[str, list[float]]:
    """Time the steps in turn; return microseconds a step for each round.

    Args:
        rounds: Number of times that each is timed.
        calls: Number of steps each time.
    """
    times: dict[str, list[float]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch misses the steps of the optimizer
        steps: dict[str, Callable[[], None]] = {name: s.step for name, s in subjects(2 * rounds * calls).items()}
        for _ in range(rounds):
            for name, step in steps.items():
                repeat = range(calls)
                begin = time.perf_counter()
                for _ in repeat:
                    step()
                times.setdefault(name, []).append((time.perf_counter() - begin) / calls * 1e6)
    return times


def measure(rounds: int = 51, calls: int = 2_000) -> Report:
    """Compare the steps of schedules.

    Args:
        rounds: Number of times that each is timed.
        calls: Number of steps each time.
    """
    times = time_steps(rounds, calls)
    reference, *ours = times
    rows: list[list[Any]] = []
    ratios: dict[str, float] = {}
    for name, values in times.items():
        # Interleave rounds, so that a temporary slowdown affects both.
        ratios[name] = statistics.median(a / b for a, b in zip(values, times[reference], strict=True))
        rows.append([name, statistics.median(values), spread(values), min(values), ratios[name]])
    dearest = max((name for name in ours if "torch" not in name), key=lambda name: ratios[name])
    goals = [Goal(f"the dearest of ours ({dearest}), over LambdaLR", ratios[dearest], 1.0, "x")]
    notes = [f"{rounds} rounds of {calls} steps, in turn, in one process; median and half the interquartile range."]
    columns = ["microseconds a step", "median", "spread", "least", "times LambdaLR"]
    title = "Cost of a schedule"
    return Report("schedule_cost", title, columns, rows, goals, notes, dict(times), environment.describe())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=51)
    report = measure(parser.parse_args().rounds)
    print(report.text())
    report.write()


if __name__ == "__main__":
    main()
