"""A model with blocks, trained with one rank or with multiple ranks, for tests that compare both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from composer import ComposerModel, Trainer, dist
from tests.common import regression_data

WIDTH = 6
PLAN = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
"""Shards the layers of the blocks."""


class Block(nn.Module):
    """A residual block with a bias that has fewer elements than ranks, and with a scalar parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.gain = nn.Parameter(torch.tensor(1.0))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.gain * self.down(torch.tanh(self.up(self.norm(x))))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.gain)


class Blocks(ComposerModel):
    """A regression of batches (x, y)."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.first = nn.Linear(4, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.last = nn.Linear(WIDTH, 1)
        self.to(dtype)

    def forward(self, batch):
        x = self.first(batch[0])
        for block in self.blocks:
            x = block(x)
        return self.last(x)

    def loss(self, outputs, batch):
        return nn.functional.mse_loss(outputs, batch[1])


def adam(model: nn.Module) -> list[torch.optim.Optimizer]:
    """One optimizer with two groups."""
    decaying = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": decaying, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return [torch.optim.AdamW(groups, lr=0.01)]


def full_tensor(tensor: Any) -> Tensor:
    """Return a copy of the full tensor."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def full_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return all full parameters by name."""
    return {name: full_tensor(parameter) for name, parameter in model.named_parameters()}


def data_of(share: int = 0, shares: int = 1, num_batches: int = 4, dtype: torch.dtype = torch.float64) -> list[Any]:
    """Return a shard of batches of 8 samples; the last batch is short."""
    batches = regression_data(num_batches, 8, dtype=dtype)
    batches[-1] = tuple(tensor[:5] for tensor in batches[-1])
    return [(x[share::shares], y[share::shares]) for x, y in batches]


def trained(
    config: dict[str, Any] | None = None,
    make: Callable[[], ComposerModel] = Blocks,
    optimizers: Callable[[nn.Module], Any] = adam,
    dtype: torch.dtype = torch.float64,
    epochs: int = 2,
    **arguments: Any,
) -> Trainer:
    """Return a trainer after some epochs on this rank's shard of the data."""
    torch.manual_seed(0)
    model = make()
    trainer = Trainer(
        model=model,
        optimizers=optimizers(model),
        max_duration=f"{epochs}ep",
        progress_bar=False,
        parallelism_config=config,
        device="cpu",
        seed=1,
        **arguments,
    )
    share = trainer.state.data_shard
    shares = share.size if dist.is_initialized() else 1
    trainer.fit(train_dataloader=data_of(share.rank if shares > 1 else 0, shares, dtype=dtype))
    return trainer


def result(config: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Tensor]:
    """Return the weights after training, and the last loss."""
    trainer = trained(config, **arguments)
    found = full_weights(trainer.state.model)
    loss = full_tensor(trainer.state.total_loss_dict["loss/train/total"])
    trainer.close()
    return {**found, "loss": loss.double()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], atol: float = 1e-10) -> None:
    """Compare tensors; losses are float32 in any case."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        bound = max(atol, 1e-6) if name == "loss" else atol
        torch.testing.assert_close(found[name], value, rtol=0, atol=bound, msg=lambda text: f"{name}: {text}")  # noqa: B023
