"""The models train with the methods that guides use them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from composer import Algorithm
from composer.algorithms import (
    EMA,
    BlurPool,
    ChannelsLast,
    ColOut,
    CutMix,
    Factorize,
    GhostBatchNorm,
    LabelSmoothing,
    LayerFreezing,
    MixUp,
    ProgressiveResizing,
    SqueezeExcite,
    StochasticDepth,
)
from composer.core import ComposerModel
from composer.models import (
    composer_deeplabv3,
    composer_efficientnetb0,
    composer_resnet,
    composer_resnet_cifar,
    composer_timm,
    composer_unet,
    composer_vit,
    mnist_model,
)
from composer.nn import (
    BlurConv2d,
    BlurMaxPool2d,
    FactorizedConv2d,
    FactorizedLinear,
    GhostBatchNorm2d,
    SqueezeExciteConv2d,
)
from composer.nn.stochastic_depth import StochasticBlock
from tests.common import trainer_of, weights

pytest.importorskip("torchvision")
pytest.importorskip("timm")

CLASSES = 6
FREEZING = {"freeze_start": 0.1, "freeze_level": 0.5, "update_interval": "1ba"}


def images(channels: int = 3, dense: bool = False, size: int = 32) -> list[Any]:
    """Two batches of two images, each with a class, or a class for each pixel."""
    x = torch.randn(2, 2, channels, size, size)
    y = torch.randint(CLASSES, (2, 2, size, size) if dense else (2, 2))
    return list(zip(x, y, strict=True))


# Builder, methods, and what must be in the model that is trained.
CASES: dict[str, tuple[Callable[[], ComposerModel], Callable[[], list[Algorithm]], list[type[nn.Module]]]] = {
    "resnet50, surgery": (
        lambda: composer_resnet("resnet50", CLASSES),
        lambda: [
            *(BlurPool(), ChannelsLast(), SqueezeExcite(), GhostBatchNorm(ghost_batch_size=2)),
            *(StochasticDepth("ResNetBottleneck", drop_rate=0.2), EMA(half_life="1ba")),
        ],
        [BlurConv2d, BlurMaxPool2d, SqueezeExciteConv2d, GhostBatchNorm2d, StochasticBlock],
    ),
    "resnet18, batches": (
        lambda: composer_resnet("resnet18", CLASSES),
        lambda: [
            *(ColOut(), CutMix(1.0), LabelSmoothing(0.1)),
            *(ProgressiveResizing(delay_fraction=0.0), LayerFreezing(**FREEZING)),
        ],
        [],
    ),
    "resnet18, factorized": (
        lambda: composer_resnet("resnet18", CLASSES),
        lambda: [Factorize(min_channels=128, latent_channels=0.25), MixUp(0.2)],
        [FactorizedConv2d],
    ),
    "resnet_20": (
        lambda: composer_resnet_cifar("resnet_20", CLASSES),
        lambda: [
            *(BlurPool(min_channels=8), ChannelsLast(), StochasticDepth("BasicBlock", drop_rate=0.2)),
            *(LabelSmoothing(0.1), MixUp(0.2), LayerFreezing(**FREEZING), EMA(half_life="1ba")),
        ],
        [BlurConv2d, StochasticBlock],
    ),
    "resnet_9": (
        lambda: composer_resnet_cifar("resnet_9", CLASSES),
        lambda: [BlurPool(), SqueezeExcite(), GhostBatchNorm(2), CutMix(1.0), ProgressiveResizing(delay_fraction=0.0)],
        [BlurMaxPool2d, SqueezeExciteConv2d, GhostBatchNorm2d],
    ),
    "mnist": (
        lambda: mnist_model(CLASSES),
        lambda: [Factorize(min_features=32, latent_features=8), LabelSmoothing(0.1), MixUp(0.2), ColOut()],
        [FactorizedLinear],
    ),
    "efficientnet": (
        lambda: composer_efficientnetb0(CLASSES),
        lambda: [ChannelsLast(), BlurPool(), GhostBatchNorm(2), LabelSmoothing(0.1), EMA(half_life="1ba")],
        [BlurConv2d, GhostBatchNorm2d],
    ),
    "timm": (
        lambda: composer_timm("test_resnet", num_classes=CLASSES),
        lambda: [BlurPool(), ChannelsLast(), GhostBatchNorm(2), CutMix(1.0)],
        [BlurConv2d, GhostBatchNorm2d],
    ),
    "vit": (
        lambda: composer_vit("vit_tiny_patch16", CLASSES, image_size=32),
        lambda: [MixUp(0.2), LabelSmoothing(0.1), StochasticDepth("Block", drop_rate=0.1), LayerFreezing(**FREEZING)],
        [StochasticBlock],
    ),
    "deeplabv3": (
        lambda: composer_deeplabv3(CLASSES, "resnet50", dice_weight=0.5),
        lambda: [ChannelsLast(), BlurPool(), ColOut(0.1, 0.1), EMA(half_life="1ba")],
        [BlurMaxPool2d],
    ),
    "unet": (
        lambda: composer_unet(CLASSES - 1, in_channels=3, widths=(8, 16, 32)),
        lambda: [
            *(ChannelsLast(), SqueezeExcite(latent_channels=4, min_channels=16), ColOut(0.2, 0.2)),
            *(ProgressiveResizing(delay_fraction=0.0, resize_targets=True), EMA(half_life="1ba")),
        ],
        [SqueezeExciteConv2d],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_trains(name: str) -> None:
    build, algorithms, expected = CASES[name]
    model = build()
    data = images(1 if name == "mnist" else 3, dense=name in ("deeplabv3", "unet"))
    x, y = data[0][0].clone(), data[0][1].clone()
    trainer = trainer_of(model, data, lr=0.01, algorithms=algorithms(), precision="fp32", device="cpu")
    found = {type(module) for module in model.modules()}
    missing = [kind for kind in expected if not any(issubclass(each, kind) for each in found)]
    assert not missing, missing
    before = weights(trainer)
    trainer.fit()
    after = weights(trainer)
    assert after.isfinite().all()
    assert not torch.equal(before, after)
    loss = trainer.state.loss
    assert all(part.isfinite().all() for part in (loss.values() if isinstance(loss, dict) else [loss]))
    assert torch.equal(data[0][0], x)
    assert torch.equal(data[0][1], y)
    outputs = model.eval()(data[0])
    assert outputs.shape == ((2, CLASSES, 32, 32) if y.ndim == 3 else (2, CLASSES))
