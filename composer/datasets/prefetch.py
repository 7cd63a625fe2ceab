"""Batches that are on the device when a loop of one's own asks for them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from composer import dist, trees
from composer._device_copies import copied_to
from composer._text import non_negative
from composer.core.data_sharding import DataShard, check_sharded_data
from composer.core.device_transfer import Transfer, start_transfer
from composer.core.epoch_iterators import EpochIterators
from composer.core.microbatches import count_samples
from composer.core.types import Batch
from composer.datasets._device import device_of_process
from composer.devices import SIDE_STREAMS

__all__ = ["DevicePrefetcher"]


class DevicePrefetcher:
    """Goes through a loader, copies its batches to the device ahead of time, and can be stopped and taken up anywhere.

    On CUDA the next batches are fetched and their copies begun, on a stream of their own, before one is handed out: a
    loop that waits for the device in each step (``loss.item()``) then finds the next batch there. The copies overlap
    with computing where batches lie in pinned memory, ``DataLoader(..., pin_memory=True)``. On other devices batches
    are copied when they are asked for.

    The loader is gone through as the :class:`.Trainer` does, which needs this for nothing: samples with indices are
    dealt out to the processes and shuffled by ``seed`` and epoch, and a pass is taken up at once; data that keep their
    own place are asked for it; all else is read again up to the place. The state is that of the batches that were
    handed out, however many were fetched.

    Args:
        loader: Yields batches; a ``DataLoader`` or any iterable.
        device: Where to; None for the accelerator of this process, or else the CPU.
        ahead: Number of batches that are fetched before they are asked for, from 0; for CUDA.
        seed: Of the orders of samples, from 0; the same in all processes.
        transform: Applied to each batch on the device when it is handed out, such as a :class:`.NormalizationFn`.

    Raises:
        ValueError: ``ahead`` is negative, or a loader of one's own class would give several processes the same samples.

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
        self.loader, self.seed, self.transform = loader, seed, transform
        self.device = device_of_process() if device is None else torch.device(device)
        self.ahead = non_negative("ahead", ahead)
        share = DataShard(dist.get_global_rank(), dist.get_world_size())
        check_sharded_data(loader, share, "loader")
        self._passes = EpochIterators(loader, seed, share)
        self._counts_samples = self._passes.resume_by == "dataset" and not self._passes.is_per_rank
        self._now = _Place(epoch=0)
        self._is_under_way = False

    @property
    def epoch(self) -> int:
        """The pass under way or, outside of one, the next; from 0."""
        return self._now.epoch

    def __len__(self) -> int:
        """Number of batches of a whole pass, of the process that has most.

        Raises:
            TypeError: The loader does not tell.
        """
        length = self._passes.length
        if length is None:
            raise TypeError(f"{type(self.loader).__name__} does not tell its number of batches.")
        return length

    def __iter__(self) -> Generator[Batch]:
        """Begin a pass, where a state says if one was loaded; one that was left in the middle is over."""
        if self._is_under_way:
            self._now = _Place(self.epoch + 1)
        self._is_under_way = True
        for sent, place in self._on_the_way():
            self._now = place
            batch = sent.wait()
            yield batch if self.transform is None else self.transform(batch)
        self._now = _Place(self.epoch + 1)
        self._is_under_way = False

    def set_epoch(self, epoch: int) -> None:
        """Set which pass is next.

        Args:
            epoch: From 0.
        """
        self._now, self._is_under_way = _Place(epoch), False

    @property
    def _waiting(self) -> int:
        """Number of batches that wait; only copies to CUDA take no time of the host."""
        return self.ahead if self.device.type in SIDE_STREAMS else 0

    def _on_the_way(self) -> Generator[tuple[Transfer, _Place]]:
        """The rest of the pass: batches, and the place after each."""
        place = self._now
        current = self._passes.begin(place.epoch, place.batch, place.saved)
        waiting: deque[tuple[Transfer, _Place]] = deque()
        for batch in current:
            samples = place.samples
            if self._counts_samples:
                samples += count_samples(batch) * self._passes.shard.size
            place = _Place(place.epoch, place.batch + 1, samples, current.state_dict(samples, sized=False))
            waiting.append((start_transfer(batch, self.device, self._move), place))
            if len(waiting) > self._waiting:
                yield waiting.popleft()
        yield from waiting

    def _move(self, batch: Batch) -> Batch:
        return trees.map_tensors(lambda tensor: copied_to(tensor, self.device), batch)

    def state_dict(self) -> dict[str, Any]:
        """Return the place after the batch that was handed out last; in several processes, all have to call this."""
        now = self._now
        saved = now.saved
        if saved is not None and self._passes.shard.size > 1 and self._passes.is_per_rank:
            saved = self._passes.all_gather(saved)
        return {"seed": self.seed, "epoch": now.epoch, "batch": now.batch, "samples": now.samples, "saved": saved}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at a place with the next pass.

        Args:
            state: What :meth:`state_dict` returned. Where samples are dealt out, there may be another number of
                processes now.

        Raises:
            ValueError: It is of another seed.
        """
        if state["seed"] != self.seed:
            raise ValueError(f"The state is of seed={state['seed']}, but this has seed={self.seed}; give the same.")
        self._now = _Place(state["epoch"], state["batch"], state["samples"], state["saved"])
        self._is_under_way = False


@dataclass(frozen=True)
class _Place:
    """How far a pass has come: batches of this process, samples of all, and what the pass says of it."""

    epoch: int
    batch: int = 0
    samples: int = 0
    saved: Mapping[str, Any] | None = None
