"""Models, data, callbacks and methods without a fault, some of which look like one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, IterableDataset, TensorDataset, get_worker_info
from torchmetrics import MeanSquaredError

from composer import Algorithm, Callback, ComposerModel, dist
from composer.functional import register_residual_block
from composer.metrics import LanguageCrossEntropy
from tests.verification.parts import CLASSES, FEATURES, TOKENS, Rows

SIDE = 8


class RunningCenter(nn.Module):
    """Subtracts a running mean that is a buffer, and counts its calls in its extra state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.mean.lerp_(x.detach().mean(0).float(), 1 / (1 + self.calls))
        return x - self.mean

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.calls)

    def set_extra_state(self, state: Tensor) -> None:
        self.calls = int(state)


class Block(nn.Module):
    """A residual block; StochasticDepth skips it."""

    def __init__(self, channels: int, norm: nn.Module) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1, bias=False), norm

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.norm(self.conv(x)))


class Dense(nn.Module):
    """A residual block of vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.gelu(self.linear(self.norm(x)))


register_residual_block(Block)
register_residual_block(Dense)


class Regressor(ComposerModel):
    """Predicts the first features from the last ones."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Any) -> Tensor:
        return self.net(batch[0])

    def loss(self, outputs: Tensor, batch: Any) -> dict[str, Tensor]:
        target = batch[0][:, :CLASSES]
        return {"square": F.mse_loss(outputs, target), "absolute": 0.1 * F.l1_loss(outputs, target)}

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        return {"MeanSquaredError": MeanSquaredError()}

    def update_metric(self, batch: Any, outputs: Tensor, metric: Any) -> None:
        metric.update(outputs, batch[0][:, :CLASSES].contiguous())


class Transformer(ComposerModel):
    """A small language model of padded batches; its head may be tied to the embedding."""

    def __init__(self, dropout: float, is_tied: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(8, TOKENS, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight

    def forward(self, batch: Mapping[str, Tensor]) -> Tensor:
        tokens = batch["input_ids"]
        mask = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
        return self.head(self.encoder(self.embed(tokens), mask=mask))

    def loss(self, outputs: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), batch["labels"].flatten(), ignore_index=-100)

    def get_metrics(self, is_train: bool) -> dict[str, Any]:
        return {} if is_train else {"LanguageCrossEntropy": LanguageCrossEntropy()}

    def update_metric(self, batch: Mapping[str, Tensor], outputs: Tensor, metric: Any) -> None:
        metric.update(outputs.flatten(0, 1), batch["labels"].flatten())


def images(rows: int) -> TensorDataset:
    """Images with values from 0 to 1, whose class is the brightest channel."""
    x = torch.rand(rows, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(4))
    return TensorDataset(x, x.mean((2, 3)).argmax(1))


def masks(rows: int) -> TensorDataset:
    """Images and a class for each pixel."""
    x = torch.rand(rows, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(4))
    return TensorDataset(x, x.argmax(1))


class RandomlyAugmented(Rows):
    """Adds noise of the generators of the process, which checkpoints hold."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(FEATURES) + 0.1 * float(np.random.rand()), y


class FixedNoise(Rows):
    """Adds noise that depends on the row only."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.from_numpy(np.random.default_rng(index).normal(size=FEATURES)).float(), y


class ShardedStream(IterableDataset[Any]):
    """Rows in order, each on one rank and in one worker."""

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        first, step = dist.get_global_rank() * workers + worker, dist.get_world_size() * workers
        rows: Dataset[Any] = Rows()
        yield from (rows[at] for at in range(first, len(Rows()), step))


class LossHistory(Callback):
    """Keeps the losses of a run, and the noise of a generator; saves both."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.generator = torch.Generator().manual_seed(6)

    def batch_end(self, state: Any, logger: Any) -> None:
        self.losses.append(float(state.total_loss_dict["loss/train/total"]))
        noise = torch.rand((), generator=self.generator)
        logger.log_metrics({"history/mean": sum(self.losses) / len(self.losses), "history/noise": noise})

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self.losses), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = list(state["losses"])
        self.generator.set_state(state["generator"])


class WeightNorms(Callback):
    """Logs norms, without a state."""

    def after_train_batch(self, state: Any, logger: Any) -> None:
        for name, parameter in state.model.named_parameters():
            logger.log_metrics({f"norm/{name}": parameter.detach().norm()})


class SavedAverage(Algorithm):
    """Replaces gradients by their averages over steps, which it saves."""

    def __init__(self, decay: float = 0.6) -> None:
        self.decay = decay
        self.averages: dict[str, Tensor] = {}

    def after_train_batch(self, state: Any, logger: Any) -> None:
        for name, parameter in state.model.named_parameters():
            if parameter.grad is not None:
                average = self.averages.setdefault(name, torch.zeros_like(parameter))
                parameter.grad.copy_(average.mul_(self.decay).add_(parameter.grad, alpha=1 - self.decay))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "averages": {name: value.clone() for name, value in self.averages.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.averages = {name: value.clone() for name, value in state["averages"].items()}


class ScaleGradients(Algorithm):
    """Scales gradients by the time of the run, which needs no state."""

    def after_train_batch(self, state: Any, logger: Any) -> None:
        for parameter in state.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(1 / (1 + 0.1 * state.timestamp.batch.value))


class SignMomentum(torch.optim.Optimizer):
    """Lion without weight decay; all its state is where torch keeps it."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    average = self.state[parameter].setdefault("average", torch.zeros_like(parameter))
                    parameter.sub_(average.lerp(parameter.grad, 0.1).sign(), alpha=group["lr"])
                    average.lerp_(parameter.grad, 0.01)
        return loss


def warm_and_fall(state: Any, ssr: float = 1.0) -> float:
    """A schedule that is a function of the time."""
    batch = state.timestamp.batch.value
    return min((batch + 1) / 3, 3 / (batch + 1))
