"""Planted faults of data sets, samplers, loaders and augmentation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import BatchSampler, Dataset, IterableDataset, Sampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from composer import Callback, Trainer, dist
from tests.verification.fault import fault
from tests.verification.parts import BATCH, CLASSES, ROWS, Classifier, Rows, build, classes, features, loader, rows


class FirstTwice(Sampler[int]):
    """Yields the first row twice in each epoch, in place of the last."""

    def __iter__(self) -> Iterator[int]:
        return iter([0, *range(ROWS - 1)])

    def __len__(self) -> int:
        return ROWS


@fault("repeated_samples lost_samples", "data", "FirstTwice")
def sampler_repeats() -> Trainer:
    """A custom sampler is off by one: it yields the first row twice and the last row never."""
    return build(data=loader(sampler=FirstTwice()))


class FromSet(Rows):
    """The rows that a set of names lists."""

    def __init__(self) -> None:
        super().__init__()
        names = {f"row_{index}" for index in range(ROWS)}
        self.order = [int(name.removeprefix("row_")) for name in names]

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return super().__getitem__(self.order[index])


@fault("order_by_hash", "repeat", "FromSet", in_process=False)
def rows_of_a_set() -> Trainer:
    """A data set lists its files in a set of names, whose order differs from process to process."""
    return build(data=loader(FromSet()))


class Overlapping(Sampler[list[int]]):
    """Windows of eight rows in steps of six."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from (list(range(at, at + BATCH)) for at in range(0, ROWS - BATCH + 1, 5))

    def __len__(self) -> int:
        return len(range(0, ROWS - BATCH + 1, 5))


@fault("repeated_samples", "data", "Overlapping")
def overlapping_batches() -> Trainer:
    """A custom batch sampler yields windows that overlap, so that rows repeat within an epoch."""
    return build(data=loader(batch_sampler=Overlapping()))


class ShardsByName(Sampler[int]):
    """Has a rank and a number of replicas, and does not use them."""

    def __init__(self) -> None:
        self.rank, self.num_replicas = dist.get_global_rank(), dist.get_world_size()

    def __iter__(self) -> Iterator[int]:
        return iter(range(ROWS))

    def __len__(self) -> int:
        return ROWS


@fault("repeated_samples", "ranks", "ShardsByName")
def sampler_ignores_rank() -> Trainer:
    """A custom sampler has a rank and a number of replicas but yields the same rows on every rank."""
    return build(data=loader(sampler=ShardsByName()))


@fault("lost_samples", "ranks data", "DistributedSampler")
def wrong_num_replicas() -> Trainer:
    """A DistributedSampler is made for 4 replicas although fewer ranks train: the rest of the rows is never seen."""
    sampler = DistributedSampler(rows(), num_replicas=4, rank=dist.get_global_rank() % 4, shuffle=False)
    return build(data=loader(sampler=sampler))


class ShufflesByRank(Sampler[int]):
    """Shuffles by a seed that has the rank in it, and leaves the sharding to the trainer."""

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(dist.get_global_rank())
        return iter(torch.randperm(ROWS, generator=generator).tolist())

    def __len__(self) -> int:
        return ROWS


@fault("repeated_samples lost_samples data_order", "ranks", "ShufflesByRank")
def shuffled_by_rank() -> Trainer:
    """A sampler shuffles in another order on each rank, so that the shards of ranks overlap and lack rows."""
    return build(data=loader(sampler=ShufflesByRank()))


class CountsEpochs(Sampler[int]):
    """Shuffles by the number of its epoch, which it counts itself."""

    def __init__(self) -> None:
        self.epoch = 0

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(torch.randperm(ROWS, generator=torch.Generator().manual_seed(self.epoch)).tolist())

    def __len__(self) -> int:
        return ROWS


@fault("data_order unsaved_data_state", "resume", "CountsEpochs")
def sampler_counts_epochs() -> Trainer:
    """A sampler shuffles by its own count of epochs: a run resumed in the second epoch has the order of the first."""
    return build(data=loader(sampler=CountsEpochs()))


class Stream(IterableDataset[Any]):
    """All rows in order on every rank; split among workers if asked."""

    def __init__(self, per_worker: bool) -> None:
        self.per_worker = per_worker

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None or not self.per_worker else (info.id, info.num_workers)
        x, y = features(), classes()
        yield from ((x[at], y[at]) for at in range(first, ROWS, step))


@fault("repeated_samples", "ranks", "Stream")
def stream_not_sharded() -> Trainer:
    """An iterable data set is not sharded among ranks: every rank trains on the same rows."""
    return build(data=loader(Stream(per_worker=True), shuffle=False))


@fault("repeated_samples", "data workers", "Stream")
def stream_in_each_worker() -> Trainer:
    """An iterable data set is not split among the two loader workers: each row comes twice."""
    return build(data=loader(Stream(per_worker=False), shuffle=False, num_workers=2))


class Buffered(IterableDataset[Any]):
    """Shuffles chunks of the rows; goes on with the next chunk, wherever the last iteration stopped."""

    def __init__(self) -> None:
        self.chunk = 0

    def __iter__(self) -> Iterator[Any]:
        x, y = features(), classes()
        for _ in range(ROWS):
            at = (self.chunk * 5) % ROWS
            self.chunk += 1
            yield x[at], (y[at] + self.chunk // ROWS) % CLASSES


@fault("unsaved_data_state data_order", "resume", "Buffered")
def stream_without_state() -> Trainer:
    """An iterable data set holds its position over epochs and has no state_dict: a resumed run starts over."""
    return build(data=loader(Buffered(), shuffle=False))


class Curriculum(Rows):
    """Adds noise-like shifts that fade with the number of rows fetched so far."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched = 0

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.fetched += 1
        x, y = super().__getitem__(index)
        return x * (1 + 1 / self.fetched), y


@fault("unsaved_data_state", "resume workers", "Curriculum")
def data_counts_rows() -> Trainer:
    """A data set changes rows by a counter of the rows fetched so far, which no checkpoint holds."""
    return build(data=loader(Curriculum()))


class Cached(Rows):
    """Augments each row once and keeps the result."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, Tensor] = {}

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index not in self.cache:
            self.cache[index] = self.x[index] + torch.randn(self.x.shape[1])
        return self.cache[index], self.y[index]


@fault("unsaved_data_state", "resume workers", "Cached")
def cached_augmentation() -> Trainer:
    """A data set caches randomly augmented rows: a resumed run draws others for rows seen before."""
    return build(data=loader(Cached()), max_duration="4ep")


class SetEpoch(Callback):
    """Tells the data set the number of the phase, which it counts itself."""

    def __init__(self, dataset: Curriculum) -> None:
        self.dataset = dataset

    def batch_end(self, state: Any, logger: Any) -> None:
        self.dataset.fetched += 10


class Phases(Curriculum):
    """Scales rows by a phase that a callback sets."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] * (1 + self.fetched / 100), self.y[index]


@fault("unsaved_data_state unsaved_callback_state", "resume callbacks", "Phases")
def phase_set_by_callback() -> Trainer:
    """A callback advances a curriculum of the data set in each step, and nothing restores it on resume."""
    dataset = Phases()
    return build(data=loader(dataset), callbacks=[SetEpoch(dataset)])


class InPlace(Rows):
    """Augments a view of the stored row."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        return x.mul_(1.1), y


@fault("dataset_modified", "data resume workers", "InPlace")
def transform_in_place() -> Trainer:
    """A transform edits the stored row in place: each epoch sees rows that were transformed once more."""
    return build(data=loader(InPlace()))


class Slices(Dataset[Any]):
    """Whole batches as views of the stored tensors; targets are probabilities."""

    def __init__(self) -> None:
        self.x, self.y = features(), F.one_hot(classes(), CLASSES).float()

    def __len__(self) -> int:
        return ROWS // BATCH

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        part = slice(index * BATCH, (index + 1) * BATCH)
        return self.x[part], self.y[part]


class CentersInput(Classifier):
    """Centers its input in place."""

    def forward(self, batch: Any) -> Any:
        batch[0].sub_(0.3)
        return super().forward(batch)


@fault("dataset_modified", "data resume workers", "CentersInput")
def forward_in_place() -> Trainer:
    """The model's forward edits the batch in place, which is a view of the data set."""
    return build(CentersInput, loader(Slices(), batch_size=None))


class SmoothsTargets(Classifier):
    """Smooths the targets in place."""

    def loss(self, outputs: Any, batch: Any) -> Tensor:
        return F.cross_entropy(outputs, batch[1].mul_(0.8).add_(0.2 / CLASSES))


@fault("dataset_modified", "data resume workers", "SmoothsTargets")
def loss_in_place() -> Trainer:
    """The loss smooths the targets in place, which are a view of the data set: they fade from epoch to epoch."""
    return build(SmoothsTargets, loader(Slices(), batch_size=None))


class Noise(Rows):
    """Adds noise of a generator that it holds."""

    def __init__(self, seed: int | None = 0) -> None:
        super().__init__()
        self.generator = np.random.default_rng(seed)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        return x + torch.from_numpy(self.generator.normal(size=x.shape)).float(), y


@fault("unsaved_generator", "resume workers", "Noise.generator")
def generator_of_dataset() -> Trainer:
    """A data set draws noise from a generator that it holds; no checkpoint holds its state."""
    return build(data=loader(Noise()))


@fault("worker_randomness unsaved_generator", "workers resume", "Noise.generator")
def generator_in_workers() -> Trainer:
    """A generator that the data set holds is copied into two workers, which draw the same noise."""
    return build(data=loader(Noise(), num_workers=2))


@fault("unseeded_randomness", "repeat", "Noise")
def unseeded_augmentation() -> Trainer:
    """A data set draws noise from numpy.random.default_rng() without a seed."""
    return build(data=loader(Noise(seed=None)))


class JitterCollate:
    """Stacks a batch and shifts it by a random amount."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)

    def __call__(self, samples: list[Any]) -> tuple[Tensor, Tensor]:
        x, y = torch.utils.data.default_collate(samples)
        return x + torch.randn(1, generator=self.generator), y


@fault("unsaved_generator", "resume workers", "JitterCollate.generator")
def generator_of_collate() -> Trainer:
    """A collate function draws from a torch.Generator that it holds; no checkpoint holds its state."""
    return build(data=loader(collate_fn=JitterCollate()))


class GoldenSequence:
    """Numbers that fill the unit interval evenly, by a counter."""

    def __init__(self) -> None:
        self.count = 0

    def next(self) -> float:
        self.count += 1
        return (self.count * 0.6180339887) % 1.0


class Stretched(Rows):
    """Scales each row by the next number of a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.sequence = GoldenSequence()

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        return x * (1 + self.sequence.next()), y


@fault("worker_randomness unsaved_data_state", "workers resume", "Stretched.sequence")
def sequence_in_workers() -> Trainer:
    """An augmentation takes the next number of a sequence, of which each of two workers has a copy."""
    return build(data=loader(Stretched(), num_workers=2))


class HalfBatches(BatchSampler):
    """Batches that leave out the last row of each."""

    def __iter__(self) -> Iterator[list[int]]:
        yield from (batch[:-1] for batch in super().__iter__())


@fault("lost_samples", "data", "HalfBatches")
def batches_lose_rows() -> Trainer:
    """A custom batch sampler drops the last row of each batch, so that these rows are never trained on."""
    return build(data=loader(batch_sampler=HalfBatches(torch.utils.data.SequentialSampler(rows()), BATCH, False)))
