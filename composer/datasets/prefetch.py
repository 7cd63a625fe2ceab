"""Prefetch batches to the device in custom training loops, with resumable iteration."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import IterableDataset

from composer import dist, rng, trees
from composer._device_copies import copied_to
from composer._numbers import whole_number
from composer._text import callable_or_none
from composer.core.data_sharding import DataShard, check_sharded_data
from composer.core.device_transfer import Transfer, start_transfer
from composer.core.epoch_iterator import EpochIterator
from composer.core.epoch_iterators import EpochIterators
from composer.core.microbatches import count_samples
from composer.core.shared_data import KeptStarts, independent_copy, positioned
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
        self._epochs = EpochIterators(loader, self.seed, shard, fetch_again=False, starts=KeptStarts(loader))
        self._counts_samples = self._epochs.resume_by == "dataset" and not self._epochs.is_per_rank
        self._now = _Position(epoch=0)
        self._is_iterating = False
        self._is_elsewhere = False  # whether the data are at another position than this one

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
            self.set_epoch(self.epoch + 1)
        self._is_iterating = True
        for transfer, position in self._prefetched():
            self._now = position
            if transfer is not None:
                batch = transfer.wait()
                yield batch if self.transform is None else self.transform(batch)
        self._is_iterating = False

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch.

        Args:
            epoch: Index of the epoch, from 0.
        """
        if self._is_iterating and not (self._is_at_end(self._now) or getattr(self.loader, "num_workers", 0)):
            self._is_elsewhere = True  # batches may have been fetched ahead of the epoch that was left early
        self._now, self._is_iterating = self._now.at_epoch(epoch), False

    @property
    def _num_ahead(self) -> int:
        """Number of batches to prefetch; only copies to CUDA are asynchronous."""
        return self.ahead if self.device.type in SIDE_STREAMS else 0

    @property
    def _length(self) -> int | None:
        """Number of batches that surely determines where an epoch of this rank ends, or None."""
        # The length of iterable data may be a guess, and others with a position may begin an epoch anywhere.
        is_iterable = isinstance(getattr(self.loader, "dataset", None), IterableDataset)
        return None if is_iterable or positioned(self.loader) is not None else self._epochs.length

    def _is_at_end(self, position: _Position) -> bool:
        """Return whether it is known without reading that no batch of the epoch is left."""
        if self._epochs.resume_by == "indices":
            return False  # it is fast to ask, and another number of ranks may have counted the batches
        is_over = position.saved is not None and "over" in position.saved
        return bool(position.batch) and (is_over or position.batch == self._length)

    def _prefetched(self) -> Generator[tuple[Transfer | None, _Position]]:
        """Yield the remaining batches of the epoch, each with the position after it; last, that before the next one."""
        position, is_sized = self._now, self._length is not None
        if self._is_at_end(position):
            yield None, position.at_epoch(position.epoch + 1)
            return
        current = self._begin(position)
        waiting: deque[tuple[Transfer, _Position]] = deque()
        for batch in current:
            samples = position.samples
            if self._counts_samples:
                samples += count_samples(batch) * self._epochs.shard.size
            saved = current.state_dict(samples, sized=is_sized)
            position = _Position(position.epoch, position.batch + 1, samples, saved)
            waiting.append((start_transfer(batch, self.device, self._move), position))
            if len(waiting) > self._num_ahead:
                yield waiting.popleft()
        yield from waiting
        end = replace(position, saved=current.state_dict(position.samples)) if position.batch else position
        yield None, end.at_epoch(position.epoch + 1)

    def _begin(self, position: _Position) -> EpochIterator:
        """Return an iterator from a position, at which the data usually are already."""
        if self._is_elsewhere:
            self._is_elsewhere = False
            # The random numbers of getting there were used before the state was saved.
            with rng.preserve_rng_state():
                if (current := self._restore(position)) is not None:
                    return current
        return self._epochs.begin(position.epoch)

    def _restore(self, position: _Position) -> EpochIterator | None:
        """Restore the data to a loaded position, and return an iterator from there; None between epochs."""
        if position.saved is None:
            self._epochs.return_to_start(None)
            return None
        saved = {"ranks": [position.saved] * self._epochs.shard.size, **position.saved}
        if "ended" not in saved:
            return self._epochs.begin(position.epoch, position.batch, saved)
        self._epochs.restore_after(position.epoch - 1, saved)
        return None

    def __independent_copy__(self, starts: KeptStarts | None) -> DevicePrefetcher | None:
        """Return a copy that begins at the start, or None if the loader cannot be copied."""
        own = self._epochs.starts
        loader = independent_copy(self.loader, own if own.of(self.loader) else starts)
        return None if loader is None else DevicePrefetcher(loader, self.device, self.ahead, self.seed, self.transform)

    def _move(self, batch: Batch) -> Batch:
        return trees.map_tensors(lambda tensor: copied_to(tensor, self.device), batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last yielded batch. In distributed training, call it on all ranks."""
        if self._epochs.shard.size > 1 and self._epochs.is_per_rank:
            # Epochs of separate data may end earlier on some ranks.
            return {"seed": self.seed, "ranks": dist.all_gather_object(vars(self._now))}
        return self.__state_of_rank__()

    def __state_of_rank__(self) -> dict[str, Any]:
        """Return the position of this rank alone, without communication."""
        return {"seed": self.seed, **vars(self._now)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved position in the next iteration.

        Args:
            state: The result of :meth:`state_dict`. The world size may differ if the data have a map-style dataset.

        Raises:
            ValueError: The state has another seed, or is of another number of ranks with separate data.
        """
        if state["seed"] != self.seed:
            raise ValueError(f"The state has seed={state['seed']}, but this prefetcher has seed={self.seed}.")
        own = self._epochs.of_this_rank(state) if "ranks" in state else state
        self._now = _Position(own["epoch"], own["batch"], own["samples"], own["saved"])
        self._is_iterating, self._is_elsewhere = False, True


@dataclass(frozen=True)
class _Position:
    """Position in the data.

    Attributes:
        epoch: The current epoch or, between epochs, the next.
        batch: Batches of this rank in it.
        samples: Samples of all ranks in it.
        saved: The state of the iterator; between epochs, that at the end of the last one, whose batches are "ended".
    """

    epoch: int
    batch: int = 0
    samples: int = 0
    saved: Mapping[str, Any] | None = None

    def at_epoch(self, epoch: int) -> _Position:
        """Return the position before an epoch that begins where the last one was left.

        Args:
            epoch: Index of the epoch.
        """
        saved = self.saved
        if saved is not None and self.batch:
            # Only data with a state of its own needs it.
            saved = {**saved, "ended": self.batch} if "state" in saved else None
        return _Position(epoch, saved=saved)
