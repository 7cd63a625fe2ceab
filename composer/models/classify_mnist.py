"""A small convolutional network for MNIST."""

from __future__ import annotations

from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor, nn

from composer._numbers import whole_number
from composer.models._builder_classes import init_from_builder
from composer.models.classifier import ComposerClassifier
from composer.models.initializers import Initializer, initialize

__all__ = ["DigitNetwork", "MNIST_Classifier", "mnist_model"]


class DigitNetwork(nn.Module):
    """Two convolutions, 16 and 32 channels wide, and two linear layers.

    Args:
        num_classes: C.

    Raises:
        ValueError: There is no class.

    >>> DigitNetwork()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.bn = nn.BatchNorm2d(32)
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, whole_number("num_classes", num_classes, minimum=1))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (B, C).

        Args:
            x: Images, (B, 1, H, W), of 5 x 5 pixels or more.
        """
        x = F.relu(self.bn(self.conv2(F.relu(self.conv1(x)))))
        x = F.adaptive_avg_pool2d(x, 4).flatten(1)
        return self.fc2(F.relu(self.fc1(x)))


def mnist_model(
    num_classes: int = 10, initializers: Iterable[Initializer | str] | Initializer | str | None = None
) -> ComposerClassifier:
    """Build a small network as a classifier of batches (images, targets), images (B, 1, 28, 28).

    The metrics are the accuracy, and in evaluation also the cross entropy.

    Args:
        num_classes: C.
        initializers: Initializers to apply in order.

    Raises:
        ValueError: An initializer is unknown, or there is no class.

    >>> model = mnist_model()
    >>> model((torch.zeros(2, 1, 28, 28), torch.tensor([1, 7]))).shape
    torch.Size([2, 10])
    """
    network = DigitNetwork(num_classes)
    initialize(network, initializers)
    return ComposerClassifier(network, num_classes=num_classes)


class MNIST_Classifier(ComposerClassifier):  # noqa: N801 -- its name in early versions of MosaicML Composer
    """:func:`mnist_model` as a class, for subclassing and ``isinstance``."""

    __init__ = init_from_builder(mnist_model)
