"""DeepLabv3 and DeepLabv3+: semantic segmentation with atrous (dilated) convolutions at several rates.

Papers: Rethinking Atrous Convolution for Semantic Image Segmentation, Chen et al. 2017,
https://arxiv.org/abs/1706.05587; Encoder-Decoder with Atrous Separable Convolution for Semantic Image Segmentation,
Chen et al. 2018, https://arxiv.org/abs/1802.02611
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from composer import dist
from composer._lazy import import_extra
from composer._numbers import whole_number
from composer._text import one_of
from composer.models._builder_classes import init_from_builder
from composer.models._metrics import metrics_on_cpu
from composer.models._segmentation import SegmentationLoss
from composer.models._torchvision import resolve_weights
from composer.models.classifier import ComposerClassifier
from composer.models.initializers import Initializer, ensure_initializers, initialize
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from torchmetrics import Metric
    from torchvision.models import WeightsEnum

__all__ = ["AtrousPyramid", "ComposerDeepLabV3", "DeepLabV3", "composer_deeplabv3"]

_BACKBONES = ("resnet50", "resnet101", "resnet152")


class AtrousPyramid(nn.Module):
    """Atrous spatial pyramid pooling: parallel convolutions of several dilations and a global average, concatenated.

    Args:
        in_channels: Channels of the features.
        channels: Channels of each branch and of the output.
        dilations: Dilations of the 3 x 3 convolutions; a dilation of 1 means a 1 x 1 convolution.
        separable: Whether the 3 x 3 convolutions are depthwise separable, as in DeepLabv3+.

    >>> AtrousPyramid(8, 16)(torch.zeros(2, 8, 5, 5)).shape
    torch.Size([2, 16, 5, 5])

    Paper: https://arxiv.org/abs/1706.05587, section 3.3
    """

    def __init__(
        self,
        in_channels: int,
        channels: int = 512,
        dilations: Sequence[int] = (1, 12, 24, 36),
        separable: bool = False,
    ) -> None:
        super().__init__()
        make = _separable if separable else _convolution
        self.branches = nn.ModuleList(
            _convolution(in_channels, channels, 1) if each == 1 else make(in_channels, channels, 3, each)
            for each in dilations
        )
        self.of_image = nn.Sequential(nn.AdaptiveAvgPool2d(1), _convolution(in_channels, channels, 1))
        self.join = _convolution(channels * (len(dilations) + 1), channels, 3)

    def forward(self, features: Tensor) -> Tensor:
        """Return new features, (B, channels, H, W).

        Args:
            features: (B, in_channels, H, W); in training, B must be at least 2, as batch norm requires.
        """
        of_image = self.of_image(features).expand(-1, -1, *features.shape[-2:])
        return self.join(torch.cat([of_image, *(branch(features) for branch in self.branches)], dim=1))


class DeepLabV3(nn.Module):
    """A dilated ResNet, an :class:`AtrousPyramid`, and in DeepLabv3+ a decoder that refines edges with early features.

    The last two stages of the ResNet use dilation instead of stride, so that its output stride is 8.

    Args:
        backbone: A torchvision ResNet with these dilations; its head is dropped.
        num_classes: C.
        use_plus: Whether to decode with the features of the first stage.

    Raises:
        ValueError: There is no class.

    >>> import torchvision
    >>> resnet = torchvision.models.resnet50(replace_stride_with_dilation=[False, True, True])
    >>> network = DeepLabV3(resnet, num_classes=5).eval()
    >>> network(torch.zeros(1, 3, 32, 48)).shape
    torch.Size([1, 5, 32, 48])

    Papers: https://arxiv.org/abs/1706.05587, https://arxiv.org/abs/1802.02611
    """

    def __init__(self, backbone: nn.Module, num_classes: int, use_plus: bool = True) -> None:
        super().__init__()
        resnet = cast(Any, backbone)
        self.backbone = nn.ModuleDict(
            {
                "stem": nn.Sequential(resnet.conv1, resnet.bn1, resnet.relu, resnet.maxpool),
                **{f"layer{number}": getattr(resnet, f"layer{number}") for number in range(1, 5)},
            }
        )
        num_classes = whole_number("num_classes", num_classes, minimum=1)
        self.classifier = _Head(2048, 256 if use_plus else None, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits of each pixel, (B, C, H, W).

        Args:
            x: Images, (B, 3, H, W); in training, B must be at least 2.
        """
        early = self.backbone["layer1"](self.backbone["stem"](x))
        late = early
        for number in range(2, 5):
            late = self.backbone[f"layer{number}"](late)
        return _resize(self.classifier(early, late), x)


class _Head(nn.Module):
    """Map the features of the first and the last stage to logits, at the size of the first in DeepLabv3+."""

    def __init__(self, in_channels: int, early_channels: int | None, num_classes: int, channels: int = 512) -> None:
        super().__init__()
        plus = early_channels is not None
        self.pyramid = AtrousPyramid(in_channels, channels, separable=plus)
        # Few channels, so that the early features do not outweigh the late ones.
        self.reduce = _convolution(early_channels, 48, 1) if early_channels is not None else None
        self.decode = (
            nn.Sequential(_separable(channels + 48, channels, 3), _separable(channels, channels, 3))
            if plus
            else nn.Identity()
        )
        self.dropout = nn.Dropout2d(0.1)
        self.to_logits = nn.Conv2d(channels, num_classes, 1)

    def forward(self, early: Tensor, late: Tensor) -> Tensor:
        x = self.pyramid(late)
        if self.reduce is not None:
            x = torch.cat([_resize(x, early), self.reduce(early)], dim=1)
        return self.to_logits(self.dropout(self.decode(x)))


def composer_deeplabv3(
    num_classes: int,
    backbone_arch: str = "resnet101",
    backbone_weights: str | WeightsEnum | None = None,
    sync_bn: bool = True,
    use_plus: bool = True,
    ignore_index: int = -1,
    cross_entropy_weight: float = 1.0,
    dice_weight: float = 0.0,
    initializers: Iterable[Initializer | str] | Initializer | str | None = (),
) -> ComposerClassifier:
    """Build a DeepLabv3(+) for batches (images, classes of the pixels), (B, 3, H, W) and (B, H, W).

    The loss is ``cross_entropy_weight * cross_entropy + dice_weight * dice``; both terms are logged as well. The
    metrics are the mean intersection over union and the cross entropy.

    Args:
        num_classes: C.
        backbone_arch: ``"resnet50"``, ``"resnet101"`` or ``"resnet152"``.
        backbone_weights: Pretrained weights of the backbone by their name in torchvision (``"IMAGENET1K_V1"``,
            ``"DEFAULT"``, ...), downloaded on first use.
        sync_bn: Whether to use ``SyncBatchNorm`` in distributed training, on accelerators only.
        use_plus: Whether to build DeepLabv3+.
        ignore_index: Class index of the pixels to ignore.
        cross_entropy_weight: Weight of the cross entropy; 0 omits it.
        dice_weight: Weight of the Dice loss over the batch; 0 omits it.
        initializers: Initializers to apply in order; with ``backbone_weights``, to the head only.

    Raises:
        ValueError: A name is unknown, a weight is negative, both weights are 0, or there is no class.
        MissingConditionalImportError: torchvision is not installed.

    >>> model = composer_deeplabv3(
    ...     num_classes=5, backbone_arch="resnet50", initializers=["kaiming_normal", "bn_ones"]
    ... )
    >>> batch = (torch.zeros(2, 3, 32, 32), torch.zeros(2, 32, 32, dtype=torch.long))
    >>> outputs = model(batch)
    >>> outputs.shape, sorted(model.loss(outputs, batch))
    (torch.Size([2, 5, 32, 32]), ['cross_entropy', 'total'])

    Papers: https://arxiv.org/abs/1706.05587, https://arxiv.org/abs/1802.02611
    """
    one_of("backbone_arch", backbone_arch, _BACKBONES)
    loss = SegmentationLoss(cross_entropy_weight, dice_weight, ignore_index)
    rules = ensure_initializers(initializers)
    models: Any = import_extra("torchvision.models", "vision", "composer_deeplabv3")
    backbone = models.get_model(
        backbone_arch,
        weights=resolve_weights(models, backbone_arch, backbone_weights),
        replace_stride_with_dilation=[False, True, True],
    )
    network: nn.Module = DeepLabV3(backbone, num_classes, use_plus)
    initialize(network if backbone_weights is None else cast(nn.Module, network.classifier), rules)
    if sync_bn and dist.get_world_size() > 1:
        network = _synchronized(network)
    # The trainer accepts a mapping of loss terms, although the signature of the classifier says a tensor.
    return ComposerClassifier(
        network, num_classes, _metrics(num_classes, ignore_index), _metrics(num_classes, ignore_index), cast(Any, loss)
    )


class ComposerDeepLabV3(ComposerClassifier):
    """:func:`composer_deeplabv3` as a class, for subclassing and ``isinstance``."""

    __init__ = init_from_builder(composer_deeplabv3)


def _synchronized(network: nn.Module) -> nn.Module:
    """Convert batch norms to ``SyncBatchNorm``."""
    if torch.accelerator.is_available():
        return nn.SyncBatchNorm.convert_sync_batchnorm(network)
    warnings.warn(
        "sync_bn=True has no effect without an accelerator: each rank normalizes over its own batch. "
        "Set sync_bn=False to silence this warning.",
        ComposerWarning,
        stacklevel=3,
    )
    return network


def _metrics(num_classes: int, ignore_index: int) -> dict[str, Metric]:
    from composer.metrics.classification import CrossEntropy
    from composer.metrics.segmentation import MIoU

    with metrics_on_cpu():
        return {"CrossEntropy": CrossEntropy(ignore_index), "MIoU": MIoU(num_classes, ignore_index)}


def _convolution(
    in_channels: int, channels: int, kernel_size: int, dilation: int = 1, groups: int = 1
) -> nn.Sequential:
    """Return a convolution that keeps the spatial size, batch norm and ReLU."""
    padding = dilation * (kernel_size // 2)
    convolution = nn.Conv2d(
        in_channels, channels, kernel_size, padding=padding, dilation=dilation, groups=groups, bias=False
    )
    return nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))


def _separable(in_channels: int, channels: int, kernel_size: int, dilation: int = 1) -> nn.Sequential:
    """Return a depthwise separable convolution: depthwise, then pointwise."""
    depthwise = _convolution(in_channels, in_channels, kernel_size, dilation, groups=in_channels)
    return nn.Sequential(depthwise, _convolution(in_channels, channels, 1))


def _resize(x: Tensor, like: Tensor) -> Tensor:
    """Resize feature maps to the height and width of others."""
    return F.interpolate(x, size=like.shape[-2:], mode="bilinear", align_corners=False)
