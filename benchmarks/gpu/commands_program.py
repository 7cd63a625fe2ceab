"""A training program for the commands: a small convolutional network, on images that are made here."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer
from composer.models import ComposerClassifier


def _images(number: int, seed: int) -> TensorDataset:
    """Return images of ten classes, each a pattern of its own under noise."""
    patterns = torch.randn(10, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(10, (number,), generator=generator)
    return TensorDataset(patterns[labels] + 2 * torch.randn(number, 1, 28, 28, generator=generator), labels)


def _network() -> nn.Module:
    def layer(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2)]

    return nn.Sequential(*layer(1, 64), *layer(64, 128), nn.Flatten(), nn.Linear(128 * 49, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default=None)
    parser.add_argument("--save-folder", default=None)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = ComposerClassifier(_network(), num_classes=10)
    with Trainer(
        model=model,
        train_dataloader=DataLoader(_images(4096, 1), batch_size=128, shuffle=True, drop_last=True),
        eval_dataloader=DataLoader(_images(1024, 2), batch_size=512),
        optimizers=torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9),
        max_duration=f"{given.epochs}ep",
        eval_interval="16ba",
        device=given.device,
        save_folder=given.save_folder,
        save_interval="16ba",
        run_name="commands",
        seed=1,
        progress_bar=False,
    ) as trainer:
        trainer.fit()
        print(trainer.state.eval_metric_values)


if __name__ == "__main__":
    main()
