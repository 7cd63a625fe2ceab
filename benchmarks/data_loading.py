"""Measure the time per batch of data loading: DataLoader with and without workers, and TensorLoader."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import environment
from benchmarks.report import Goal, Report, spread

SAMPLES, SHAPE, BATCH = 8192, (3, 32, 32), 256


def subjects(samples: int, device: str) -> dict[str, Callable[[], Iterable[Any]]]:
    """Return loaders of the same data, shuffled, whose batches are on the device.

    Args:
        samples: Number of images.
        device: "cpu" or "cuda".
    """
    from composer.datasets import DevicePrefetcher, TensorLoader

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(samples, *SHAPE, generator=generator)
    data = TensorDataset(x, torch.arange(samples))
    pinned = device == "cuda"

    def loader(workers: int) -> DataLoader[Any]:
        return DataLoader(
            data, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0, pin_memory=pinned
        )

    plain, working = loader(0), loader(2)
    prefetched, tensors = DevicePrefetcher(loader(0), device=device), TensorLoader(data.tensors, BATCH, device=device)

    def moved(source: Iterable[Any]) -> Iterable[Any]:
        return ([part.to(device, non_blocking=True) for part in batch] for batch in source)

    return {
        "DataLoader": lambda: moved(plain),
        "DataLoader, 2 workers": lambda: moved(working),
        "DevicePrefetcher of a DataLoader": lambda: prefetched,
        "TensorLoader": lambda: tensors,
    }


def time_passes(rounds: int, samples: int, device: str) -> dict[str, list[float]]:
    """Time passes over the data in turn; return microseconds a batch for each round.

    Args:
        rounds: Number of times that each is timed.
        samples: Number of images.
        device: "cpu" or "cuda".
    """
    times: dict[str, list[float]] = {}
    loaders = subjects(samples, device)
    for number in range(rounds + 1):
        for name, start_epoch_iterator in loaders.items():
            begin = time.perf_counter()
            count = sum(1 for _ in start_epoch_iterator())
            if device == "cuda":
                torch.cuda.synchronize()
            if number:  # the first pass starts workers and allocates
                times.setdefault(name, []).append((time.perf_counter() - begin) / count * 1e6)
    return times


def measure(rounds: int = 15, samples: int = SAMPLES, device: str = "cpu") -> Report:
    """Compare loaders.

    Args:
        rounds: Number of times that each is timed.
        samples: Number of images.
        device: "cpu" or "cuda".
    """
    times = time_passes(rounds, samples, device)
    reference = next(iter(times))
    rows: list[list[Any]] = []
    ratios: dict[str, float] = {}
    for name, values in times.items():
        # Interleave rounds, so that a temporary slowdown affects both.
        ratios[name] = statistics.median(a / b for a, b in zip(values, times[reference], strict=True))
        rows.append([name, statistics.median(values), spread(values), min(values), ratios[name]])
    goals = [Goal("a batch of TensorLoader, over one of DataLoader", ratios["TensorLoader"], 0.5, "x")]
    notes = [
        f"{samples} images of {' x '.join(map(str, SHAPE))} float32 with labels, batches of {BATCH}, shuffled.",
        f"{rounds} epochs of each, in turn, in one process, after a warm-up epoch; median and half the "
        f"interquartile range. Batches are copied to the device: {device}.",
    ]
    if spread(times[reference]) > 0.05 * statistics.median(times[reference]):
        notes.append(
            "The times of the DataLoader varied by more than 5 %, because other work was running; compare the ratios."
        )
    columns = ["microseconds a batch", "median", "spread", "least", "times DataLoader"]
    title = "Cost of a batch"
    return Report("data_loading", title, columns, rows, goals, notes, dict(times), environment.describe())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    given = parser.parse_args()
    report = measure(given.rounds, device=given.device)
    print(report.text())
    report.write()


if __name__ == "__main__":
    main()
