"""ResNet image classifiers for 32 x 32 pixels (CIFAR-10): ResNet-20 to ResNet-110, and the fast ResNet-9.

Paper: Deep Residual Learning for Image Recognition, He et al. 2015, section 4.2, https://arxiv.org/abs/1512.03385
"""

from __future__ import annotations

from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor, nn

from composer._numbers import whole_number
from composer._text import one_of
from composer.models._builder_classes import init_from_builder
from composer.models.classifier import ComposerClassifier
from composer.models.initializers import Initializer, initialize

__all__ = ["BasicBlock", "ComposerResNetCIFAR", "ResNet9", "ResNetCIFAR", "composer_resnet_cifar"]

_DEPTHS = {f"resnet_{depth}": depth for depth in (20, 32, 44, 56, 110)}


class BasicBlock(nn.Module):
    """Two convolutions and a shortcut: ``relu(bn2(conv2(relu(bn1(conv1(x))))) + downsample(x))``.

    The layers have torchvision's names, by which :class:`composer.algorithms.StochasticDepth` recognizes them.

    Args:
        in_channels: Channels of x.
        out_channels: Channels of the output.
        stride: Stride of the first convolution and of the shortcut, a 1 x 1 convolution if the shapes differ.
        momentum: Momentum of the batch norms.

    >>> BasicBlock(8, 16, stride=2)(torch.zeros(1, 8, 6, 6)).shape
    torch.Size([1, 16, 3, 3])
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, momentum: float = 0.1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out_channels, momentum=momentum)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out_channels, momentum=momentum)
        self.downsample = None
        if stride != 1 or in_channels != out_channels:
            self.downsample = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
                nn.BatchNorm2d(out_channels, momentum=momentum),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, out_channels, H / stride, W / stride).

        Args:
            x: (B, in_channels, H, W).
        """
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + shortcut)


class ResNetCIFAR(nn.Module):
    """A ResNet of three stages, 16, 32 and 64 channels wide, each of (depth - 2) / 6 blocks.

    Args:
        depth: Number of layers with weights, shortcuts not counted: 6 n + 2.
        num_classes: C.
        in_channels: Channels of the images.

    Raises:
        ValueError: ``depth`` is not 6 n + 2, or there is no class or channel.

    >>> ResNetCIFAR(20)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])

    Paper: https://arxiv.org/abs/1512.03385
    """

    def __init__(self, depth: int, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        in_channels = whole_number("in_channels", in_channels, minimum=1)
        blocks, rest = divmod(whole_number("depth", depth) - 2, 6)
        if rest or blocks < 1:
            raise ValueError(f"depth must be 8, 14, 20, ... (6 n + 2), but got {depth!r}.")
        self.conv1 = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.fc = nn.Linear(64, whole_number("num_classes", num_classes, minimum=1))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (B, C).

        Args:
            x: Images, (B, in_channels, H, W).
        """
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class ResNet9(nn.Module):
    """A shallow and wide ResNet that trains in few epochs: four convolutions and two residual blocks.

    Its batch norms use momentum 0.9, which suits short schedules.

    Args:
        num_classes: C.
        in_channels: Channels of the images.

    Raises:
        ValueError: There is no class or channel.

    >>> ResNet9()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])

    After: David Page, How to Train Your ResNet, https://myrtle.ai/learn/how-to-train-your-resnet/
    """

    def __init__(self, num_classes: int = 10, in_channels: int = 3) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(
                _convolution(whole_number("in_channels", in_channels, minimum=1), 64),
                _convolution(64, 128),
                nn.MaxPool2d(2),
                BasicBlock(128, 128, momentum=0.9),
            ),
            *(_convolution(128, 256), nn.MaxPool2d(2)),
            *(_convolution(256, 256), nn.MaxPool2d(2), BasicBlock(256, 256, momentum=0.9)),
        )
        self.fc = nn.Linear(256, whole_number("num_classes", num_classes, minimum=1))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (B, C).

        Args:
            x: Images, (B, in_channels, H, W), of 8 x 8 pixels or more.
        """
        return self.fc(F.adaptive_avg_pool2d(self.features(x), 1).flatten(1))


def composer_resnet_cifar(
    model_name: str,
    num_classes: int = 10,
    initializers: Iterable[Initializer | str] | Initializer | str | None = None,
) -> ComposerClassifier:
    """Build a small ResNet as a classifier of batches (images, targets), images (B, 3, 32, 32).

    The metrics are the accuracy, and in evaluation also the cross entropy.

    Args:
        model_name: ``"resnet_9"`` (:class:`ResNet9`), or ``"resnet_20"``, ``"resnet_32"``, ``"resnet_44"``,
            ``"resnet_56"`` or ``"resnet_110"`` (:class:`ResNetCIFAR`).
        num_classes: C.
        initializers: Initializers to apply in order.

    Raises:
        ValueError: A name is unknown, or there is no class.

    >>> model = composer_resnet_cifar("resnet_20", initializers=["kaiming_normal", "bn_uniform"])
    >>> model((torch.zeros(2, 3, 32, 32), torch.tensor([1, 7]))).shape
    torch.Size([2, 10])

    Paper: https://arxiv.org/abs/1512.03385
    """
    one_of("model_name", model_name, ("resnet_9", *_DEPTHS))
    network = ResNet9(num_classes) if model_name == "resnet_9" else ResNetCIFAR(_DEPTHS[model_name], num_classes)
    initialize(network, initializers)
    return ComposerClassifier(network, num_classes=num_classes)


class ComposerResNetCIFAR(ComposerClassifier):
    """:func:`composer_resnet_cifar` as a class, for subclassing and ``isinstance``."""

    __init__ = init_from_builder(composer_resnet_cifar)


def _stage(in_channels: int, out_channels: int, blocks: int, stride: int) -> nn.Sequential:
    """Return blocks of equal width; the first changes the shape."""
    rest = (BasicBlock(out_channels, out_channels) for _ in range(blocks - 1))
    return nn.Sequential(BasicBlock(in_channels, out_channels, stride), *rest)


def _convolution(in_channels: int, out_channels: int) -> nn.Sequential:
    """Return a convolution that keeps the spatial size, batch norm and ReLU."""
    convolution = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels, momentum=0.9), nn.ReLU(inplace=True))
