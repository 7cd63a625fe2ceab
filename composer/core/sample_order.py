"""Sample indices of an epoch: shuffled, sharded among ranks, and resumable at any position."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Generator, Iterable, Iterator, Sized
from typing import Any, Protocol, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from composer import rng
from composer.core.data_sharding import FULL_SHARD, DataShard, index_sampler, is_data_sharded, samplers_of
from composer.core.random_order import ExplicitOrder, Permutation, mix_seed

__all__ = ["Order", "SampleOrder", "SeededIndices", "length_of", "resumable_loader"]

# Values of the generator attribute of a sampler: a generator, or none yet.
_GENERATOR_TYPES = (torch.Generator, type(None))
# Number of indices that are computed at once.
_CHUNK = 8192


class SampleOrder:
    """The batches of sample indices of each epoch, used as the ``batch_sampler`` of a data loader.

    All ranks follow the same order of the full dataset. In a step, with B the loader's batch size, the W ranks consume
    the next B * W positions of it, and rank r takes the positions p with p mod W = r. So a step trains on the same
    samples as a step of a single process with batches W times as large. The last step of an epoch may be short, with
    uneven inputs: ranks may have different numbers of samples, or none.

    For shuffled and sequential samplers, including torch's ``DistributedSampler``, any position of an epoch is computed
    directly; other samplers are iterated up to it again, without fetching data. Samplers that use random generators,
    those of the process or their own, also if another sampler wraps them, are seeded equally on all ranks.

    Args:
        loader: The user's loader; its sampler and batch size are used.
        shard: The data shard of this rank. Loaders that are already sharded are used as they are.
        shard_batches: Whether ranks take complete batches of the loader in turn, rather than shards of larger batches.

    Attributes:
        seed: Seed of the run, the same on all ranks; if the loader or a sampler, also a wrapped one, has a
            generator, its seed (``generator_seed``) is used instead.
        epoch: The epoch that begins next.
        start: Number of entries of the order to skip: of indices, or of batches if a custom batch sampler yields them.
        is_data_sharded: Whether each rank has a separate order.
        step: Number of entries that all ranks together consume in a step.

    >>> data = torch.utils.data.TensorDataset(torch.arange(5))
    >>> loader = torch.utils.data.DataLoader(data, batch_size=2)
    >>> [list(batch) for batch in SampleOrder(loader, DataShard(1, 2))]
    [[1, 3]]
    >>> indices = SampleOrder(loader)
    >>> indices.start = 2
    >>> [list(batch) for batch in indices]
    [[2, 3], [4]]
    """

    def __init__(self, loader: DataLoader[Any], shard: DataShard = FULL_SHARD, *, shard_batches: bool = False) -> None:
        self.seed = self.epoch = self.start = 0
        self.is_data_sharded = is_data_sharded(loader, shard)
        # Not the loader itself: it keeps its persistent workers' iterator, which keeps this.
        self._sampler, self._batch_sampler = index_sampler(loader), loader.batch_sampler
        self._samplers = samplers_of(loader)
        self._shard = FULL_SHARD if self.is_data_sharded else shard
        self._shard_batches = shard_batches
        generators = [getattr(one, "generator", None) for one in self._samplers]
        seeds = (one.initial_seed() for one in generators if isinstance(one, torch.Generator))
        self.generator_seed: int | None = next(seeds, None)
        batch_sampler: Any = self._batch_sampler
        # The size of batches that are built here, or None if the sampler yields complete batches.
        self._size: int | None = batch_sampler.batch_size if type(batch_sampler) is BatchSampler else None
        self._drops_last = self._size is not None and batch_sampler.drop_last
        self.step = (self._size or 1) * self._shard.size

    def __len__(self) -> int:
        """Number of steps in a full epoch."""
        steps = self.steps_after(0)
        return len(self._source) if steps is None else steps  # which raises the appropriate error

    def steps_after(self, start: int) -> int | None:
        """Return the number of steps from a position to the end of the epoch; None if unknown.

        Args:
            start: Number of entries that are skipped.
        """
        order = self._computed_order(0)
        total = length_of(self._source) if order is None else order.n
        if total is None:
            return None
        rest = max(total - start, 0)
        return rest // self.step if self._drops_last else -(-rest // self.step)

    def __iter__(self) -> Iterator[Any]:
        """Begin the epoch."""
        # Mixed, so that similar seeds and epochs give unrelated results.
        seed = mix_seed(self.seed if self.generator_seed is None else self.generator_seed, self.epoch)
        # Values sampled in a worker depend on the position of the batch, not on earlier work of that worker. Batches of
        # other ranks have other positions.
        positions = itertools.count(self.start + self._shard.rank, self.step)
        for position, batch in zip(positions, self._batches(self.start, seed), strict=False):
            yield SeededIndices(batch, mix_seed(seed, position)) if isinstance(batch, list) else batch

    @property
    def custom_sampler(self) -> str | None:
        """The class of a custom sampler, whose order is known only by iterating it; None for those of torch."""
        classes = map(type, self._samplers)
        return next((one.__name__ for one in classes if not one.__module__.startswith("torch.")), None)

    def batch_at(self, epoch: int, start: int) -> Any:
        """Return the indices of this rank's batch at a position of an epoch; an empty list after the end.

        A shuffled or sequential order is computed at that position directly. Other samplers are iterated up to it.

        Args:
            epoch: Number of the epoch, from 0.
            start: Number of entries of the order before the step.

        >>> data = torch.utils.data.TensorDataset(torch.arange(5))
        >>> SampleOrder(torch.utils.data.DataLoader(data, batch_size=2)).batch_at(epoch=0, start=2)
        [2, 3]
        """
        seed = mix_seed(self.seed if self.generator_seed is None else self.generator_seed, epoch)
        batches = iter(self._batches(start, seed))
        try:
            return next(batches, [])
        finally:
            if isinstance(batches, Generator):
                batches.close()  # gives the sampler its generator back

    def indices_at(self, epoch: int, start: int, batches: int = 1) -> list[Any]:
        """Return the indices of successive batches of this rank in one list; a sampler may yield single indices.

        Args:
            epoch: Number of the epoch, from 0.
            start: Number of entries of the order before the first of their steps.
            batches: Number of batches.

        >>> data = torch.utils.data.TensorDataset(torch.arange(5))
        >>> SampleOrder(torch.utils.data.DataLoader(data, batch_size=2)).indices_at(0, start=0, batches=3)
        [0, 1, 2, 3, 4]
        """
        found: list[Any] = []
        for number in range(batches):
            batch = self.batch_at(epoch, start + number * self.step)
            found += [batch] if isinstance(batch, int) else batch
        return found

    def of_rank(self, rank: int) -> SampleOrder | None:
        """Return the order of another rank; None if each rank has a separate order, which this rank does not know.

        Args:
            rank: Its data rank.

        >>> data = torch.utils.data.TensorDataset(torch.arange(5))
        >>> order = SampleOrder(torch.utils.data.DataLoader(data, batch_size=2), DataShard(0, 2))
        >>> order.batch_at(epoch=0, start=0), order.of_rank(1).batch_at(epoch=0, start=0)
        ([0, 2], [1, 3])
        """
        if self.is_data_sharded:
            return None
        order = copy.copy(self)
        order._shard = DataShard(rank, self._shard.size)
        return order

    def full_order(self, epoch: int) -> Order | None:
        """Return the order of an epoch over all ranks, with random access; None if its entries are not single indices.

        The order of a custom sampler is iterated once for it, without fetching samples.

        Args:
            epoch: Number of the epoch, from 0.

        >>> data = torch.utils.data.TensorDataset(torch.arange(5))
        >>> order = SampleOrder(torch.utils.data.DataLoader(data, batch_size=2), DataShard(1, 2))
        >>> order.full_order(epoch=0).slice(1, 4)
        [1, 2, 3]
        """
        if self._size is None:
            return None
        seed = mix_seed(self.seed if self.generator_seed is None else self.generator_seed, epoch)
        order = self._computed_order(seed)
        if order is not None:
            return order
        return None if length_of(self._source) is None else _ListedOrder(list(self._entries(seed)))

    @property
    def num_ranks(self) -> int:
        """Number of ranks among which the order is sharded."""
        return self._shard.size

    @property
    def _source(self) -> Any:
        """The sampler or batch sampler that yields the entries."""
        is_made = self._size is None and self._batch_sampler is not None
        return self._batch_sampler if is_made else self._sampler

    def _computed_order(self, seed: int) -> Order | None:
        """Return the order of an epoch if it can be computed without iterating the sampler."""
        sampler: Any = self._sampler
        if self._size is None:
            return None
        if type(sampler) is SequentialSampler:
            return ExplicitOrder(len(sampler.data_source))
        if _is_shuffled(sampler):
            return Permutation(len(sampler.data_source), seed)
        if type(sampler) is DistributedSampler and not self.is_data_sharded:
            n = len(cast(Sized, sampler.dataset))
            end = n - n % sampler.num_replicas if sampler.drop_last else n
            if not sampler.shuffle:
                return ExplicitOrder(end)
            # The sampler's order, without the samples that it repeats to make the shards equal.
            epoch_seed: int = sampler.seed + sampler.epoch
            return ExplicitOrder(end, lambda: torch.randperm(n, generator=torch.Generator().manual_seed(epoch_seed)))
        return None

    def _batches(self, start: int, seed: int) -> Iterator[Any]:
        order = self._computed_order(seed)
        if order is None:
            return self._iterate_sampler(start, seed)
        end = start + (order.n - start) // self.step * self.step if self._drops_last else order.n
        return self._slices(order, start, end)

    def _slices(self, order: Order, start: int, end: int) -> Iterator[list[int]]:
        """Yield this rank's batch of each step, from an order with random access."""
        size, shard = cast(int, self._size), self._shard
        if self._shard_batches:
            for first in range(start + shard.rank * size, end, self.step):
                yield order.slice(first, min(first + size, end))
            return
        chunk = max(self.step, _CHUNK // self.step * self.step)
        for first in range(start, end, chunk):
            indices = order.slice(first + shard.rank, min(first + chunk, end), shard.size)
            for offset in range(0, len(indices), size):
                yield indices[offset : offset + size]

    def _iterate_sampler(self, start: int, seed: int) -> Iterator[Any]:
        """Yield this rank's batch of each step, by iterating the sampler."""
        rank, num_shards, size = self._shard.rank, self._shard.size, self._size
        entries = itertools.islice(self._entries(seed), start, None)
        if size is None and num_shards == 1:
            yield from entries
            return
        while taken := list(itertools.islice(entries, self.step)):
            if size is None:
                mine = taken[rank : rank + 1]
            elif self._drops_last and len(taken) < self.step:
                return
            else:
                mine = [taken[rank * size : (rank + 1) * size] if self._shard_batches else taken[rank::num_shards]]
            yield from (entry for entry in mine if entry or size is None)

    def _entries(self, seed: int) -> Generator[Any]:
        """Yield the entries of the sampler, with its generators, or those of the process, seeded."""
        random_samplers = [one for one in self._samplers if isinstance(getattr(one, "generator", 0), _GENERATOR_TYPES)]
        generators = [one.generator for one in random_samplers]
        for number, one in enumerate(random_samplers):
            # Samplers that one sampler combines differ from each other.
            one.generator = torch.Generator().manual_seed(mix_seed(seed, number) if number else seed)
        try:
            if self.custom_sampler is None:
                yield from self._source
            elif (length := length_of(self._source)) is None:
                yield from self._iterate_in_steps(seed)
            else:
                with rng.seed_context(seed & rng.MAX_SEED):
                    entries = list(itertools.islice(self._source, length))
                yield from entries
        finally:
            for one, generator in zip(random_samplers, generators, strict=True):
                one.generator = generator

    def _iterate_in_steps(self, seed: int) -> Iterator[Any]:
        """Iterate a sampler of unknown length, with a random state of its own in place of that of the process."""
        with rng.seed_context(seed & rng.MAX_SEED):
            entries, state = iter(self._source), rng.get_local_rng_state()
        while True:
            with rng.preserve_rng_state():
                rng.set_local_rng_state(state)
                taken = list(itertools.islice(entries, self.step))
                state = rng.get_local_rng_state()
            if not taken:
                return
            yield from taken


def length_of(data: Any) -> int | None:
    """Return the length of a loader or sampler, or None if unknown.

    Args:
        data: A loader or sampler.

    >>> length_of([1, 2]), length_of(iter([1, 2]))
    (2, None)
    """
    try:
        return len(data)
    except (TypeError, NotImplementedError, OverflowError):  # OverflowError: the number is too large for a length
        return None


class SeededIndices(list[int]):
    """The indices of a batch; a DataLoader worker that iterates over them seeds its random generators first.

    So random transforms in workers give the same results for a batch in any worker, and after a resume.

    >>> list(SeededIndices([3, 1], seed=0))
    [3, 1]
    """

    def __init__(self, indices: Iterable[int], seed: int) -> None:
        super().__init__(indices)
        self.seed = seed

    def __iter__(self) -> Iterator[int]:
        """Seed in a worker; the generators of the main process are not touched."""
        if get_worker_info() is not None:
            rng.seed_all(self.seed & rng.MAX_SEED)
        return super().__iter__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for transfer to a worker without iterating, which would seed."""
        return SeededIndices, (self[:], self.seed)


def resumable_loader(loader: DataLoader[Any], indices: Iterable[Any], seed: int) -> DataLoader[Any]:
    """Return a copy of a loader that fetches the samples of a :class:`SampleOrder`.

    Args:
        loader: The user's loader, over a dataset with indices.
        indices: The sample order of that loader, or another iterable of batches of indices.
        seed: Base seed of the workers.

    >>> data = torch.utils.data.TensorDataset(torch.arange(5))
    >>> loader = torch.utils.data.DataLoader(data, batch_size=2)
    >>> indices = SampleOrder(loader)
    >>> indices.start = 4
    >>> list(resumable_loader(loader, indices, seed=0))
    [[tensor([4])]]
    """
    given: dict[str, Any] = {"batch_sampler": indices}
    if loader.batch_sampler is None:
        given = {"batch_size": None, "sampler": indices}
    workers: dict[str, Any] = {}
    if loader.num_workers:
        workers = {
            "multiprocessing_context": loader.multiprocessing_context,
            "prefetch_factor": loader.prefetch_factor,
            "persistent_workers": loader.persistent_workers,
        }
    return DataLoader(
        loader.dataset,
        **given,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        # A separate generator, so that starting an epoch samples nothing from torch's default generator, nor from the
        # user's, from which evaluations on the same loader draw their order.
        generator=torch.Generator().manual_seed(seed if loader.generator is None else loader.generator.initial_seed()),
        in_order=loader.in_order,
        **workers,
    )


class Order(Protocol):
    """An order of samples with random access.

    >>> order: Order = ExplicitOrder(10)
    >>> order.n, order.slice(1, 8, 3)
    (10, [1, 4, 7])
    """

    @property
    def n(self) -> int:
        """Number of entries."""
        ...

    def slice(self, start: int, stop: int, step: int = 1) -> list[int]:
        """Return the entries at the positions ``start``, ``start + step``, ... before ``stop``."""
        ...


class _ListedOrder:
    """The entries of a custom sampler, which may be any keys of a dataset."""

    def __init__(self, entries: list[Any]) -> None:
        self.n, self._entries = len(entries), entries

    def slice(self, start: int, stop: int, step: int = 1) -> list[Any]:
        return self._entries[start:stop:step]


def _is_shuffled(sampler: Any) -> bool:
    return (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    )
