"""The functions that build networks check their numbers, before PyTorch or another library fails on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

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
from composer.models.resnet_cifar import ResNet9, ResNetCIFAR
from composer.models.unet import ResidualUNet

BUILDERS = {
    "mnist": mnist_model,
    "resnet_cifar": lambda num_classes: composer_resnet_cifar("resnet_20", num_classes),
    "resnet9": lambda num_classes: composer_resnet_cifar("resnet_9", num_classes),
    "unet": lambda num_classes: composer_unet(num_classes, 1, (4, 4)),
    "resnet": lambda num_classes: composer_resnet("resnet18", num_classes),
    "efficientnet": composer_efficientnetb0,
    "deeplabv3": lambda num_classes: composer_deeplabv3(num_classes, "resnet50"),
    "timm": lambda num_classes: composer_timm("test_resnet", num_classes=num_classes),
    "vit": lambda num_classes: composer_vit("vit_tiny_patch16", num_classes, 32),
}
PACKAGES = {
    "resnet": "torchvision",
    "efficientnet": "torchvision",
    "deeplabv3": "torchvision",
    "timm": "timm",
    "vit": "timm",
}


@pytest.mark.parametrize("name", BUILDERS)
def test_the_number_of_classes_is_checked(name: str) -> None:
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    with pytest.raises(ValueError, match="num_classes must be greater than 0, but got 0"):
        BUILDERS[name](0)
    with pytest.raises(TypeError, match=r"num_classes must be an integer.* but got 2\.5"):
        BUILDERS[name](2.5)


@pytest.mark.parametrize(
    ("make", "argument"),
    [
        (lambda: ResNetCIFAR(20, in_channels=0), "in_channels"),
        (lambda: ResNet9(in_channels=-3), "in_channels"),
        (lambda: ResidualUNet(0, 2, (4, 4)), "in_channels"),
        (lambda: ResidualUNet(1, 0, (4, 4)), "num_outputs"),
        (lambda: ResidualUNet(1, 2, (4, 0)), "widths"),
    ],
)
def test_the_numbers_of_channels_are_checked(make: Callable[[], Any], argument: str) -> None:
    with pytest.raises(ValueError, match=f"{argument} must be greater than 0"):
        make()


def test_the_sizes_of_vision_transformers_are_checked() -> None:
    pytest.importorskip("timm")
    with pytest.raises(ValueError, match="channels must be greater than 0"):
        composer_vit("vit_tiny_patch16", 10, 32, channels=0)
    with pytest.raises(TypeError, match="image_size must be an integer"):
        composer_vit("vit_tiny_patch16", 10, image_size="32")  # type: ignore[arg-type]
