"""Runs that are identical with one rank and with multiple ranks, for tests that compare them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from composer import Callback, ComposerModel, Trainer, dist
from tests.common import CLASSES, FEATURES, Regression, classifier
from tests.trainer.test_microbatch import LanguageModel, padded

DOUBLE = torch.float64


class Numbered(Dataset[Any]):
    """Samples (x, y, number) of a regression, or (x, class)."""

    def __init__(self, n: int, dtype: torch.dtype = DOUBLE, *, classes: bool = False) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(n, FEATURES, generator=generator, dtype=dtype)
        self.classes = classes
        self.y: Tensor = self.x.sum(1, keepdim=True)
        if self.classes:
            self.y = torch.randint(CLASSES, (n,), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index):
        return (self.x[index], self.y[index]) if self.classes else (self.x[index], self.y[index], index)


class Ragged(Dataset[Any]):
    """Sentences of which the labels beyond a length of their own do not count."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self.all = padded(list(lengths), 6)

    def __len__(self) -> int:
        return len(self.all["labels"])

    def __getitem__(self, index):
        return {name: self.all[name][index] for name in ("input_ids", "labels")}


class Stream(IterableDataset[Any]):
    """Each process's own numbers of samples, as many as are given for its rank."""

    def __init__(self, counts: Sequence[int], dtype: torch.dtype = DOUBLE) -> None:
        self.counts, self.data = counts, Numbered(sum(counts), dtype)

    def __iter__(self):
        rank = dist.get_global_rank()
        first = sum(self.counts[:rank])
        for index in range(first, first + self.counts[rank]):
            yield self.data[index]


class Watch(Callback):
    """Notes of each step the gradient, the loss, the samples of this process and the samples that all have done."""

    def __init__(self) -> None:
        self.gradients: list[Tensor] = []
        self.losses: list[float] = []
        self.numbers: list[list[int]] = []
        self.samples: list[int] = []

    def after_dataloader(self, state, logger):
        if isinstance(state.batch, list) and len(state.batch) == 3:
            self.numbers.append(state.batch[2].tolist())

    def after_train_batch(self, state, logger):
        self.gradients.append(torch.cat([whole(p.grad).flatten().clone() for p in state.model.parameters()]))

    def batch_end(self, state, logger):
        self.losses.append(state.total_loss_dict["loss/train/total"].item())
        self.samples.append(state.timestamp.sample.value)


def whole(tensor: Any) -> Tensor:
    """A tensor, gathered from where its parts are."""
    return tensor.detach().full_tensor() if isinstance(tensor, DTensor) else tensor.detach()


def weights(trainer: Trainer) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([whole(p).flatten().clone() for p in trainer.state.model.parameters()])


def model_of(kind: str) -> ComposerModel:
    """A model for a type of data, the same in each process."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        if kind == "ragged":
            return LanguageModel()
        return classifier() if kind == "classes" else Regression(metrics=True, dtype=DOUBLE)


def run_of(kind: str, loader: Any, **arguments: Any) -> tuple[Trainer, Watch]:
    """A trainer that is watched."""
    model, watch = model_of(kind), Watch()
    arguments.setdefault("optimizers", torch.optim.SGD(model.parameters(), lr=0.1))
    arguments.setdefault("max_duration", "1ep")
    callbacks = [watch, *arguments.pop("callbacks", [])]
    trainer = Trainer(
        model=model, train_dataloader=loader, seed=7, callbacks=callbacks, progress_bar=False, device="cpu", **arguments
    )
    return trainer, watch


def numbered(n: int, batch_size: int, **more: Any) -> DataLoader[Any]:
    """A loader of numbered samples."""
    return DataLoader(Numbered(n), batch_size=batch_size, **more)


def flat(batches: Iterable[list[Any]]) -> list[Any]:
    """What is in several lists, in one."""
    return [entry for batch in batches for entry in batch]
