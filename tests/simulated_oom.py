"""Simulate out-of-memory errors (OOM) at chosen points, above a chosen number of samples."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from composer import Callback, ComposerModel, DataSpec, dist
from tests.common import FEATURES, At, regression_data, trainer_of


class Limit(Callback):  # a callback is not undone with the model that refers to it
    """Fails with more than ``size`` samples at a place, in some batches, on some rank.

    Args:
        where: A place or several: "forward", "loss", "backward", "step", "transform", "split", "samples" or "tokens"
            (in which microbatches are counted), or an event of a microbatch; None nowhere.
        size: The most that fits.
        since: Number of the batch from which on it does not.
        until: Number of the batch from which on it does again.
        rank: Where; None everywhere.
        error: Makes the error.
    """

    def __init__(
        self,
        where: str | tuple[str, ...] | None = None,
        size: int = 0,
        since: int = 0,
        until: int = 1000,
        rank: int | None = None,
        error: Callable[[], Exception] = lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
    ) -> None:
        self.where = (where,) if isinstance(where, str) else where or ()
        self.size, self.since, self.until, self.rank, self.error = size, since, until, rank, error
        self.batch = 0
        self.is_training = False
        self.failures: list[int] = []

    def before_train_batch(self, state, logger) -> None:
        self.is_training = True

    def after_train_batch(self, state, logger) -> None:
        self.is_training = False

    def check(self, where: str, samples: int) -> None:
        if where not in self.where or samples <= self.size or not self.since <= self.batch < self.until:
            return
        if self.rank in (None, dist.get_global_rank()):
            self.failures.append(samples)
            raise self.error()


EVENTS = ("before_forward", "after_forward", "before_loss", "after_loss", "before_backward", "after_backward")


def limited(limit: Limit, batches: list[Any]) -> DataSpec:
    """Return data whose functions can run out of memory too."""

    def transform(batch):
        limit.check("transform", len(batch[0]))
        return batch

    def split(batch, size):
        limit.check("split", size)
        return list(zip(batch[0].split(size), batch[1].split(size), strict=True))

    def samples(batch):
        if limit.is_training:  # rather than being loaded
            limit.check("samples", len(batch[0]))
        return len(batch[0])

    def tokens(batch):
        if limit.is_training:
            limit.check("tokens", len(batch[0]))
        return len(batch[0])

    return DataSpec(
        batches,
        microbatch_transforms=transform,
        split_batch=split,
        get_num_samples_in_batch=samples,
        get_num_tokens_in_batch=tokens,
    )


class Block(nn.Module):
    """A layer with dropout."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(width, width), nn.Dropout(0.3)

    def forward(self, x):
        return x + self.dropout(torch.tanh(self.linear(x)))


class RunsOut(ComposerModel):
    """Random numbers, running statistics, and a limit."""

    def __init__(self, limit: Limit | None = None, width: int = 8, norm: bool = True) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(FEATURES, width), nn.BatchNorm1d(width) if norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.last = nn.Linear(width, 1)
        self.limit = Limit() if limit is None else limit

    def forward(self, batch):
        samples = len(batch[0])
        x = self.norm(self.blocks[0](self.first(batch[0])))
        self.limit.check("forward", samples)
        if x.requires_grad:
            x.register_hook(lambda gradient: self.limit.check("backward", samples))
        return self.last(self.blocks[2](self.blocks[1](x)))

    def loss(self, outputs, batch):
        self.limit.check("loss", len(batch[0]))
        return nn.functional.mse_loss(outputs, batch[1])


class StepsRunOut(torch.optim.Adam):
    """Runs out after it has changed some of the weights, as a step does that goes from one to the next."""

    limit = Limit()
    samples: Callable[[], int] = lambda: 0

    def step(self, closure=None):
        loss = super().step(closure)
        self.limit.check("step", type(self).samples())
        return loss


StepsRunOut.__module__ = "torch.optim.adam"  # or it would get a closure, as optimizers of others do


def train(
    limit: Limit,
    size: Any,
    width: int = 8,
    sizes: dict[int, int] | None = None,
    samples: int = 8,
    norm: bool = True,
    thaw: int = 0,
    batches: tuple[int, ...] = (6, 6),
    **arguments: Any,
) -> tuple[str, list[int], list[int]]:
    """Train; return a digest of all that training changes, the sizes, and where it failed.

    Args:
        limit: The limit.
        size: ``device_train_microbatch_size``.
        width: Of the model.
        sizes: Given sizes from numbers of batches on.
        samples: In a batch.
        norm: Whether the model normalizes batches, of which it needs two samples.
        thaw: Number of the batch from which on the running statistics are no longer frozen.
        batches: Number of them, of each rank.
        arguments: For the trainer.
    """
    torch.manual_seed(0)
    model = RunsOut(limit, width, norm)
    optimizer = StepsRunOut(model.parameters(), lr=0.01)
    StepsRunOut.limit = limit
    arguments.setdefault("optimizers", optimizer)
    used = At("batch_end", lambda state: state.device_train_microbatch_size)

    def begin(state) -> None:
        limit.batch = state.timestamp.batch.value
        model.norm.train(limit.batch >= thaw)
        if sizes and limit.batch in sizes:
            state.device_train_microbatch_size = sizes[limit.batch]

    rank = dist.get_global_rank()
    data = limited(limit, regression_data(batches[rank], samples, seed=1 + rank))
    failing = [At(event, lambda state, event=event: limit.check(event, len(state.batch[0]))) for event in EVENTS]
    watching = [At("batch_start", begin), limit, used, *failing, *arguments.pop("callbacks", [])]
    trainer = trainer_of(model, data, callbacks=watching, device_train_microbatch_size=size, seed=7, **arguments)
    StepsRunOut.samples = lambda: trainer.state.device_train_microbatch_size or samples
    with trainer:
        trainer.fit()
        found = digest(model, *(trainer.state.optimizers))
    StepsRunOut.samples, StepsRunOut.limit = lambda: 0, Limit()
    return found, used.found, limit.failures


def digest(model: nn.Module, *optimizers: torch.optim.Optimizer) -> str:
    """A digest of the bits of parameters, buffers, states of optimizers and the random generator."""
    tensors = [*model.parameters(), *model.buffers()]
    for optimizer in optimizers:
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, torch.Tensor)]
    whole = [tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for tensor in tensors]
    found = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    for tensor in whole:
        found.update(tensor.detach().contiguous().numpy().tobytes())
    return found.hexdigest()
