"""Measure scaling: steps on one rank and on two, with DDP and FSDP2, compared with hand-written loops."""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as torch_dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks import environment
from benchmarks.report import Goal, Report, spread

MIB = 1 << 20
NUM_CLASSES = 10
STRATEGIES = ("single", "ddp", "fsdp")
LOOPS = ("raw", "composer")
# In turn, and the other way round, so that a machine that grows slower hits both.
ORDER = ("raw", "composer", "composer", "raw")


def network(width: int, depth: int) -> nn.Sequential:
    """Return a multilayer perceptron; width 1024 and depth 4 make 4.2 million parameters."""
    layers = [[nn.Linear(width, width), nn.ReLU()] for _ in range(depth)]
    return nn.Sequential(*itertools.chain.from_iterable(layers), nn.Linear(width, NUM_CLASSES))


class Marked:
    """Batches without end, the same one; notes when the first and the last of those that are timed are asked for."""

    def __init__(self, batch: tuple[Tensor, Tensor], warmup: int, steps: int) -> None:
        self.batch, self.warmup, self.steps = batch, warmup, steps
        self.marks: list[float] = []

    def __len__(self) -> int:
        return self.warmup + self.steps + 1

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for number in range(len(self)):
            if number in (self.warmup, self.warmup + self.steps):
                self.marks.append(time.perf_counter())
            yield self.batch

    @property
    def seconds(self) -> float:
        """Of a step."""
        begin, end = self.marks
        return (end - begin) / self.steps


def train_raw(module: nn.Sequential, data: Marked, strategy: str) -> None:
    """Train as one writes it by hand."""
    model: Callable[[Tensor], Tensor] = module
    if strategy == "ddp":
        model = DistributedDataParallel(module, gradient_as_bucket_view=True)
    elif strategy == "fsdp":
        for layer in module:
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        fully_shard(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9)
    for x, y in data:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def train_composer(module: nn.Sequential, data: Marked, strategy: str) -> None:
    """Train with this package."""
    from composer import ComposerModel, Trainer

    class Model(ComposerModel):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
            return self.module(batch[0])

        def loss(self, outputs: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
            return cross_entropy(outputs, batch[1])

    for layer in module:
        layer._fsdp_wrap = isinstance(layer, nn.Linear)  # type: ignore[assignment]  # the predecessor's mark
    model = Model()
    trainer = Trainer(
        model=model,
        train_dataloader=data,
        max_duration="1ep",
        optimizers=torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9),
        parallelism_config={"fsdp": {}} if strategy == "fsdp" else None,
        device="cpu",
        progress_bar=False,
    )
    trainer.fit()
    trainer.close()


def time_loops(strategy: str, loops: tuple[str, ...], width: int, depth: int, batch: int, steps: int) -> list[float]:
    """Return the seconds a step of each of the loops, trained one after the other, and the most memory in bytes.

    Args:
        strategy: "single", "ddp" or "fsdp".
        loops: "raw" and "composer", as often as they are to be trained.
        width: Of the network.
        depth: Of the network.
        batch: Number of samples per rank.
        steps: Number of steps that are timed.
    """
    times: list[float] = []
    for loop in loops:
        torch.manual_seed(0)
        data = Marked((torch.randn(batch, width), torch.randint(NUM_CLASSES, (batch,))), max(steps // 4, 2), steps)
        {"raw": train_raw, "composer": train_composer}[loop](network(width, depth), data, strategy)
        times.append(data.seconds)
        gc.collect()
    return [*times, environment.resident_peak()]


def _one_process(rank: int, size: int, folder: str, arguments: tuple[Any, ...]) -> None:
    names = {"RANK": rank, "LOCAL_RANK": rank, "NODE_RANK": 0, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(value) for name, value in names.items()})
    torch.set_num_threads(1)
    if size > 1:
        store, limit = f"file://{folder}/store", timedelta(seconds=600)
        torch_dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size, timeout=limit)
    values = time_loops(*arguments)
    if rank == 0:
        Path(folder, "values").write_text(" ".join(map(str, values)))
    if size > 1:
        torch_dist.barrier()
        torch_dist.destroy_process_group()


def ask(size: int, *arguments: Any) -> list[float]:
    """Return what :func:`time_loops` returns in the first of several new processes.

    Args:
        size: Number of processes.
        arguments: Of it.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_one_process, (size, folder, arguments), nprocs=size)  # pyright: ignore[reportPrivateImportUsage]
        return [float(value) for value in Path(folder, "values").read_text().split()]


def measure(
    rounds: int = 5,
    width: int = 1024,
    depth: int = 4,
    batch: int = 64,
    steps: int = 40,
    strategies: tuple[str, ...] = STRATEGIES,
) -> Report:
    """Time the loops of each strategy, in turn, as often as there are rounds.

    Args:
        rounds: Number of times that processes are started for each strategy.
        width: Of the network.
        depth: Of the network.
        batch: Number of samples per rank.
        steps: Number of steps that are timed.
        strategies: The strategies to compare.
    """
    samples: dict[str, dict[str, list[float]]] = {}
    shape = (width, depth, batch)
    for _ in range(rounds):
        for strategy in strategies:
            size = 1 if strategy == "single" else 2
            *times, _ = ask(size, strategy, ORDER, *shape, steps)
            for loop in LOOPS:
                found = [value * 1e3 for value, name in zip(times, ORDER, strict=True) if name == loop]
                samples.setdefault(f"{strategy}: {loop}", {}).setdefault("ms", []).append(statistics.mean(found))
                *_, memory = ask(size, strategy, (loop,), *shape, 3)
                samples[f"{strategy}: {loop}"].setdefault("MiB", []).append(memory / MIB)
    rows: list[list[Any]] = []
    goals: list[Goal] = []
    for strategy in strategies:
        raw = samples[f"{strategy}: raw"]
        for loop in LOOPS:
            own = samples[f"{strategy}: {loop}"]
            ratio = statistics.median(a / b for a, b in zip(own["ms"], raw["ms"], strict=True))
            memory = statistics.median(a / b for a, b in zip(own["MiB"], raw["MiB"], strict=True))
            row = [f"{strategy}: {loop}", statistics.median(own["ms"]), spread(own["ms"]), ratio]
            rows.append([*row, statistics.median(own["MiB"]), memory])
            if loop == "composer" and strategy != "single":
                goals.append(Goal(f"{strategy}, 2 processes, time over the raw loop", ratio, 1 / 0.97))
    notes = [
        f"A multilayer perceptron of {depth} layers of {width}, batches of {batch} samples on each rank, SGD with "
        f"momentum, one thread per rank, gloo; {steps} steps timed.",
        f"{rounds} rounds; in each, one or two ranks are started for each strategy and train {', '.join(ORDER)}.",
        "Milliseconds per step, and the peak resident memory of rank 0 over 3 steps, including all imported "
        "modules. Ratios are medians over the rounds, each relative to the raw loop of the same round.",
    ]
    columns = ["loop", "ms a step", "spread", "times raw", "MiB", "times raw "]
    return Report(
        "scaling", "A step of one process and of two", columns, rows, goals, notes, samples, environment.describe()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    report = measure(parser.parse_args().rounds)
    print(report.text())
    report.write()


if __name__ == "__main__":
    main()
