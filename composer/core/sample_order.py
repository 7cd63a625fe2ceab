"""Which samples a data loader is to fetch, in an order that can be taken up in the middle and dealt out."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator, Sized
from typing import Any, Protocol, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from composer import rng
from composer.core.data_sharding import WHOLE, DataShard, is_data_sharded
from composer.core.random_order import Listed, Permutation, mix_seed

__all__ = ["SampleOrder", "SeededIndices", "length_of", "resumable"]

# What a sampler may have as its generator: its own, or none yet.
_DRAWN = (torch.Generator, type(None))
# So many indices are computed at once.
_CHUNK = 8192


class SampleOrder:
    """The batches of indices of one pass after another, for the ``batch_sampler`` of a data loader.

    All processes go through one order of the whole data. In a step, with B the loader's batch size, the W processes
    take the next B * W places of it, and process r those of them that leave r when divided by W. So a step trains on
    the same samples as a step of one process with batches W times as large. The last step of a pass may be short, and
    then not all processes have the same number of samples, or any at all.

    For shuffled and sequential samplers, torch's ``DistributedSampler`` among them, any place of a pass is found at
    once; what other samplers say before it is drawn again, without fetching data. What a user's own sampler draws from
    the generators of the process, it draws from the same seed everywhere.

    Args:
        loader: What the user made; its sampler and batch size are followed.
        share: What this process gets. Loaders that have been divided already are followed as they are.
        whole_batches: Whether the processes take the loader's own batches in turn, rather than parts of larger ones.

    Attributes:
        seed: Of the run, the same in all processes; a sampler or loader that was given a generator goes by
            ``own_seed``, the seed of that, instead.
        epoch: The pass that begins next.
        start: Number of entries of the order to leave out: of indices, or of batches where a batch sampler of the
            user's own makes them.
        is_data_sharded: Whether each process has an order of its own.
        step: Number of entries that all processes together take in a step.

    >>> data = torch.utils.data.TensorDataset(torch.arange(5))
    >>> loader = torch.utils.data.DataLoader(data, batch_size=2)
    >>> [list(batch) for batch in SampleOrder(loader, DataShard(1, 2))]
    [[1, 3]]
    >>> indices = SampleOrder(loader)
    >>> indices.start = 2
    >>> [list(batch) for batch in indices]
    [[2, 3], [4]]
    """

    def __init__(self, loader: DataLoader[Any], share: DataShard = WHOLE, *, whole_batches: bool = False) -> None:
        self.seed = self.epoch = self.start = 0
        self.is_data_sharded = is_data_sharded(loader, share)
        # Not the loader itself: it keeps its persistent workers' iterator, which keeps this.
        self._sampler, self._batch_sampler = loader.sampler, loader.batch_sampler
        self._share = WHOLE if self.is_data_sharded else share
        self._whole_batches = whole_batches
        generator = getattr(loader.sampler, "generator", None)
        self.own_seed: int | None = generator.initial_seed() if isinstance(generator, torch.Generator) else None
        batch_sampler: Any = self._batch_sampler
        # The size of batches that are made here, or None where the sampler yields what is fetched at once.
        self._size: int | None = batch_sampler.batch_size if type(batch_sampler) is BatchSampler else None
        self._drops_last = self._size is not None and batch_sampler.drop_last
        self.step = (self._size or 1) * self._share.size

    def __len__(self) -> int:
        """Number of steps of a whole pass."""
        steps = self.steps_after(0)
        return len(self._source) if steps is None else steps  # which says what is missing

    def steps_after(self, start: int) -> int | None:
        """Return the number of steps from a place on to the end of a pass; None where it is not known.

        Args:
            start: Number of entries that are left out.
        """
        order = self._computed(0)
        total = length_of(self._source) if order is None else order.n
        if total is None:
            return None
        rest = max(total - start, 0)
        return rest // self.step if self._drops_last else -(-rest // self.step)

    def __iter__(self) -> Iterator[Any]:
        """Begin the pass."""
        # Far apart for seeds and epochs that are close together.
        seed = mix_seed(self.seed if self.own_seed is None else self.own_seed, self.epoch)
        # Numbers drawn in a worker depend on the place of the batch, not on what that worker did before; the place of
        # another process's batch is another.
        places = itertools.count(self.start + self._share.rank, self.step)
        for batch in self._batches(self.start, seed):
            place = next(places)
            yield SeededIndices(batch, mix_seed(seed, place)) if isinstance(batch, list) else batch

    @property
    def _source(self) -> Any:
        """What yields the entries."""
        is_made = self._size is None and self._batch_sampler is not None
        return self._batch_sampler if is_made else self._sampler

    def _computed(self, seed: int) -> _Order | None:
        """The order of a pass if it is known without asking the sampler."""
        sampler: Any = self._sampler
        if self._size is None:
            return None
        if type(sampler) is SequentialSampler:
            return Listed(len(sampler.data_source))
        if _is_shuffled(sampler):
            return Permutation(len(sampler.data_source), seed)
        if type(sampler) is DistributedSampler and not self.is_data_sharded:
            n = len(cast(Sized, sampler.dataset))
            end = n - n % sampler.num_replicas if sampler.drop_last else n
            if not sampler.shuffle:
                return Listed(end)
            # As it would draw itself, but for the samples that it repeats to make the parts equal.
            own_seed: int = sampler.seed + sampler.epoch
            return Listed(end, lambda: torch.randperm(n, generator=torch.Generator().manual_seed(own_seed)))
        return None

    def _batches(self, start: int, seed: int) -> Iterator[Any]:
        order = self._computed(seed)
        if order is None:
            return self._drawn(start, seed)
        end = start + (order.n - start) // self.step * self.step if self._drops_last else order.n
        return self._parts(order, start, end)

    def _parts(self, order: _Order, start: int, end: int) -> Iterator[list[int]]:
        """This process's part of each step from an order of which any part is found at once."""
        size, share = cast(int, self._size), self._share
        if self._whole_batches:
            for first in range(start + share.rank * size, end, self.step):
                yield order.part(first, min(first + size, end))
            return
        chunk = max(self.step, _CHUNK // self.step * self.step)
        for first in range(start, end, chunk):
            part = order.part(first + share.rank, min(first + chunk, end), share.size)
            for place in range(0, len(part), size):
                yield part[place : place + size]

    def _drawn(self, start: int, seed: int) -> Iterator[Any]:
        """This process's part of each step from what the sampler yields one after the other."""
        rank, parts, size = self._share.rank, self._share.size, self._size
        entries = itertools.islice(self._entries(seed), start, None)
        while taken := list(itertools.islice(entries, self.step)):
            if size is None:
                mine = taken[rank : rank + 1]
            elif self._drops_last and len(taken) < self.step:
                return
            else:
                mine = [taken[rank * size : (rank + 1) * size] if self._whole_batches else taken[rank::parts]]
            yield from (entry for entry in mine if entry or size is None)

    def _entries(self, seed: int) -> Generator[Any]:
        """What the sampler yields, with its generators, or those of the process, at a seed."""
        owners: list[Any] = [self._sampler, self._batch_sampler]
        drawing = [owner for owner in owners if isinstance(getattr(owner, "generator", 0), _DRAWN)]
        kept = [owner.generator for owner in drawing]
        for owner in drawing:
            owner.generator = torch.Generator().manual_seed(seed)
        try:
            if all(owner is None or type(owner).__module__.startswith("torch.") for owner in owners):
                yield from self._source
            else:
                yield from self._drawn_by_others(seed)
        finally:
            for owner, generator in zip(drawing, kept, strict=True):
                owner.generator = generator

    def _drawn_by_others(self, seed: int) -> Iterable[Any]:
        """What a sampler of the user's own yields: it may draw from generators that differ between processes."""
        length = length_of(self._source)
        if length is None:
            return self._source
        with rng.seed_context(seed & rng.MAX_SEED):
            return list(itertools.islice(self._source, length))


def length_of(data: Any) -> int | None:
    """Return how many entries there are, or None where it is not known.

    Args:
        data: A loader or sampler.

    >>> length_of([1, 2]), length_of(iter([1, 2]))
    (2, None)
    """
    try:
        return len(data)
    except (TypeError, NotImplementedError, OverflowError):  # the last of a number that is too large for a length
        return None


class SeededIndices(list[int]):
    """The indices of a batch; a loader's worker that goes through them seeds its generators first.

    Random transforms in workers so give the same for a batch whichever worker makes it, and after a resumption too.

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
        """Travel to a worker without being gone through."""
        return SeededIndices, (self[:], self.seed)


def resumable(loader: DataLoader[Any], indices: SampleOrder, seed: int) -> DataLoader[Any]:
    """Return a loader that fetches as another does, but what :class:`SampleOrder` say.

    Args:
        loader: The user's loader, over a data set with indices.
        indices: Made of it.
        seed: From which workers are seeded.

    >>> data = torch.utils.data.TensorDataset(torch.arange(5))
    >>> loader = torch.utils.data.DataLoader(data, batch_size=2)
    >>> indices = SampleOrder(loader)
    >>> indices.start = 4
    >>> list(resumable(loader, indices, seed=0))
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
        # One of its own: to begin a pass then draws nothing from torch's generator.
        generator=loader.generator or torch.Generator().manual_seed(seed),
        in_order=loader.in_order,
        **workers,
    )


class _Order(Protocol):
    """An order of which any part is found at once."""

    @property
    def n(self) -> int: ...
    def part(self, start: int, stop: int, step: int = 1) -> list[int]: ...


def _is_shuffled(sampler: Any) -> bool:
    return (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    )
