"""Compare a growing batch with constant ones on text: optimizer steps and held-out loss after the same samples."""

from __future__ import annotations

import argparse
import math
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks import environment
from benchmarks.language_model import SEQUENCE, LanguageModel
from benchmarks.report import Goal, Report
from benchmarks.tasks import source_code
from composer import Evaluator, Trainer
from composer.algorithms import BatchSizeWarmup
from composer.optim import LinearWithWarmupScheduler

BATCH, SAMPLES, LR, SEEDS = 16, 4800, 8e-3, 5
MILESTONES = {"0.25dur": 2, "0.5dur": 4}
# Two-sided 95 % quantiles of Student's t by degrees of freedom.
_T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}


@dataclass(frozen=True)
class Contender:
    """How large the batches are.

    Attributes:
        batch: Batch size of the loader.
        lr_factor: Factor of the learning rate.
        growth: Arguments of :class:`BatchSizeWarmup`; None for a constant batch.
    """

    batch: int = BATCH
    lr_factor: float = 1.0
    growth: dict[str, Any] | None = None


BASE = f"constant, {BATCH}"
CONTENDERS = {
    BASE: Contender(),
    f"constant, {2 * BATCH}": Contender(2 * BATCH, math.sqrt(2)),  # as many steps as the growing batch
    f"{BATCH} to {4 * BATCH}": Contender(growth={"milestones": MILESTONES, "lr_scaling": "sqrt"}),
}


def train(contender: Contender, seed: int) -> tuple[float, int, float]:
    """Train once; return the held-out loss, the number of steps, and CPU seconds.

    Args:
        contender: How large the batches are.
        seed: Seed of the weights and of the order.
    """
    data = source_code()
    torch.manual_seed(seed)
    model = LanguageModel()
    rate = LR * contender.lr_factor
    with Trainer(
        model=model,
        train_dataloader=DataLoader(data["train"], contender.batch, shuffle=True, drop_last=True),
        eval_dataloader=Evaluator(label="eval", dataloader=DataLoader(data["held_out"], 100)),
        eval_interval="1dur",
        max_duration=f"{SAMPLES}sp",
        optimizers=torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1),
        schedulers=LinearWithWarmupScheduler(t_warmup="0.1dur"),
        algorithms=[] if contender.growth is None else BatchSizeWarmup(**contender.growth),
        device="cpu",
        seed=seed,
        progress_bar=False,
    ) as trainer:
        begin = time.process_time()
        trainer.fit()
        seconds = time.process_time() - begin
        loss = float(trainer.state.eval_metric_values["CrossEntropy"])
        return loss, trainer.state.timestamp.batch.value, seconds


def measure(seeds: int = SEEDS) -> Report:
    """Train every contender with the same seeds, in turn.

    Args:
        seeds: Number of seeds, from 2 to 5.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        found = {name: list[tuple[float, int, float]]() for name in CONTENDERS}
        for seed in range(seeds):
            for name, contender in CONTENDERS.items():
                found[name].append(train(contender, seed))
    finally:
        torch.set_num_threads(threads)
    base, rows, goals = found[BASE], list[list[Any]](), list[Goal]()
    for name, runs in found.items():
        differences = [run[0] - other[0] for run, other in zip(runs, base, strict=True)]
        mean, half = _interval(differences)
        steps = runs[0][1] / base[0][1]
        ratio = statistics.mean(run[2] / other[2] for run, other in zip(runs, base, strict=True))
        loss = statistics.mean(run[0] for run in runs)
        rows.append([name, runs[0][1], steps, f"{loss:.4f}", f"{mean:+.4f}", f"{half:.4f}", ratio])
        if CONTENDERS[name].growth is not None:
            goals.append(Goal(f"{name}: steps, of those of {BASE}", steps, 0.6))
            goals.append(Goal(f"{name}: loss above that of {BASE}, upper end of the interval", mean + half, 0.01))
    return _report(rows, goals, found)


def _report(rows: list[list[Any]], goals: list[Goal], found: dict[str, list[tuple[float, int, float]]]) -> Report:
    notes = [
        f"Source code of Python's standard library as bytes, {SAMPLES} sequences of {SEQUENCE}, a transformer of two "
        f"layers and width 64, AdamW, learning rate {LR} for batches of {BATCH}, times the root of the ratio for "
        f"larger ones, a linear warm-up over a tenth and a linear decay, both by samples; one thread.",
        f"The growing batch is {BATCH} for a quarter of the samples, {2 * BATCH} until half of them, then {4 * BATCH}.",
        f"{len(found[BASE])} seeds, the same for all; differences of the loss are paired, with 95 % intervals by "
        f"Student's t. CPU time is that of fit, with the evaluation at the end.",
    ]
    columns = ["batch", "steps", "of the base's", "held-out loss", "difference", "±", "CPU time, of the base's"]
    title = "Growing batches on text: steps and loss after the same number of samples"
    samples = {name: [list(run) for run in runs] for name, runs in found.items()}
    return Report("batch_size_warmup", title, columns, rows, goals, notes, samples, environment.describe())


def _interval(values: list[float]) -> tuple[float, float]:
    """Return the mean, and half of its 95 % confidence interval."""
    error = statistics.stdev(values) / math.sqrt(len(values))
    return statistics.mean(values), _T[len(values) - 1] * error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, choices=sorted(n + 1 for n in _T))
    report = measure(parser.parse_args().seeds)
    print(report.text())
    report.write()


if __name__ == "__main__":
    main()
