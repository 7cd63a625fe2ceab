"""Tasks on which methods are tried by themselves: each method on one where it should help, by its paper.

Four tasks are those of :mod:`benchmarks.explored`, with a target to be reached soon. The others have little data, which
a model learns by heart: there the metric after a fixed number of steps counts, which is what regularization is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.explored import PROGRAMS, TARGETS, book
from benchmarks.language_model import FeedForward, LanguageModel
from benchmarks.tasks import splits_of_digits
from benchmarks.training import Table, make_trainer
from composer import Trainer
from composer.algorithms.stochastic_depth import register_residual_block
from composer.models import ComposerClassifier

__all__ = ["TASKS", "EvidenceTask", "describe", "few_digits", "little_text", "patches"]


@dataclass(frozen=True)
class EvidenceTask:
    """A program, what is to be reached, and the methods that are tried.

    Attributes:
        about: The task in a few words, for the pages of the methods.
        program: Returns the trainer.
        methods: What to add, by the name of the method.
        target: What is to be reached as soon as possible; empty if the last value of ``metric`` counts.
        metric: The metric whose last value counts.
        beside: What runs without and with a method have in common, by the name of the method.
    """

    about: str
    program: Callable[[], Trainer]
    methods: Mapping[str, str]
    target: str = ""
    metric: str = ""
    beside: Mapping[str, str] | None = None


class _Residual(nn.Module):
    """Two convolutions beside which the input passes."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()),
            *(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


register_residual_block(_Residual)


def few_digits() -> Trainer:
    """Three residual blocks on 200 digits."""
    data = splits_of_digits()
    module = nn.Sequential(
        *(nn.Conv2d(1, 24, 5, stride=2, padding=2, bias=False), nn.BatchNorm2d(24), nn.ReLU()),
        *(_Residual(24), nn.ReLU(), _Residual(24), nn.ReLU(), _Residual(24), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.2), nn.Linear(96, 10)),
    )
    model = ComposerClassifier(module, num_classes=10, train_metrics={})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True, weight_decay=5e-4)
    train, held_out = Table(data["train"][list(range(200))]), Table(data["held_out"][list(range(1000))])
    return make_trainer(model, train, held_out, optimizer, batch_size=20, steps=250, interval=125, eval_batch_size=250)


class VisionTransformer(nn.Module):
    """A transformer of two layers on patches of 4 x 4 pixels; PatchDropout knows it by its names."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 50, width))
        self.patch_drop = nn.Identity()
        self.blocks = nn.Sequential(*(_EncoderBlock(width) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first.expand(len(x), 1, -1), tokens], dim=1) + self.places
        return self.head(self.norm(self.blocks(self.patch_drop(tokens))[:, 0]))


class _EncoderBlock(nn.Module):
    """Attention without a mask, then the network for each token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.feed_forward = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.feed_forward(self.norms[1](x))


def patches() -> Trainer:
    """A small vision transformer on 3,000 digits."""
    data = splits_of_digits()
    model = ComposerClassifier(VisionTransformer(), num_classes=10, train_metrics={})
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    held_out = Table(data["held_out"][list(range(500))])
    return make_trainer(model, data["train"], held_out, optimizer, batch_size=32, steps=600, interval=30)


def little_text() -> Trainer:
    """A transformer of two layers, with dropout between them, on 20,000 characters of a book."""
    train, held_out = _texts()
    model = LanguageModel()
    model.blocks.insert(1, nn.Dropout(0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95), weight_decay=0.1)
    return make_trainer(model, train, held_out, optimizer, batch_size=16, steps=250, interval=125)


def _texts() -> tuple[Table, Table]:
    """210 sequences of the book to train on, and those that :func:`.book` is evaluated on."""
    trainer = book()
    loaders = (trainer.state.train_dataloader, trainer.state.evaluators[0].dataloader.dataloader)
    train, held_out = (loader.dataset for loader in loaders)
    return Table(train[list(range(210))]), held_out


_IMAGES = "value_range=(-0.419, 2.806)"
_ANY = {
    "EMA": "EMA(half_life='12ba', update_interval='1ba')",
    "GradientClipping": "GradientClipping('norm', 1.0)",
    "SAM": "SAM(0.05, interval=10)",
    "SWA": "SWA(update_interval='6ba')",
}
_TEXT = {
    **_ANY,
    "BatchSizeWarmup": "BatchSizeWarmup(end=4, duration='0.5dur', lr_scaling='sqrt')",
    "Alibi": "Alibi(max_sequence_length={length}, train_sequence_length_scaling=1.0)",
    "GatedLinearUnits": "GatedLinearUnits()",
    "LayerFreezing": "LayerFreezing()",
    "SeqLengthWarmup": "SeqLengthWarmup(max_seq_length={length})",
    "SpikeSkip": "SpikeSkip()",
    "ZClip": "ZClip()",
}


def _of_length(length: int) -> dict[str, str]:
    return {name: call.format(length=length) for name, call in _TEXT.items()}


TASKS: dict[str, EvidenceTask] = {
    "few_digits": EvidenceTask(
        "200 digits of MNIST, a small residual network",
        few_digits,
        {
            **_ANY,
            "AugMix": f"AugMix(on_device=True, {_IMAGES})",
            "ColOut": "ColOut()",
            "CutMix": "CutMix()",
            "CutOut": "CutOut()",
            "GyroDropout": "GyroDropout()",
            "LabelSmoothing": "LabelSmoothing(0.1)",
            "MixUp": "MixUp(0.2)",
            "RandAugment": f"RandAugment(severity=4, depth=1, on_device=True, {_IMAGES})",
            "StochasticDepth": "StochasticDepth('_Residual', drop_rate=0.2)",
        },
        metric="MulticlassAccuracy",
    ),
    "little_text": EvidenceTask(
        "20,000 characters of a book, a small transformer",
        little_text,
        {
            **_ANY,
            "GyroDropout": "GyroDropout()",
            "NEFTune": "NEFTune(5.0, embedding='tokens')",
        },
        metric="CrossEntropy",
    ),
    "digits": EvidenceTask(
        "3,000 digits of MNIST, three convolutions",
        PROGRAMS["digits"],
        {
            **_ANY,
            "BlurPool": "BlurPool()",
            "ChannelsLast": "ChannelsLast()",
            "ColOut": "ColOut()",
            "Factorize": "Factorize(min_channels=24, min_features=64, latent_channels=0.5)",
            "GhostBatchNorm": "GhostBatchNorm(ghost_batch_size=8)",
            "LayerFreezing": "LayerFreezing()",
            "MixUp": "MixUp(0.05)",
            "ProgressiveResizing": "ProgressiveResizing()",
            "SelectiveBackprop": "SelectiveBackprop()",
            "SqueezeExcite": "SqueezeExcite(latent_channels=0.25, min_channels=32)",
            "WeightStandardization": "WeightStandardization()",
        },
        TARGETS["digits"],
    ),
    "speech": EvidenceTask(
        "spoken vowels, convolutions over time",
        PROGRAMS["speech"],
        {
            **_ANY,
            "GhostBatchNorm": "GhostBatchNorm(ghost_batch_size=8)",
            "LabelSmoothing": "LabelSmoothing(0.05)",
            "MixUp": "MixUp(0.2)",
            "SelectiveBackprop": "SelectiveBackprop()",
        },
        TARGETS["speech"],
    ),
    "patches": EvidenceTask(
        "3,000 digits of MNIST, a small vision transformer",
        patches,
        {
            **_ANY,
            "GatedLinearUnits": "GatedLinearUnits()",
            "LabelSmoothing": "LabelSmoothing(0.1)",
            "PatchDropout": "PatchDropout(0.25)",
        },
        "MulticlassAccuracy>=0.75",
    ),
    "book": EvidenceTask(
        "the characters of a book, a transformer of two layers",
        PROGRAMS["book"],
        {
            **_of_length(96),
            "Factorize": "Factorize(min_features=64, latent_features=0.25)",
            "LowPrecisionLayerNorm": "LowPrecisionLayerNorm()",
        },
        TARGETS["book"],
        beside={"LowPrecisionLayerNorm": "precision=amp_bf16"},
    ),
    "spelling": EvidenceTask(
        "from spelling to sound, a transformer of two layers", PROGRAMS["spelling"], _of_length(32), TARGETS["spelling"]
    ),
}


def describe(task: EvidenceTask) -> dict[str, Any]:
    """Return what a task is in JSON types, for the result file."""
    return {"about": task.about, "target": task.target, "metric": task.metric, "methods": dict(task.methods)}
