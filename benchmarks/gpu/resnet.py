"""ResNet-50 (He et al. 2015) with the stride in the 3 x 3 convolution, as torchvision has it, by PyTorch alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


@dataclass(frozen=True)
class Shape:
    """The sizes of a residual network; by default those of ResNet-50 on ImageNet.

    Attributes:
        blocks: Number of blocks in each stage.
        width: Channels of the first stage's inner convolutions.
        extent: Height and width of images.
        num_classes: Number of classes.
    """

    blocks: tuple[int, ...] = (3, 4, 6, 3)
    width: int = 64
    extent: int = 224
    num_classes: int = 1000


TINY = Shape(blocks=(1, 1), width=4, extent=16, num_classes=4)
_EXPANSION = 4


class Bottleneck(nn.Module):
    """Three convolutions beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = _EXPANSION * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = (
            nn.Identity()
            if inputs == outputs and stride == 1
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.body(x) + self.shortcut(x))


class ResNet(nn.Module):
    """A residual network of bottleneck blocks.

    Args:
        shape: Its sizes.

    Attributes:
        logits_dtype: That of the last logits: what shows that a training ran in bfloat16.
    """

    logits_dtype: torch.dtype | None = None

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        channels = shape.width
        self.stem = nn.Sequential(
            nn.Conv2d(3, channels, 7, 2, padding=3, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, padding=1),
        )
        stages: list[nn.Module] = []
        for stage, count in enumerate(shape.blocks):
            width = shape.width << stage
            for block in range(count):
                stages.append(Bottleneck(channels, width, 2 if stage > 0 and block == 0 else 1))
                channels = _EXPANSION * width
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, shape.num_classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, (B, classes).

        Args:
            images: (B, 3, H, W).
        """
        logits = self.head(self.stages(self.stem(images)))
        self.logits_dtype = logits.dtype
        return logits


def batches(shape: Shape, size: int, number: int) -> list[tuple[Tensor, Tensor]]:
    """Return the same batches each time, channels last: noise on a pattern for each of ten classes.

    Args:
        shape: That of the model.
        size: Number of images in a batch.
        number: Number of batches.
    """
    generator = torch.Generator().manual_seed(1)
    num_classes = min(10, shape.num_classes)
    patterns = torch.randn(num_classes, 3, shape.extent, shape.extent, generator=generator)
    made = []
    for _ in range(number):
        target = torch.randint(num_classes, (size,), generator=generator)
        images = torch.randn(size, 3, shape.extent, shape.extent, generator=generator).add_(patterns[target])
        made.append((images.contiguous(memory_format=torch.channels_last), target))
    return made


def flops(shape: Shape) -> float:
    """Return the floating-point operations of a forward and a backward pass for each image, as torch counts them.

    Args:
        shape: That of the model.
    """
    with torch.device("meta"), FlopCounterMode(display=False) as counter:
        ResNet(shape)(torch.empty(2, 3, shape.extent, shape.extent)).sum().backward()
    return counter.get_total_flops() / 2
