"""What the builders of loaders share: the batch size of a process, the sampler, transforms of torchvision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, Dataset

from composer import dist
from composer._lazy import import_extra
from composer._text import positive

__all__ = ["batch_size_per_rank", "make_loader", "torchvision"]


def batch_size_per_rank(global_batch_size: int) -> int:
    """Return the number of samples that a process gets of each batch.

    Args:
        global_batch_size: Number of samples of all processes together.

    Raises:
        ValueError: It is not a multiple of the number of processes.

    >>> batch_size_per_rank(8)
    8
    """
    size = dist.get_world_size()
    if positive("global_batch_size", global_batch_size) % size:
        raise ValueError(
            f"global_batch_size must be a multiple of the number of processes, {size}, but is {global_batch_size}."
        )
    return global_batch_size // size


def make_loader(
    dataset: Dataset[Any],
    global_batch_size: int,
    *,
    shuffle: bool,
    drop_last: bool,
    collate: Callable[[Any], Any] | None = None,
    **dataloader_kwargs: Any,
) -> DataLoader[Any]:
    """Return a loader of a process's part of the data.

    Args:
        dataset: Map-style.
        global_batch_size: Number of samples of all processes together.
        shuffle: Whether each pass is in another order.
        drop_last: Whether to leave out the samples of the last, smaller batch.
        collate: The ``collate_fn``, unless ``dataloader_kwargs`` has one.
        dataloader_kwargs: Further arguments of :class:`torch.utils.data.DataLoader`.

    >>> len(make_loader(range(10), 4, shuffle=True, drop_last=True))
    2
    """
    batch_size = batch_size_per_rank(global_batch_size)
    if dist.get_world_size() > 1:
        # For loops of one's own too, which have to call its `set_epoch`; the Trainer does.
        dataloader_kwargs["sampler"] = dist.get_sampler(dataset, drop_last=drop_last, shuffle=shuffle)
        shuffle = False
    dataloader_kwargs.setdefault("collate_fn", collate)
    return DataLoader(dataset, batch_size, shuffle=shuffle, drop_last=drop_last, **dataloader_kwargs)


def torchvision(module: str, purpose: str) -> Any:
    """Import a module of torchvision, or say how to install it.

    Args:
        module: ``"datasets"``, ``"transforms"``, ...
        purpose: What needs it.
    """
    return import_extra(f"torchvision.{module}", "vision", purpose)
