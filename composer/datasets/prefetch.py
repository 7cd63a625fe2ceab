"""Prefetch batches to the device in custom training loops, with resumable iteration."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from composer import dist, trees
from composer._device_copies import copied_to
from composer._numbers import whole_number
from composer._text import callable_or_none
from composer.core.data_sharding import DataShard, check_sharded_data
from composer.core.device_transfer import Transfer, start_transfer
from composer.core.epoch_iterators import EpochIterators
from composer.core.microbatches import count_samples
from composer.core.types import Batch
from composer.datasets._device import default_device
from composer.devices import SIDE_STREAMS

__all__ = ["DevicePrefetcher"]


class DevicePrefetcher:
    """Iterate over a loader, copying batches to the device ahead of time; iteration can stop and resume at any batch.

    On CUDA, the next batches are fetched, and their copies started on a side stream, before a batch is yielded: a loop
    that synchronizes in each step (``loss.item()``) then finds the next batch on the device. Copies overlap with
    computation if batches are in pinned memory, ``DataLoader(..., pin_memory=True)``. On other devices, batches are
    copied when they are requested.

    The data are iterated as in the :class:`.Trainer`, which does not need this class: the samples of a map-style
    dataset are sharded over the ranks and shuffled by ``seed`` and epoch, and iteration resumes without reading earlier
    samples; a stateful loader restores its own state; any other data are read again up to the position. The state is
    that of the yielded batches, regardless of how many were prefetched.

    Args:
        loader: A ``DataLoader`` or any iterable of batches.
        device: Target device; None for the accelerator of this rank, or else the CPU.
        ahead: Number of batches to prefetch, from 0; CUDA only.
        seed: Seed of the shuffling, from 0; the same on all ranks.
        transform: Applied to each batch on the device before it is yielded, such as a :class:`.NormalizationFn`.

    Raises:
        ValueError: ``ahead`` is negative, or a loader of a custom class would yield the same samples on all ranks.

    >>> data = torch.utils.data.TensorDataset(torch.arange(6))
    >>> batches = DevicePrefetcher(torch.utils.data.DataLoader(data, batch_size=2), device="cpu")
    >>> first = next(iter(batches))
    >>> state = batches.state_dict()
    >>> later = DevicePrefetcher(torch.utils.data.DataLoader(data, batch_size=2), device="cpu")
    >>> later.load_state_dict(state)
    >>> [x.tolist() for (x,) in later], later.epoch
    ([[2, 3], [4, 5]], 1)
    """

    def __init__(
        self,
        loader: Iterable[Batch],
        device: str | torch.device | None = None,
        ahead: int = 1,
        seed: int = 0,
        transform: Callable[[Batch], Batch] | None = None,
    ) -> None:
        self.__loaders__ = [loader]  # which share the position
        self.loader, self.transform = loader, callable_or_none("transform", transform)
        self.seed = whole_number("seed", seed, minimum=None)
        self.device = default_device() if device is None else torch.device(device)
        self.ahead = whole_number("ahead", ahead)
        shard = DataShard(dist.get_global_rank(), dist.get_world_size())
        check_sharded_data(loader, shard, "loader")
        # Here batches are always fetched ahead, whatever random numbers the loop uses.
        self._epochs = EpochIterators(loader, self.seed, shard, fetch_again=False)
        self._counts_samples = self._epochs.resume_by == "dataset" and not self._epochs.is_per_rank
        self._now = _Position(epoch=0)
        self._is_iterating = False

    @property
    def epoch(self) -> int:
        """The current epoch or, between epochs, the next; from 0."""
        return self._now.epoch

    def __len__(self) -> int:
        """Number of batches in a full epoch, the maximum over the ranks.

        Raises:
            TypeError: The loader has no length.
        """
        length = self._epochs.length
        if length is None:
            raise TypeError(f"{type(self.loader).__name__} has no length: its number of batches is not known.")
        return length

    def __iter__(self) -> Generator[Batch]:
        """Start an epoch, at the loaded position if a state was loaded; an epoch that was left early is over."""
        if self._is_iterating:
            self._now = _Position(self.epoch + 1)
        self._is_iterating = True
        for transfer, position in self._prefetched():
            self._now = position
            batch = transfer.wait()
            yield batch if self.transform is None else self.transform(batch)
        self._now = _Position(self.epoch + 1)
        self._is_iterating = False

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch.

        Args:
            epoch: Index of the epoch, from 0.
        """
        self._now, self._is_iterating = _Position(epoch), False

    @property
    def _num_ahead(self) -> int:
        """Number of batches to prefetch; only copies to CUDA are asynchronous."""
        return self.ahead if self.device.type in SIDE_STREAMS else 0

    def _prefetched(self) -> Generator[tuple[Transfer, _Position]]:
        """Yield the remaining batches of the epoch, each with the position after it."""
        position = self._now
        current = self._epochs.begin(position.epoch, position.batch, position.saved)
        waiting: deque[tuple[Transfer, _Position]] = deque()
        for batch in current:
            samples = position.samples
            if self._counts_samples:
                samples += count_samples(batch) * self._epochs.shard.size
            position = _Position(position.epoch, position.batch + 1, samples, current.state_dict(samples, sized=False))
            waiting.append((start_transfer(batch, self.device, self._move), position))
            if len(waiting) > self._num_ahead:
                yield waiting.popleft()
        yield from waiting

    def _move(self, batch: Batch) -> Batch:
        return trees.map_tensors(lambda tensor: copied_to(tensor, self.device), batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded batch. In distributed training, call it on all ranks."""
        now = self._now
        saved = now.saved
        if saved is not None and self._epochs.shard.size > 1 and self._epochs.is_per_rank:
            saved = self._epochs.all_gather(saved)
        return {"seed": self.seed, "epoch": now.epoch, "batch": now.batch, "samples": now.samples, "saved": saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved position in the next iteration.

        Args:
            state: The result of :meth:`state_dict`. The world size may differ if the data have a map-style dataset.

        Raises:
            ValueError: The state has another seed.
        """
        if state["seed"] != self.seed:
            raise ValueError(f"The state has seed={state['seed']}, but this prefetcher has seed={self.seed}.")
        self._now = _Position(state["epoch"], state["batch"], state["samples"], state["saved"])
        self._is_iterating = False


@dataclass(frozen=True)
class _Position:
    """Position in an epoch: batches of this rank, samples of all ranks, and the state of the iterator."""

    epoch: int
    batch: int = 0
    samples: int = 0
    saved: Mapping[str, Any] | None = None
