"""ResNet image classifiers from torchvision, for ImageNet-sized images.

Paper: Deep Residual Learning for Image Recognition, He et al. 2015, https://arxiv.org/abs/1512.03385
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING

from composer._text import one_of
from composer.loss.loss import loss_registry
from composer.models._builder_classes import init_from_builder
from composer.models._torchvision import make_network
from composer.models.classifier import ComposerClassifier
from composer.models.initializers import Initializer, ensure_initializers
from composer.warnings import ComposerWarning

if TYPE_CHECKING:
    from torchvision.models import WeightsEnum

__all__ = ["ComposerResNet", "composer_resnet"]

_NAMES = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")


def composer_resnet(
    model_name: str,
    num_classes: int = 1000,
    weights: str | WeightsEnum | None = None,
    groups: int = 1,
    width_per_group: int = 64,
    initializers: Iterable[Initializer | str] | Initializer | str | None = None,
    loss_name: str = "soft_cross_entropy",
) -> ComposerClassifier:
    """Build a torchvision ResNet as a classifier of batches (images, targets), images (B, 3, H, W).

    ``groups=32, width_per_group=4`` makes the three deeper ones a ResNeXt, ``width_per_group=128`` a wide ResNet.
    The metrics are the accuracy, and in evaluation also the cross entropy.

    Args:
        model_name: ``"resnet18"``, ``"resnet34"``, ``"resnet50"``, ``"resnet101"`` or ``"resnet152"``.
        num_classes: C, the number of classes.
        weights: Pretrained weights by their name in torchvision (``"IMAGENET1K_V1"``, ``"DEFAULT"``, ...), downloaded
            on first use. The last layer is replaced if ``num_classes`` is not 1000.
        groups: Groups of the convolutions in the bottlenecks.
        width_per_group: Channels of a group in the first stage.
        initializers: Initializers to apply in order; with ``weights``, to the last layer only.
        loss_name: A name of :data:`composer.loss.loss_registry`.

    Raises:
        ValueError: A name is unknown, or the initializers would overwrite the loaded weights.
        MissingConditionalImportError: torchvision is not installed.

    >>> model = composer_resnet("resnet18", num_classes=10, initializers=["kaiming_normal", "bn_uniform"])
    >>> model((torch.zeros(2, 3, 32, 32), torch.tensor([1, 7]))).shape
    torch.Size([2, 10])

    Papers: https://arxiv.org/abs/1512.03385, https://arxiv.org/abs/1611.05431 (ResNeXt, Xie et al. 2016)
    """
    one_of("model_name", model_name, _NAMES)
    loss_fn = loss_registry[one_of("loss_name", loss_name, loss_registry)]
    rules = ensure_initializers(initializers)
    if loss_name == "binary_cross_entropy_with_logits" and Initializer.LINEAR_LOG_CONSTANT_BIAS not in rules:
        warnings.warn(
            f"loss_name={loss_name!r} starts at a loss of {num_classes} * log(2), which may make training unstable, "
            "unless initializers contain 'linear_log_constant_bias'.",
            ComposerWarning,
            stacklevel=2,
        )
    network = make_network(
        model_name, "fc", num_classes, weights, rules, "composer_resnet", groups=groups, width_per_group=width_per_group
    )
    return ComposerClassifier(network, num_classes=num_classes, loss_fn=loss_fn)


class ComposerResNet(ComposerClassifier):
    """:func:`composer_resnet` as a class, for subclassing and ``isinstance``."""

    __init__ = init_from_builder(composer_resnet)
