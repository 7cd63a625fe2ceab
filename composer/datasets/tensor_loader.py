"""A small data set that lies wholly on the device: batches are made there, by one operation each."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from composer import dist
from composer._text import positive
from composer.core.random_order import mix_seed
from composer.core.types import Batch
from composer.datasets._device import device_of_process

__all__ = ["TensorLoader"]


class TensorLoader:
    """Batches of tensors that lie on the device from the start, in an order that is drawn there.

    A ``DataLoader`` fetches sample after sample and puts them together; for data that fits into the memory of the
    device that takes far longer than a small model's step. Here a batch is one indexing operation for each tensor, and
    nothing is copied or waited for. A pass is in the order of a permutation of seed and epoch, the same in all
    processes; of the n samples in it, process r of W takes in each step those of the next ``batch_size * W`` that leave
    r when divided by W, as the :class:`.Trainer` deals out a ``DataLoader``. The last step may be short.

    The functions of a :class:`.DataSpec` receive these batches on the device: a function that counts samples or tokens
    from values, rather than shapes, synchronizes with the device in each step.

    The state is four numbers, and a pass is taken up at any place, by any number of processes, in no time. The
    ``Trainer`` saves it with its checkpoints; as a loader has one place only, evaluations need one of their own. An
    order that was drawn on one kind of device is not that of another.

    Args:
        tensors: Of one length, the samples: in a sequence, batches then being tuples, or in a mapping, batches then
            being dictionaries with its keys.
        batch_size: Number of samples in a batch of this process.
        shuffle: Whether each pass is in another order.
        seed: Of the orders, from 0; the same in all processes.
        drop_last: Whether to leave out the samples of the last, smaller step.
        device: Where the samples are to lie; None for the accelerator of this process, or else the CPU.
        transform: Applied to each batch on the device, such as an augmentation of all its images at once.
        num_replicas: Number of processes that share the data; None for all.
        rank: Which of them this is; None for its rank.

    Attributes:
        epoch: The pass under way or, outside of one, the next; from 0.
        shards_data: The ``Trainer`` reads from it that processes share one state.

    Raises:
        TypeError: The samples are no tensors.
        ValueError: The tensors differ in length or there are none, or another argument is out of range.

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
        self.batch_size = positive("batch_size", batch_size)
        self.shuffle, self.seed, self.drop_last, self.transform = shuffle, seed, drop_last, transform
        self.num_replicas = positive("num_replicas", dist.get_world_size() if num_replicas is None else num_replicas)
        self.rank = dist.get_global_rank() if rank is None else rank
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"rank must be from 0 to {self.num_replicas - 1} (num_replicas - 1), but is {self.rank}.")
        self.device = device_of_process() if device is None else torch.device(device)
        self._keys = list(tensors) if isinstance(tensors, Mapping) else None
        self._tensors = [tensor.to(self.device) for tensor in _checked(tensors)]
        self.epoch = self._place = 0
        self._is_under_way = False

    @property
    def num_samples(self) -> int:
        """Number of samples of a pass, of all processes."""
        return len(self._tensors[0])

    def __len__(self) -> int:
        """Number of steps of a pass; where the last is short, a process may have no batch in it."""
        return self._steps_after(0)

    @property
    def steps_left(self) -> int:
        """Number of steps from the place where the next pass begins, or this one is."""
        return self._steps_after(self._place)

    def set_epoch(self, epoch: int) -> None:
        """Set which pass is next.

        Args:
            epoch: From 0.
        """
        self._begin(epoch, 0)

    def __iter__(self) -> Generator[Batch]:
        """Begin a pass, where a state says if one was loaded; one that was left in the middle is over."""
        if self._is_under_way:
            self._begin(self.epoch + 1, 0)
        self._is_under_way = True
        order = self._order()
        for _ in range(self.steps_left):
            start = self._place
            self._place += self.batch_size * self.num_replicas
            batch = self._batch(order, start)
            if batch is not None:
                yield batch
        self._begin(self.epoch + 1, 0)

    def state_dict(self) -> dict[str, int]:
        """Return the place: of what comes after the batches that were handed out."""
        return {"seed": self.seed, "samples": self.num_samples, "epoch": self.epoch, "place": self._place}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on at a place with the next pass.

        Args:
            state: What :meth:`state_dict` returned, here or in another number of processes.

        Raises:
            ValueError: It is that of a loader of another number of samples.
        """
        if state["samples"] != self.num_samples:
            raise ValueError(
                f"The state is that of a loader of {state['samples']} samples, but this one has {self.num_samples}."
            )
        self.seed = state["seed"]
        self._begin(state["epoch"], state["place"])

    def _begin(self, epoch: int, place: int) -> None:
        self.epoch, self._place = epoch, place
        self._is_under_way = False

    def _steps_after(self, place: int) -> int:
        rest, step = max(self.num_samples - place, 0), self.batch_size * self.num_replicas
        return rest // step if self.drop_last else -(-rest // step)

    def _order(self) -> Tensor | None:
        if not self.shuffle:
            return None
        generator = torch.Generator(self.device).manual_seed(mix_seed(self.seed, self.epoch))
        return torch.randperm(self.num_samples, generator=generator, device=self.device)

    def _batch(self, order: Tensor | None, start: int) -> Batch | None:
        """This process's part of a step; None where nothing is left for it."""
        mine = slice(start + self.rank, start + self.batch_size * self.num_replicas, self.num_replicas)
        if mine.start >= self.num_samples:
            return None
        if order is None:
            # Copies: what edits a batch in place must not edit the data.
            found = [tensor[mine].clone() for tensor in self._tensors]
        else:
            chosen = order[mine]
            found = [tensor.index_select(0, chosen) for tensor in self._tensors]
        batch: Any = tuple(found) if self._keys is None else dict(zip(self._keys, found, strict=True))
        return batch if self.transform is None else self.transform(batch)


def _checked(tensors: Sequence[Tensor] | Mapping[str, Tensor]) -> list[Tensor]:
    if isinstance(tensors, Tensor):
        raise TypeError("tensors must be a sequence or a mapping of tensors, but is one tensor; give (tensor,).")
    found: list[Any] = list(tensors.values() if isinstance(tensors, Mapping) else tensors)
    for tensor in found:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"tensors must hold tensors, but has one of type {type(tensor).__name__}.")
    lengths = {len(tensor) if tensor.ndim else 0 for tensor in found}
    if len(lengths) != 1 or 0 in lengths:
        shapes = [tuple(tensor.shape) for tensor in found]
        raise ValueError(f"tensors must be of one length, the number of samples, but are of shapes {shapes}.")
    return found
