"""Measure the cost of each callback per training step."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks import environment
from benchmarks.report import Report, spread
from benchmarks.step_timing import CLOCKS, microseconds_per_step

BATCH_SIZE, NUM_FEATURES, NUM_CLASSES = 32, 64, 10
NUM_BATCHES = 64  # different ones; a loader repeats them
EACH_STEP = (
    "before_dataloader",
    "after_dataloader",
    "batch_start",
    "after_loss",
    "before_forward",
    "after_forward",
    "after_train_batch",
    "batch_end",
)


def subjects() -> dict[str, Callable[[], list[Any]]]:
    """Return what is timed: how the callbacks of each contender are made, by its name."""
    from composer import Callback
    from composer import callbacks as c

    class Empty(Callback):
        def batch_end(self, state: Any, logger: Any) -> None:
            pass

    return {
        "no callback": list,
        "an empty callback": lambda: [Empty()],
        "CallbackTimer around the empty callback": lambda: [c.CallbackTimer(), Empty()],
        "ActivationMonitor": lambda: [c.ActivationMonitor(only_log_wandb=False)],
        "DataloaderMonitor": lambda: [c.DataloaderMonitor()],
        "EarlyStopper, on an evaluator that is never due": lambda: [c.EarlyStopper("MulticlassAccuracy", "eval")],
        "FreeOutputs": lambda: [c.FreeOutputs()],
        "GarbageCollector": lambda: [c.GarbageCollector()],
        "LRMonitor": lambda: [c.LRMonitor()],
        "MemoryMonitor": lambda: [c.MemoryMonitor()],
        "MemoryMonitor, every 10 batches": lambda: [c.MemoryMonitor(batch_log_interval=10)],
        "NaNMonitor": lambda: [c.NaNMonitor()],
        "OptimizerMonitor": lambda: [c.OptimizerMonitor()],
        "OptimizerMonitor, every batch": lambda: [c.OptimizerMonitor(batch_log_interval=1)],
        "RuntimeEstimator": lambda: [c.RuntimeEstimator()],
        "SpeedMonitor": lambda: [c.SpeedMonitor()],
        "SpikeRecorder": lambda: [c.SpikeRecorder()],
        "SpikeRecorder, loss and gradient norm": lambda: [c.SpikeRecorder(watch="both")],
        "SystemMetricsMonitor": lambda: [c.SystemMetricsMonitor()],
        "SystemMetricsMonitor, every batch": lambda: [c.SystemMetricsMonitor(batch_log_interval=1)],
    }


def time_steps(
    names: list[str], rounds: int, steps: int, warmup: int, device: str, clock: str
) -> dict[str, list[list[float]]]:
    """Train with each in turn; return for each round microseconds a step: of all, and in the callbacks' own methods.

    Args:
        names: Which of :func:`subjects`.
        rounds: Number of runs with each.
        steps: Number of steps timed in each run.
        warmup: Number of warmup steps.
        device: "cpu" or "cuda".
        clock: "wall", or "cpu", which is less sensitive to other load on the host.
    """
    torch.set_num_threads(1)
    made = subjects()
    times: dict[str, list[list[float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            whole = _train(made[name](), steps, warmup, device, CLOCKS[clock])
            times[name].append([whole, _in_methods(made[name](), steps, warmup, device)])
    return times


def _in_methods(watching: list[Any], steps: int, warmup: int, device: str) -> float:
    """Return microseconds a step in the callbacks' own methods, by CallbackTimer."""
    from composer.callbacks import CallbackTimer

    timer = CallbackTimer()
    _train([timer, *watching], steps, warmup, device, CLOCKS["wall"])
    names = {type(callback).__name__ for callback in watching}
    # What happens once in a training is not a matter of steps.
    spent = [cost.total for (name, event), cost in timer.costs.items() if name in names and event in EACH_STEP]
    return sum(spent) / (warmup + steps) * 1e6


def _train(watching: list[Any], steps: int, warmup: int, device: str, clock: Callable[[], float]) -> float:
    """Return microseconds a step of one training; what is logged is delivered every 100 batches and thrown away."""
    from composer import Evaluator, Trainer
    from composer.loggers import LoggerDestination
    from composer.models import ComposerClassifier

    class Nowhere(LoggerDestination):
        flush_interval = 100

    torch.manual_seed(0)
    batches = [
        (torch.randn(BATCH_SIZE, NUM_FEATURES), torch.randint(NUM_CLASSES, (BATCH_SIZE,))) for _ in range(NUM_BATCHES)
    ]
    module = nn.Sequential(nn.Linear(NUM_FEATURES, 64), nn.ReLU(), nn.Linear(64, NUM_CLASSES))
    model = ComposerClassifier(module, num_classes=NUM_CLASSES, train_metrics={})
    trainer = Trainer(
        model=model,
        train_dataloader=batches * (1 + (warmup + steps) // NUM_BATCHES),  # one epoch
        eval_dataloader=Evaluator(label="eval", dataloader=batches, eval_interval=0),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.01, foreach=True),
        max_duration=f"{warmup}ba",
        callbacks=watching,
        loggers=Nowhere(),
        progress_bar=False,
        auto_log_hparams=False,
        device=device,
        precision="fp32",
    )
    return microseconds_per_step(trainer, steps, device, clock)


def measure(
    names: list[str] | None = None,
    rounds: int = 15,
    steps: int = 500,
    warmup: int = 110,
    device: str = "cpu",
    clock: str = "wall",
) -> Report:
    """Compare training with each callback to training with none.

    Args:
        names: Which of :func:`subjects`, "no callback" first; all by default.
        rounds: Number of runs with each, in turn.
        steps: Number of steps timed in each run.
        warmup: Number of warmup steps; the window of SpeedMonitor has to fill.
        device: "cpu" or "cuda".
        clock: "wall" or "cpu".
    """
    times = time_steps(list(subjects()) if names is None else names, rounds, steps, warmup, device, clock)
    base = [whole for whole, _ in times["no callback"]]
    rows: list[list[Any]] = []
    for name, values in times.items():
        wholes = [whole for whole, _ in values]
        # Interleave rounds, so that a temporary slowdown affects both.
        over = [value - other for value, other in zip(wholes, base, strict=True)]
        least_over, in_methods = min(wholes) - min(base), min(inside for _, inside in values)
        rows.append([name, statistics.median(wholes), spread(wholes), statistics.median(over), least_over, in_methods])
    notes = [
        f"A multilayer perceptron {NUM_FEATURES}-64-{NUM_CLASSES}, batches of {BATCH_SIZE}, SGD, one thread, fp32, "
        f"device {device}; {rounds} rounds of {steps} steps each, in turn, after {warmup} warm-up steps, in one "
        f"process, measured with the {clock} clock.",
        "One logger receives the logged values every 100 batches and discards them; it also runs without a callback.",
        "Median and half the interquartile range. 'over none' is the median over the rounds of the difference to no "
        "callback in the same round; 'least over none' compares the fastest runs of both; 'in its methods' is the "
        "minimum that CallbackTimer measured in a separate run, without the logger's handling of the metrics.",
        "OptimizerMonitor inspects four parameters. The first columns of GarbageCollector include the single full "
        "collection when training begins.",
    ]
    columns = ["microseconds a step", "median", "spread", "over none", "least over none", "in its methods"]
    title = "Cost of each callback in a training step"
    return Report(
        "callback_cost",
        title,
        columns,
        rows,
        [],
        notes,
        dict(times),
        environment.describe(device),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--clock", default="wall", choices=list(CLOCKS))
    given = parser.parse_args()
    report = measure(None, given.rounds, given.steps, device=given.device, clock=given.clock)
    print(report.text())
    report.write()


if __name__ == "__main__":
    main()
