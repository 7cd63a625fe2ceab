"""Runs of replicas that train apart, on several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from composer import Callback, ComposerModel, Trainer, dist
from composer.core.algorithm import Algorithm
from tests.common import FEATURES

Weights = dict[str, Tensor]
BATCH = 4


class Normed(ComposerModel):
    """A regression with batch normalization, which has float and integer buffers, and dropout."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(FEATURES, 6), nn.BatchNorm1d(6)
        self.dropout, self.second = nn.Dropout(0.1), nn.Linear(6, 1)
        self.to(dtype)

    def forward(self, batch: Any) -> Tensor:
        return self.second(self.dropout(torch.tanh(self.norm(self.first(batch[0])))))

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        return nn.functional.mse_loss(outputs, batch[1])

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        from torchmetrics import MeanSquaredError

        return {} if is_train else {"MeanSquaredError": MeanSquaredError()}

    def update_metric(self, batch: Any, outputs: Tensor, metric: Any) -> None:
        metric.update(outputs, batch[1])


def make_normed() -> Normed:
    """The weights that all replicas start from."""
    torch.manual_seed(20)
    model = Normed()
    model.dropout.p = 0.0
    return model


def make_sgd(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW would amplify rounding errors of the bias before the normalization, whose gradient is zero."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def samples(number: int = 48, dtype: torch.dtype = torch.float32) -> TensorDataset:
    """Samples of a noisy linear function."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(number, FEATURES, generator=generator, dtype=torch.float64)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(number, 1, generator=generator, dtype=torch.float64)
    return TensorDataset(x.to(dtype), y.to(dtype))


def weights_now(state: Any) -> Weights:
    """A copy of the weights and buffers of this rank."""
    return {name: value.detach().clone() for name, value in state.model.state_dict().items()}


class Seen(Callback):
    """Keeps the weights of this rank after each batch, and those that are evaluated."""

    def __init__(self) -> None:
        self.after_batch: list[Weights] = []
        self.evaluated: list[Weights] = []
        self.losses: list[float] = []

    def batch_end(self, state: Any, logger: Any) -> None:
        self.after_batch.append(weights_now(state))
        self.losses.append(float(state.total_loss_dict["loss/train/total"]))

    def eval_batch_start(self, state: Any, logger: Any) -> None:
        self.evaluated.append(weights_now(state))


def trainer_with(
    algorithms: Algorithm | list[Algorithm] | None,
    *,
    data: Any = None,
    model: ComposerModel | None = None,
    optimizer: Callable[[nn.Module], Any] = lambda model: torch.optim.AdamW(model.parameters(), lr=0.02),
    **more: Any,
) -> Trainer:
    """A trainer on this rank; the model of each rank begins with other weights, of which those of rank 0 count."""
    torch.manual_seed(20 + dist.get_global_rank())
    model = Normed() if model is None else model
    arguments = {"max_duration": "2ep", "seed": 11, **more}
    return Trainer(
        model=model,
        train_dataloader=DataLoader(samples(), 3, shuffle=True) if data is None else data,
        optimizers=optimizer(model),
        algorithms=algorithms,
        progress_bar=False,
        device="cpu",
        **arguments,
    )


def fitted(trainer: Trainer) -> Weights:
    """Train, and return the weights of this rank."""
    trainer.fit()
    found = weights_now(trainer.state)
    trainer.close()
    return found


def differing(one: Weights, other: Weights) -> Iterator[str]:
    """Yield the names of the weights that are not equal bit for bit."""
    assert one.keys() == other.keys()
    yield from (name for name in one if not torch.equal(one[name], other[name]))
