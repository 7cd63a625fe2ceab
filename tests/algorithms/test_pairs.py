"""All pairs of methods, and random triples, compose: errors only for declared conflicts, and batches unchanged."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import schedulefree
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from composer import algorithms as methods
from composer import trees
from composer.core.algorithm import Algorithm
from composer.core.algorithm_order import Slot
from composer.core.model import ComposerModel
from composer.functional import register_residual_block
from composer.loss import soft_cross_entropy
from composer.warnings import NoEffectWarning, NotIntendedUseWarning
from tests import loop
from tests.algorithms.cases import copied, make_batches, public_classes


class Residual(nn.Module):
    """A residual block with weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(x).tanh()


register_residual_block(Residual)


def _body() -> nn.Sequential:
    """What both models have: (..., 16) in and out."""
    return nn.Sequential(
        Residual(16), nn.LayerNorm(16), Residual(16), nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 16)
    )


class ImageNet(ComposerModel):
    """Classifies images of any size by convolutions, then as patches by attention: every method finds its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Sequential(
            nn.Conv2d(2, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 16, 3, stride=2, padding=1),
            nn.GroupNorm(4, 16),
        )
        self.tokens = nn.Identity()
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
        self.body = _body()
        self.head = nn.Linear(16, 4)

    def forward(self, batch: Any) -> Tensor:
        tokens = self.tokens(self.patches(batch[0]).flatten(2).transpose(1, 2))
        return self.head(self.body(self.layer(tokens).mean(1)))

    def loss(self, outputs: Tensor, batch: Any, reduction: str = "mean") -> Tensor:
        return soft_cross_entropy(outputs, batch[1], reduction=reduction)


class TextNet(ComposerModel):
    """Predicts a label for each token; logits (B, C, S)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 24, dropout=0.0, batch_first=True)
        self.body = _body()
        self.head = nn.Linear(16, 20)

    def forward(self, batch: Any) -> Tensor:
        return self.head(self.body(self.layer(self.embed(batch["input_ids"])))).transpose(1, 2)

    def loss(self, outputs: Tensor, batch: Any, reduction: str = "mean") -> Tensor:
        return soft_cross_entropy(outputs, batch["labels"], reduction=reduction)


def _text_batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(20, (2, 2, 6, 16), generator=generator)
    return [{"input_ids": ids, "labels": labels} for ids, labels in tokens]


Make = Callable[..., Algorithm]
RANGE = (-6.0, 6.0)

# Each with a setting that acts in two steps. ``input_key`` and ``target_key`` are given to those that take them.
ANYWHERE: dict[str, Make] = {
    "BatchSizeWarmup": lambda: methods.BatchSizeWarmup({"0ba": 2}),
    "DiLoCo": lambda: methods.DiLoCo(1),
    "EMA": lambda: methods.EMA("1ba"),
    "Factorize": lambda: methods.Factorize(min_channels=8, min_features=16, latent_features=0.25),
    "GatedLinearUnits": methods.GatedLinearUnits,
    "GradientClipping": lambda: methods.GradientClipping("norm", 0.1),
    "GyroDropout": lambda: methods.GyroDropout(0.3, 4, 2),
    "LabelSmoothing": lambda target_key: methods.LabelSmoothing(0.1, target_key),
    # Up to the max-pooling: torch 2.13 crashes on CPUs in a channels-last group norm whose input needs no gradient.
    "LayerFreezing": lambda: methods.LayerFreezing(0.0, 0.3, "1ba"),
    "LocalSGD": lambda: methods.LocalSGD(1),
    "LowPrecisionLayerNorm": methods.LowPrecisionLayerNorm,
    "NoOpModel": methods.NoOpModel,
    "PostHocEMA": lambda: methods.PostHocEMA(snapshot_interval="1ba"),
    "SAM": lambda: methods.SAM(0.5),
    "SWA": lambda: methods.SWA("0dur", "1dur", "1ba"),
    "ScheduleFree": lambda: methods.ScheduleFree(2),
    "SelectiveBackprop": lambda **keys: methods.SelectiveBackprop(0.0, 1.0, interrupt=0, **keys),
    "SpikeSkip": lambda: methods.SpikeSkip(window=4),
    "StochasticDepth": lambda: methods.StochasticDepth("Residual", "sample", 0.5),
    "ZClip": lambda: methods.ZClip(warmup_steps=1),
}
FOR_IMAGES: dict[str, Make] = {
    "AugMix": lambda: methods.AugMix(on_device=True, value_range=RANGE),
    "BlurPool": methods.BlurPool,
    "ChannelsLast": methods.ChannelsLast,
    "ColOut": lambda: methods.ColOut(0.25, 0.25),
    "CutMix": lambda: methods.CutMix(1.0),
    "CutOut": lambda: methods.CutOut(1),
    "GhostBatchNorm": lambda: methods.GhostBatchNorm(2),
    "LowPrecisionGroupNorm": methods.LowPrecisionGroupNorm,
    "MixUp": lambda: methods.MixUp(1.0),
    "PatchDropout": lambda: methods.PatchDropout(0.5, 0, "tokens"),
    "ProgressiveResizing": lambda: methods.ProgressiveResizing(delay_fraction=0.6),
    "RandAugment": lambda: methods.RandAugment(on_device=True, value_range=RANGE),
    "SqueezeExcite": lambda: methods.SqueezeExcite(4, 4),
    "WeightStandardization": methods.WeightStandardization,
}
FOR_TEXT: dict[str, Make] = {
    "Alibi": lambda: methods.Alibi(16, 0.5),
    "NEFTune": methods.NEFTune,
    "SeqLengthWarmup": lambda: methods.SeqLengthWarmup(1.0, 8, 16, 8),
}
MAKE = {**ANYWHERE, **FOR_IMAGES, **FOR_TEXT}
KEYS = {True: {"input_key": "input_ids", "target_key": "labels"}, False: {"input_key": 0, "target_key": 1}}


def _pairs() -> list[tuple[str, str]]:
    """All pairs for one model; those of one slot in both orders, since the order given matters there."""
    slots = {
        name: Slot.AUGMENT if cls.__traits__.slot is None else cls.__traits__.slot
        for name, cls in public_classes().items()
    }
    return [
        (one, other)
        for one, other in itertools.permutations(sorted(MAKE), 2)
        if not ({one, other} & set(FOR_IMAGES) and {one, other} & set(FOR_TEXT))
        and (one < other or slots[one] == slots[other])
    ]


class Watch(Algorithm):
    """Given first, so that it is first before the forward pass and last after the backward pass."""

    def __init__(self) -> None:
        self.seen: list[tuple[list[Tensor], list[Tensor]]] = []
        self.steps = 0

    def before_forward(self, state: Any, logger: Any) -> None:
        leaves = list(trees.leaves(state.batch))
        self.seen.append((leaves, copied(leaves)))

    def after_backward(self, state: Any, logger: Any) -> None:
        found, values = self.seen.pop()
        assert all(now is then for now, then in zip(trees.leaves(state.batch), found, strict=True))
        assert all(torch.equal(now, then) for now, then in zip(found, values, strict=True))

    def batch_end(self, state: Any, logger: Any) -> None:
        self.steps += 1


def _make(name: str, text: bool) -> Algorithm:
    names = MAKE[name].__code__.co_varnames if hasattr(MAKE[name], "__code__") else ()
    keys = KEYS[text] if "keys" in names else {key: KEYS[text][key] for key in names if key in KEYS[text]}
    return MAKE[name](**keys)


def _conflicts(made: list[Algorithm]) -> list[str]:
    """The conflict reasons that the methods declare."""
    names = {type(one).__name__ for one in made}
    return [reason for one in made for other, reason in one.__traits__.conflicts_with.items() if other in names]


def _train(*names: str) -> None:
    """Train two steps with some methods; undeclared warnings are errors."""
    text = bool(set(names) & set(FOR_TEXT))
    torch.manual_seed(3)
    made, watch = [_make(name, text) for name in names], Watch()
    batches = _text_batches() if text else make_batches(2)
    if "BatchSizeWarmup" in names:
        batches = [*batches, *batches]  # a step takes two
    model = TextNet() if text else ImageNet()
    optimizer = schedulefree.SGDScheduleFree(model.parameters(), lr=0.1) if "ScheduleFree" in names else None
    if optimizer is not None:
        optimizer.train()
    conflicts = _conflicts(made)
    lowered = any(name.startswith("LowPrecision") for name in names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NotIntendedUseWarning)
        if "NoOpModel" in names:  # the others find nothing to work on, and say so
            warnings.simplefilter("ignore", NoEffectWarning)
        try:
            engine = loop.start(model, [watch, *made], optimizer, "2ba", "amp_bf16" if lowered else "fp32")
            loop.fit(engine, batches)
        except (TypeError, ValueError) as error:
            assert conflicts, f"{names}: {error}"
        else:
            assert watch.steps == 2
            assert not watch.seen
            assert engine.state.loss.isfinite()
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == len(conflicts), messages
    assert all(any(reason in message for message in messages) for reason in conflicts)


def test_every_method_is_included():
    assert set(MAKE) == set(public_classes())


@pytest.mark.parametrize("pair", _pairs(), ids="-".join)
def test_two_methods_compose(pair):
    _train(*pair)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.sampled_from([FOR_IMAGES, FOR_TEXT]))
def test_three_methods_compose_in_any_order(data, own):
    names = data.draw(st.lists(st.sampled_from([*ANYWHERE, *own]), min_size=3, max_size=3, unique=True))
    _train(*names)
