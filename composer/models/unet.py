"""U-Net with residual blocks, after nnU-Net, for segmentation of medical images and, slice by slice, volumes.

Papers: U-Net, Ronneberger et al. 2015, https://arxiv.org/abs/1505.04597; nnU-Net, Isensee et al. 2018,
https://arxiv.org/abs/1809.10486
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from composer._numbers import whole_number
from composer.models._builder_classes import init_from_builder
from composer.models._segmentation import SegmentationLoss
from composer.models.classifier import ComposerClassifier
from composer.models.initializers import Initializer, initialize

if TYPE_CHECKING:
    from torchmetrics import Metric

__all__ = ["ResidualBlock", "ResidualUNet", "UNet", "composer_unet"]


class ResidualBlock(nn.Module):
    """Two convolutions with instance norm, and a shortcut: ``act(norm2(conv2(act(norm1(conv1(x))))) + shortcut(x))``.

    Args:
        in_channels: Channels of x.
        out_channels: Channels of the output.
        stride: Stride of the first convolution and of the shortcut, a 1 x 1 convolution if the shapes differ.

    >>> ResidualBlock(8, 16, stride=2)(torch.zeros(1, 8, 5, 5)).shape
    torch.Size([1, 16, 3, 3])
    """

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.InstanceNorm2d(out_channels, affine=True)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.InstanceNorm2d(out_channels, affine=True)
        self.act = nn.LeakyReLU(0.01, inplace=True)
        self.shortcut = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False),
                nn.InstanceNorm2d(out_channels, affine=True),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return the output, (B, out_channels, H / stride, W / stride), rounded up.

        Args:
            x: (B, in_channels, H, W).
        """
        shortcut = self.shortcut(x)
        x = self.act(self.norm1(self.conv1(x)))
        return self.act(self.norm2(self.conv2(x)) + shortcut)


class ResidualUNet(nn.Module):
    """A U-Net: an encoder that halves the image per level, and a decoder with skip connections.

    Volumes are supported too: their slices are processed independently, as images of a larger batch.

    Args:
        in_channels: Channels of the images.
        num_outputs: Channels of the logits.
        widths: Channels at full resolution, at half of it, and so on; two or more.

    Raises:
        ValueError: There are fewer than two widths, or a number is less than 1.

    >>> network = ResidualUNet(in_channels=1, num_outputs=4, widths=(8, 16, 16))
    >>> network(torch.zeros(2, 1, 21, 30)).shape
    torch.Size([2, 4, 21, 30])
    >>> network(torch.zeros(1, 1, 3, 16, 16)).shape
    torch.Size([1, 4, 3, 16, 16])

    Papers: https://arxiv.org/abs/1505.04597, https://arxiv.org/abs/1809.10486
    """

    def __init__(self, in_channels: int, num_outputs: int, widths: Sequence[int]) -> None:
        super().__init__()
        if len(widths) < 2:
            raise ValueError(f"widths must be two or more, such as (32, 64, 128), but got {widths!r}.")
        widths = [whole_number("widths", width, minimum=1) for width in widths]
        in_channels = whole_number("in_channels", in_channels, minimum=1)
        num_outputs = whole_number("num_outputs", num_outputs, minimum=1)
        self.first = ResidualBlock(in_channels, widths[0])
        self.down = nn.ModuleList(ResidualBlock(outer, inner, stride=2) for outer, inner in pairwise(widths))
        upwards = list(pairwise(reversed(widths)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(inner, outer, 2, stride=2) for inner, outer in upwards)
        self.joined = nn.ModuleList(ResidualBlock(2 * outer, outer) for _, outer in upwards)
        self.to_logits = nn.Conv2d(widths[0], num_outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of each pixel, (B, num_outputs, H, W), or (B, num_outputs, D, H, W).

        Args:
            x: Images, (B, in_channels, H, W), or volumes, (B, in_channels, D, H, W).

        Raises:
            ValueError: The shape is neither, or only one pixel would remain at the lowest resolution.
        """
        if x.ndim == 5:
            slices = self._of_images(x.transpose(1, 2).flatten(0, 1))
            return slices.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)
        if x.ndim != 4:
            raise ValueError(f"x must be images (B, C, H, W) or volumes (B, C, D, H, W), but got {tuple(x.shape)}.")
        return self._of_images(x)

    def _of_images(self, x: Tensor) -> Tensor:
        factor = 2 ** len(self.down)
        if max(x.shape[-2:]) <= factor:
            raise ValueError(
                f"An image of {x.shape[-2]} x {x.shape[-1]} pixels leaves one pixel after {len(self.down)} halvings, "
                "which cannot be normalized. Use larger images, or fewer widths."
            )
        x = self.first(x)
        skipped = [x]
        for down in self.down:
            x = down(x)
            skipped.append(x)
        for up, join, skip in zip(self.up, self.joined, reversed(skipped[:-1]), strict=True):
            # The encoder rounds odd sizes up.
            x = up(x)[..., : skip.shape[-2], : skip.shape[-1]]
            x = join(torch.cat([x, skip], dim=1))
        return self.to_logits(x)


def composer_unet(
    num_classes: int = 3,
    in_channels: int = 5,
    widths: Sequence[int] = (64, 96, 128, 192, 256, 384, 512),
    initializers: Iterable[Initializer | str] | Initializer | str | None = None,
) -> ComposerClassifier:
    """Build a residual U-Net for batches (images, classes of the pixels), (B, in_channels, H, W) and (B, H, W).

    Class 0 is the background. The loss is the sum of the cross entropy and the Dice loss of the other classes over the
    batch; both are logged as well. The metric is :class:`composer.metrics.Dice`. Volumes (B, in_channels, D, H, W)
    with targets (B, D, H, W) are supported too, slice by slice.

    Args:
        num_classes: Number of classes without the background; the network has one more output.
        in_channels: Channels of the images. The default is for brain scans in four modalities with a head mask.
        widths: Channels at full resolution, at half of it, and so on. At least two pixels must remain at the lowest
            resolution.
        initializers: Initializers to apply in order.

    Raises:
        ValueError: An initializer is unknown, there are fewer than two widths, or a number is less than 1.

    >>> model = composer_unet(num_classes=3, in_channels=1, widths=(8, 16, 32))
    >>> batch = (torch.zeros(2, 1, 32, 32), torch.zeros(2, 32, 32, dtype=torch.long))
    >>> outputs = model(batch)
    >>> outputs.shape, sorted(model.loss(outputs, batch))
    (torch.Size([2, 4, 32, 32]), ['cross_entropy', 'dice', 'total'])

    Papers: https://arxiv.org/abs/1505.04597, https://arxiv.org/abs/1809.10486
    """
    num_classes = whole_number("num_classes", num_classes, minimum=1)
    network = ResidualUNet(in_channels, num_classes + 1, widths)
    initialize(network, initializers)
    loss = SegmentationLoss(cross_entropy_weight=1.0, dice_weight=1.0, with_background=False)
    # The trainer accepts a mapping of loss terms, although the signature of the classifier says a tensor.
    return ComposerClassifier(network, num_classes + 1, _dice(num_classes), _dice(num_classes), cast(Any, loss))


class UNet(ComposerClassifier):
    """:func:`composer_unet` as a class, for subclassing and ``isinstance``."""

    __init__ = init_from_builder(composer_unet)


def _dice(num_classes: int) -> dict[str, Metric]:
    from composer.metrics.segmentation import Dice

    return {"Dice": Dice(num_classes)}
