"""Which samples a data loader is to fetch, in an order that can be taken up in the middle."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler, get_worker_info

from composer.core.shuffle import Permutation, mix_seed

__all__ = ["Indices", "SeededIndices", "resumable"]

# What a sampler may have as its generator: its own, or none yet.
_DRAWN = (torch.Generator, type(None))
# So many indices are computed at once.
_CHUNK = 8192


class Indices:
    """The batches of indices of one pass after another, for the ``batch_sampler`` of a data loader.

    For shuffled and sequential samplers any place of a pass is found at once; the batches before it of other samplers
    are drawn again, without fetching their data.

    Args:
        loader: What the user made; its sampler and batch size are followed.

    Attributes:
        seed: Of the run; a sampler or loader that was given a generator goes by the seed of that instead.
        epoch: The pass that begins next.
        start: Number of batches of it to leave out.

    >>> data = torch.utils.data.TensorDataset(torch.arange(5))
    >>> indices = Indices(torch.utils.data.DataLoader(data, batch_size=2))
    >>> indices.start = 1
    >>> list(indices)
    [[2, 3], [4]]
    """

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.seed = self.epoch = self.start = 0
        self._loader = loader
        generator = getattr(loader.sampler, "generator", None)
        self._own_seed: int | None = generator.initial_seed() if isinstance(generator, torch.Generator) else None

    def __len__(self) -> int:
        """Number of batches of a whole pass."""
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        """Begin the pass."""
        # Far apart for seeds and epochs that are close together.
        seed = mix_seed(self.seed if self._own_seed is None else self._own_seed, self.epoch)
        number = itertools.count(self.start)
        for batch in self._batches(self.start, seed):
            # Numbers drawn in a worker depend on the batch, not on what that worker did before.
            yield SeededIndices(batch, mix_seed(seed, next(number))) if isinstance(batch, list) else batch

    def _batches(self, start: int, seed: int) -> Iterator[Any]:
        sampler: Any = self._loader.sampler
        batch_sampler: Any = self._loader.batch_sampler
        if type(batch_sampler) is BatchSampler and _is_computed(sampler):
            yield from _computed(sampler, batch_sampler.batch_size, batch_sampler.drop_last, start, seed)
            return
        source: Any = sampler if batch_sampler is None else batch_sampler
        owners: list[Any] = [sampler, batch_sampler]
        drawing = [owner for owner in owners if isinstance(getattr(owner, "generator", 0), _DRAWN)]
        kept = [owner.generator for owner in drawing]
        for owner in drawing:
            owner.generator = torch.Generator().manual_seed(seed)
        try:
            yield from itertools.islice(cast("Iterable[Any]", source), start, None)
        finally:
            for owner, generator in zip(drawing, kept, strict=True):
                owner.generator = generator


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
            _seed_worker(self.seed)
        return super().__iter__()

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to a worker without being gone through."""
        return SeededIndices, (self[:], self.seed)


def resumable(loader: DataLoader[Any], indices: Indices, seed: int) -> DataLoader[Any]:
    """Return a loader that fetches as another does, but what :class:`Indices` say.

    Args:
        loader: The user's loader, over a data set with indices.
        indices: Made of it.
        seed: From which workers are seeded.

    >>> data = torch.utils.data.TensorDataset(torch.arange(5))
    >>> loader = torch.utils.data.DataLoader(data, batch_size=2)
    >>> indices = Indices(loader)
    >>> indices.start = 2
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


def _is_computed(sampler: Any) -> bool:
    if type(sampler) is SequentialSampler:
        return True
    return (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
    )


def _computed(sampler: Any, size: int, drop_last: bool, start: int, seed: int) -> Iterator[list[int]]:
    n = len(sampler.data_source)
    end = n - n % size if drop_last else n
    order = Permutation(n, seed) if type(sampler) is RandomSampler else None
    step = max(size, _CHUNK // size * size)
    for first in range(start * size, end, step):
        last = min(first + step, end)
        part = list(range(first, last)) if order is None else order.part(first, last)
        for place in range(0, len(part), size):
            yield part[place : place + size]


def _seed_worker(seed: int) -> None:
    random.seed(seed)
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
    try:
        import numpy as np
    except ModuleNotFoundError:
        return
    np.random.seed(seed & 0xFFFFFFFF)
