"""Measure what ``device_train_microbatch_size="auto"`` costs in a step whose size is known, over a fixed size."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks import environment
from benchmarks.report import Goal, Report, doubt_of, spread
from benchmarks.step_timing import CLOCKS, microseconds_per_step

BATCH_SIZE, NUM_FEATURES, NUM_CLASSES = 32, 64, 10
NUM_BATCHES = 64  # different ones; a loader repeats them
SIZES: dict[str, int | str] = {"fixed": BATCH_SIZE, "auto": "auto"}


def models() -> dict[str, Callable[[], nn.Module]]:
    """Return the models by name."""
    return {
        "MLP": lambda: nn.Sequential(nn.Linear(NUM_FEATURES, 64), nn.ReLU(), nn.Linear(64, NUM_CLASSES)),
        "MLP with BatchNorm": lambda: nn.Sequential(
            nn.Linear(NUM_FEATURES, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, NUM_CLASSES)
        ),
        "24 layers": lambda: nn.Sequential(
            *(nn.Sequential(nn.Linear(NUM_FEATURES, NUM_FEATURES), nn.ReLU()) for _ in range(24)),
            nn.Linear(NUM_FEATURES, NUM_CLASSES),
        ),
    }


def time_steps(rounds: int, steps: int, warmup: int, device: str, clock: str) -> dict[str, dict[str, list[float]]]:
    """Train each model with each size in turn; return microseconds a step of each round.

    Args:
        rounds: Number of runs of each.
        steps: Number of steps timed in each run.
        warmup: Number of steps before; the first ones estimate the size, and learn which buffers change.
        device: "cpu" or "cuda".
        clock: "wall", or "cpu", which is less sensitive to other load on the host.
    """
    torch.set_num_threads(1)
    times: dict[str, dict[str, list[float]]] = {name: {size: [] for size in SIZES} for name in models()}
    for _ in range(rounds):
        for name, make in models().items():
            for size, value in SIZES.items():
                times[name][size].append(_train(make(), value, steps, warmup, device, CLOCKS[clock]))
    return times


def _train(
    module: nn.Module, size: int | str, steps: int, warmup: int, device: str, clock: Callable[[], float]
) -> float:
    """Return microseconds a step of one training."""
    from composer import Trainer
    from composer.models import ComposerClassifier

    torch.manual_seed(0)
    batches = [
        (torch.randn(BATCH_SIZE, NUM_FEATURES), torch.randint(NUM_CLASSES, (BATCH_SIZE,))) for _ in range(NUM_BATCHES)
    ]
    model = ComposerClassifier(module, num_classes=NUM_CLASSES, train_metrics={})
    trainer = Trainer(
        model=model,
        train_dataloader=batches * (1 + (warmup + steps) // NUM_BATCHES),  # one epoch
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01, foreach=True),
        max_duration=f"{warmup}ba",
        progress_bar=False,
        auto_log_hparams=False,
        device=device,
        precision="fp32",
        device_train_microbatch_size=size,
    )
    return microseconds_per_step(trainer, steps, device, clock)


def measure(rounds: int = 31, steps: int = 1000, warmup: int = 100, device: str = "cpu", clock: str = "wall") -> Report:
    """Compare "auto" with a fixed size.

    Args:
        rounds: Number of runs of each, in turn.
        steps: Number of steps timed in each run.
        warmup: Number of steps before.
        device: "cpu" or "cuda".
        clock: "wall" or "cpu".
    """
    times = time_steps(rounds, steps, warmup, device, clock)
    rows: list[list[Any]] = []
    goals: list[Goal] = []
    for name, by_size in times.items():
        fixed, auto = by_size["fixed"], by_size["auto"]
        # Of the same round, so that a slow moment hits both.
        over = statistics.median(value - base for value, base in zip(auto, fixed, strict=True))
        ratio = statistics.median(value / base for value, base in zip(auto, fixed, strict=True))
        least = min(auto) - min(fixed)
        rows.append([name, statistics.median(fixed), spread(fixed), statistics.median(auto), over, least, ratio])
        if name == "MLP":
            doubt = doubt_of("the fixed size", fixed)
            goals.append(Goal('MLP, "auto" over a fixed size', over, 10, "us", doubt))
    notes = [
        f"Batches of {BATCH_SIZE}, SGD, one thread, fp32, device {device}; {rounds} rounds of {steps} steps each, in "
        f"turn, after {warmup} warm-up steps, in one process, measured with the {clock} clock.",
        'Both train the whole batch at once, so that they compute the same. Before each batch, "auto" saves what a '
        "retry needs: random states, and running statistics.",
        "Median and half the interquartile range. 'over fixed' and the ratio are medians over the rounds; 'least over "
        "fixed' compares the fastest runs of both.",
    ]
    columns = ["microseconds a step", "fixed", "spread", "auto", "over fixed", "least over fixed", "times fixed"]
    title = 'Cost of device_train_microbatch_size="auto" in later steps'
    return Report("auto_microbatch", title, columns, rows, goals, notes, times, environment.describe(device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--clock", default="wall", choices=list(CLOCKS))
    given = parser.parse_args()
    report = measure(given.rounds, given.steps, device=given.device, clock=given.clock)
    print(report.text())
    if given.clock == "wall":
        report.write()


if __name__ == "__main__":
    main()
