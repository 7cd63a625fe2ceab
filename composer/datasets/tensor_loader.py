"""Data loader for tensors in device memory: batches are indexed on the device, without host-to-device copies."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from composer import dist
from composer._numbers import whole_number
from composer._text import callable_or_none
from composer.core.random_order import mix_seed
from composer.core.types import Batch
from composer.datasets._device import default_device

__all__ = ["TensorLoader"]


class TensorLoader:
    """Yield batches of tensors that are stored on the device, shuffled on the device.

    A ``DataLoader`` fetches samples one by one and collates them; for data that fit in device memory, this takes much
    longer than a step of a small model. Here a batch is one indexing operation per tensor, without host-device copies
    or synchronization. The order of an epoch is a permutation that depends on seed and epoch and is the same on all
    ranks. Of the next ``batch_size * W`` samples of the permutation, rank r of W takes every W-th one starting at r, as
    the :class:`.Trainer` shards a ``DataLoader``. The last step may be incomplete.

    The functions of a :class:`.DataSpec` receive these batches on the device: a function that counts samples or tokens
    from values, rather than shapes, synchronizes with the device in each step.

    The state is four numbers: iteration resumes at any position, with any world size, without reading earlier samples.
    The ``Trainer`` saves it in its checkpoints. A loader has a single position: in your own loop, use another one for
    evaluation. Shuffling gives different orders on different device types.

    Args:
        tensors: Tensors of equal length, the number of samples: a sequence, for batches that are tuples, or a mapping,
            for batches that are dictionaries with the same keys.
        batch_size: Number of samples in a batch of this rank.
        shuffle: Whether to reshuffle the data in each epoch.
        seed: Seed of the shuffling, from 0; the same on all ranks.
        drop_last: Whether to drop the last, incomplete step.
        device: Device of the samples; None for the accelerator of this rank, or else the CPU.
        transform: Applied to each batch on the device, such as an augmentation of all its images at once.
        num_replicas: Number of ranks that shard the data; None for the world size.
        rank: Index of this rank among them; None for the global rank.

    Attributes:
        epoch: The current epoch or, between epochs, the next; from 0.
        shards_data: Declares to the ``Trainer`` that the loader shards its data and has the same state on all ranks.

    Raises:
        TypeError: A sample is not a tensor.
        ValueError: ``tensors`` is empty or the lengths differ, or another argument is out of range.

    >>> loader = TensorLoader(
    ...     (torch.arange(5), torch.zeros(5, 2)), batch_size=2, shuffle=False, device="cpu"
    ... )
    >>> [x.tolist() for x, y in loader]
    [[0, 1], [2, 3], [4]]
    >>> shuffled = TensorLoader({"x": torch.arange(5)}, 2, device="cpu")
    >>> [batch["x"].tolist() for batch in shuffled], shuffled.state_dict()
    ([[3, 2], [4, 0], [1]], {'seed': 0, 'samples': 5, 'epoch': 1, 'place': 0})
    """

    shards_data = True

    def __init__(
        self,
        tensors: Sequence[Tensor] | Mapping[str, Tensor],
        batch_size: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        device: str | torch.device | None = None,
        transform: Callable[[Batch], Batch] | None = None,
        *,
        num_replicas: int | None = None,
        rank: int | None = None,
    ) -> None:
        self.batch_size = whole_number("batch_size", batch_size, minimum=1)
        self.shuffle, self.drop_last = shuffle, drop_last
        self.transform = callable_or_none("transform", transform)
        self.seed = whole_number("seed", seed, minimum=None)
        replicas = dist.get_world_size() if num_replicas is None else num_replicas
        self.num_replicas = whole_number("num_replicas", replicas, minimum=1)
        self.rank = whole_number("rank", dist.get_global_rank() if rank is None else rank, minimum=None)
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"rank must be from 0 to {self.num_replicas - 1} (num_replicas - 1), but got {self.rank}.")
        self.device = default_device() if device is None else torch.device(device)
        self._keys = list(tensors) if isinstance(tensors, Mapping) else None
        self._tensors = [tensor.to(self.device) for tensor in _checked(tensors)]
        self.epoch = self._position = 0
        self._is_iterating = False
        self._kept_order: tuple[int, Tensor] | None = None

    @property
    def num_samples(self) -> int:
        """Number of samples in an epoch, over all ranks."""
        return len(self._tensors[0])

    def __len__(self) -> int:
        """Number of steps in an epoch; if the last is incomplete, a rank may have no batch in it."""
        return self._steps_after(0)

    @property
    def steps_left(self) -> int:
        """Number of steps from the current position to the end of the epoch."""
        return self._steps_after(self._position)

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch.

        Args:
            epoch: Index of the epoch, from 0.
        """
        self._begin(epoch, 0)

    def __iter__(self) -> Generator[Batch]:
        """Start an epoch, at the loaded position if a state was loaded; an epoch that was left early is over."""
        if self._is_iterating:
            self._begin(self.epoch + 1, 0)
        self._is_iterating = True
        order = self._order()
        for _ in range(self.steps_left):
            start = self._position
            self._position += self.batch_size * self.num_replicas
            batch = self._batch(order, start)
            if batch is not None:
                yield batch
        self._begin(self.epoch + 1, 0)

    def batch_at(self, position: int) -> Batch:
        """Return this rank's batch of a step in the endless sequence of epochs; a batch may span two of them.

        So all batches are full. Neither the current position nor ``drop_last`` matters.

        Args:
            position: Number of samples before the step, over all ranks and epochs.

        >>> TensorLoader([torch.arange(5)], 4, shuffle=False, device="cpu").batch_at(8)
        (tensor([3, 4, 0, 1]),)
        """
        n, found = self.num_samples, list[Tensor]()
        stop = position + self.batch_size * self.num_replicas
        start = position + self.rank
        while start < stop:
            epoch, first = divmod(start, n)
            indices = self._endless_order(epoch)[first : min(n, first + stop - start) : self.num_replicas]
            found.append(indices)
            start += len(indices) * self.num_replicas
        return self._select(torch.cat(found))

    def state_dict(self) -> dict[str, int]:
        """Return the position after the last yielded batch."""
        return {"seed": self.seed, "samples": self.num_samples, "epoch": self.epoch, "place": self._position}

    def __state_before__(self, batches: int) -> dict[str, int]:
        """Return the position before the last yielded batches of the epoch, for checkpoints within a step.

        Args:
            batches: Number of these batches.
        """
        state = self.state_dict()
        return {**state, "place": state["place"] - batches * self.batch_size * self.num_replicas}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Resume from a saved position in the next iteration.

        Args:
            state: The result of :meth:`state_dict`, possibly with another world size.

        Raises:
            ValueError: The state is that of a loader with another number of samples.
        """
        if state["samples"] != self.num_samples:
            raise ValueError(
                f"The state is from a loader with {state['samples']} samples, but this loader has {self.num_samples}."
            )
        self.seed = state["seed"]
        self._begin(state["epoch"], state["place"])

    def _begin(self, epoch: int, position: int) -> None:
        self.epoch, self._position = epoch, position
        self._is_iterating = False

    def _steps_after(self, position: int) -> int:
        rest, step = max(self.num_samples - position, 0), self.batch_size * self.num_replicas
        return rest // step if self.drop_last else -(-rest // step)

    def _order(self) -> Tensor | None:
        if not self.shuffle:
            return None
        return self._permutation(self.epoch)

    def _permutation(self, epoch: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(mix_seed(self.seed, epoch))
        return torch.randperm(self.num_samples, generator=generator, device=self.device)

    def _endless_order(self, epoch: int) -> Tensor:
        """Return the order of an epoch; the last one is kept, as most batches are within one epoch."""
        if not self.shuffle:
            epoch = 0
        if self._kept_order is None or self._kept_order[0] != epoch:
            order = self._permutation(epoch) if self.shuffle else torch.arange(self.num_samples, device=self.device)
            self._kept_order = epoch, order
        return self._kept_order[1]

    def _batch(self, order: Tensor | None, start: int) -> Batch | None:
        """Return this rank's batch of a step, or None if no samples are left for it."""
        indices = slice(start + self.rank, start + self.batch_size * self.num_replicas, self.num_replicas)
        if indices.start >= self.num_samples:
            return None
        if order is not None:
            return self._select(order[indices])
        # Copies: editing a batch in place must not change the data.
        return self._structured([tensor[indices].clone() for tensor in self._tensors])

    def _select(self, indices: Tensor) -> Batch:
        return self._structured([tensor.index_select(0, indices) for tensor in self._tensors])

    def _structured(self, found: list[Tensor]) -> Batch:
        batch: Any = tuple(found) if self._keys is None else dict(zip(self._keys, found, strict=True))
        return batch if self.transform is None else self.transform(batch)


def _checked(tensors: Sequence[Tensor] | Mapping[str, Tensor]) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        raise TypeError("tensors must be a sequence or mapping of tensors, but got a single tensor; use (tensor,).")
    found: list[Any] = list(tensors.values() if isinstance(tensors, Mapping) else tensors)
    for tensor in found:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"tensors must contain only tensors, but got an entry of type {type(tensor).__name__}.")
    lengths = {len(tensor) if tensor.ndim else 0 for tensor in found}
    if len(lengths) != 1 or 0 in lengths:
        shapes = [tuple(tensor.shape) for tensor in found]
        raise ValueError(f"tensors must have the same nonzero length, the number of samples, but got shapes {shapes}.")
    return found
