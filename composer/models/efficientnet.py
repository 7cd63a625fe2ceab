"""EfficientNet image classifiers, B0 to B7, from torchvision.

Paper: EfficientNet, Tan and Le 2019, https://arxiv.org/abs/1905.11946
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from composer._numbers import in_unit_interval
from composer._text import one_of
from composer.models._builder_classes import init_from_builder
from composer.models._torchvision import make_network
from composer.models.classifier import ComposerClassifier
from composer.models.initializers import Initializer

if TYPE_CHECKING:
    from torchvision.models import WeightsEnum

__all__ = ["EfficientNetB0", "composer_efficientnetb", "composer_efficientnetb0"]

_NAMES = tuple(f"efficientnet_b{size}" for size in range(8))


def composer_efficientnetb(
    model_name: str,
    num_classes: int = 1000,
    weights: str | WeightsEnum | None = None,
    drop_connect_rate: float = 0.2,
    initializers: Iterable[Initializer | str] | Initializer | str | None = None,
) -> ComposerClassifier:
    """Build a torchvision EfficientNet as a classifier of batches (images, targets), images (B, 3, H, W).

    The metrics are the accuracy, and in evaluation also the cross entropy.

    Args:
        model_name: ``"efficientnet_b0"`` to ``"efficientnet_b7"``.
        num_classes: C.
        weights: Pretrained weights by their name in torchvision (``"IMAGENET1K_V1"``, ``"DEFAULT"``, ...), downloaded
            on first use. The last layer is replaced if ``num_classes`` is not 1000.
        drop_connect_rate: Stochastic depth probability of the last residual block; it grows linearly from 0 at the
            first.
        initializers: Initializers to apply in order; with ``weights``, to the last layer only.

    Raises:
        ValueError: A name is unknown, the rate is not in [0, 1], or the initializers would overwrite loaded weights.
        MissingConditionalImportError: torchvision is not installed.

    >>> model = composer_efficientnetb("efficientnet_b0", num_classes=10)
    >>> model((torch.zeros(2, 3, 32, 32), torch.tensor([1, 7]))).shape
    torch.Size([2, 10])

    Paper: https://arxiv.org/abs/1905.11946
    """
    network = make_network(
        one_of("model_name", model_name, _NAMES),
        "classifier.1",
        num_classes,
        weights,
        initializers,
        "composer_efficientnetb",
        stochastic_depth_prob=in_unit_interval("drop_connect_rate", drop_connect_rate),
    )
    return ComposerClassifier(network, num_classes=num_classes)


def composer_efficientnetb0(num_classes: int = 1000, drop_connect_rate: float = 0.2) -> ComposerClassifier:
    """Build the smallest EfficientNet, see :func:`composer_efficientnetb`.

    Args:
        num_classes: C.
        drop_connect_rate: Stochastic depth probability of the last residual block.

    Raises:
        ValueError: The rate is not in [0, 1].
        MissingConditionalImportError: torchvision is not installed.

    >>> composer_efficientnetb0(num_classes=10).num_classes
    10
    """
    return composer_efficientnetb("efficientnet_b0", num_classes, drop_connect_rate=drop_connect_rate)


class EfficientNetB0(ComposerClassifier):
    """:func:`composer_efficientnetb0` as a class, for subclassing and ``isinstance``."""

    __init__ = init_from_builder(composer_efficientnetb0)
