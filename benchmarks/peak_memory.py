"""Measure the peak memory of training, compared with a hand-written loop."""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks import contenders, environment
from benchmarks.allocations import Allocations
from benchmarks.contenders import CONTENDERS, Task, make_loader
from benchmarks.report import Goal, Report, spread

MIB = 1 << 20
BLOCKS = (3, 4, 6, 3)
NUM_CLASSES = 10


class Residual(nn.Module):
    """The basic block of a residual network."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return (self.body(x) + self.shortcut(x)).relu()


def network(width: int, blocks: tuple[int, ...], num_classes: int) -> nn.Sequential:
    """Return a residual network; width 64 and blocks (3, 4, 6, 3) make a ResNet-34 with 21 million parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage, count in enumerate(blocks):
        for block in range(count):
            outputs = width << stage
            layers.append(Residual(channels, outputs, 2 if stage > 0 and block == 0 else 1))
            channels = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes))


def peak(name: str, setting: str, steps: int, image: int, batch_size: int, width: int, device: str) -> dict[str, float]:
    """Train as a contender does; return peaks in bytes.

    Args:
        name: The contender.
        setting: "bare" or "full".
        steps: Number of steps.
        image: Height and width of the images.
        batch_size: Number of images in a batch.
        width: Channels of the network's first stage.
        device: "cpu" or "cuda".
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    CONTENDERS[name].load()

    def run(width: int, image: int) -> None:
        shape = batch_size, 3, image, image
        batch = torch.randn(shape, device=device), torch.zeros(batch_size, dtype=torch.long, device=device)
        loader = make_loader([batch, batch], steps, 0, lambda: None, tail=0)
        task = Task(loader, network(width, BLOCKS, NUM_CLASSES), setting == "full", NUM_CLASSES, device)
        CONTENDERS[name].train(task)

    run(1, 8)  # loads what is loaded when first used
    gc.collect()
    if device != "cpu":
        with Allocations(device) as allocations:
            run(width, image)
        return {"tensors": float(allocations.whole.peak)}
    before = _resident()
    run(width, image)
    process = environment.resident_peak() - before
    gc.collect()
    with Allocations(device) as allocations:
        run(width, image)
    return {"tensors": float(allocations.whole.peak), "process": process}


def _resident() -> float:
    """Bytes of this process in memory."""
    return float(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())


def measure(
    names: list[str] | None = None,
    settings: tuple[str, ...] = ("bare",),
    rounds: int = 3,
    steps: int = 3,
    image: int = 32,
    batch_size: int = 16,
    width: int = 64,
    device: str = "cpu",
) -> Report:
    """Measure every contender that is installed, in turn, as often as there are rounds.

    Args:
        names: The contenders; "raw" among them.
        settings: Which of "bare" and "full".
        rounds: Number of processes of each contender.
        steps: Number of steps.
        image: Height and width of the images.
        batch_size: Number of images in a batch.
        width: Channels of the network's first stage.
        device: "cpu" or "cuda".
    """
    size = {"steps": steps, "image": image, "batch_size": batch_size, "width": width, "device": device}
    cases = [(name, s) for s in settings for name in contenders.present(names) if CONTENDERS[name].only in ("", s)]
    if ("raw", "bare") not in cases:
        raise ValueError(
            f"The hand-written loop is what others are compared with; got names={names}, settings={settings}."
        )
    samples: dict[str, dict[str, list[float]]] = {f"{s}: {CONTENDERS[name].title}": {} for name, s in cases}
    for _ in range(rounds):
        for name, setting in cases:
            found = contenders.ask(name, "benchmarks.peak_memory:peak", setting=setting, **size)
            for what, value in found.items():
                samples[f"{setting}: {CONTENDERS[name].title}"].setdefault(what, []).append(value)
    return _report(samples, rounds, size)


def _report(samples: dict[str, dict[str, list[float]]], rounds: int, size: dict[str, Any]) -> Report:
    base = {what: statistics.median(v) for what, v in samples[f"bare: {CONTENDERS['raw'].title}"].items()}
    parameters = sum(p.numel() for p in network(size["width"], BLOCKS, NUM_CLASSES).parameters())
    rows: list[list[Any]] = []
    goals: list[Goal] = []
    for label, found in samples.items():
        row: list[Any] = [label]
        for what, values in found.items():
            middle = statistics.median(values)
            row += [middle / MIB, spread(values) / MIB, f"{middle / base[what]:.4f}"]
            if what == "tensors" and label.endswith(": composer"):
                goals.append(Goal(f"{label.partition(':')[0]}, tensors, times the raw loop", middle / base[what], 1.01))
        rows.append(row)
    columns = ["MiB at the peak", "tensors", "spread", "times raw"]
    notes = [
        f"A residual network with {parameters / 1e6:.1f} million parameters, {size['batch_size']} images of "
        f"{size['image']} x {size['image']}, SGD, one thread, {size['steps']} steps, device {size['device']}; "
        f"{rounds} processes for each value, in turn; medians and half the interquartile range.",
    ]
    if size["device"] == "cpu":
        columns += ["process", "spread", "times raw"]
        notes += [
            "tensors: peak bytes allocated by torch, summed from every allocation.",
            "process: growth of the resident memory, in a separate run without the profiler; it includes memory that "
            "the C library's allocator caches and workspace memory of the kernels.",
        ]
    else:
        notes.append("tensors: torch.cuda.max_memory_allocated.")
    title = "Peak memory of a training against a hand-written loop"
    return Report("peak_memory", title, columns, rows, goals, notes, samples, environment.describe(size["device"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    given = parser.parse_args()
    report = measure(rounds=given.rounds, device=given.device)
    print(report.text())
    report.write()


if __name__ == "__main__":
    main()
