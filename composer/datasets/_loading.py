"""Helpers of the dataloader builders: batch size per rank, distributed sampler, torchvision import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, Dataset

from composer import dist
from composer._lazy import import_extra
from composer._numbers import whole_number

__all__ = ["batch_size_per_rank", "make_loader", "torchvision"]


def batch_size_per_rank(global_batch_size: int) -> int:
    """Return the number of samples of a global batch that each rank loads.

    Args:
        global_batch_size: Number of samples in a batch over all ranks.

    Raises:
        ValueError: It is not a multiple of the world size.

    >>> batch_size_per_rank(8)
    8
    """
    size = dist.get_world_size()
    global_batch_size = whole_number("global_batch_size", global_batch_size, minimum=1)
    if global_batch_size % size:
        raise ValueError(
            f"global_batch_size must be a multiple of the world size, {size}, but got {global_batch_size}."
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
    """Return a ``DataLoader`` of the data shard of this rank.

    Args:
        dataset: A map-style dataset.
        global_batch_size: Number of samples in a batch over all ranks.
        shuffle: Whether to reshuffle the data in each epoch.
        drop_last: Whether to drop the last, incomplete batch.
        collate: Default of ``collate_fn``.
        dataloader_kwargs: Additional arguments of :class:`torch.utils.data.DataLoader`.

    >>> len(make_loader(range(10), 4, shuffle=True, drop_last=True))
    2
    """
    batch_size = batch_size_per_rank(global_batch_size)
    if dist.get_world_size() > 1:
        # Also for custom training loops, which must call its `set_epoch`; the Trainer does.
        dataloader_kwargs["sampler"] = dist.get_sampler(dataset, drop_last=drop_last, shuffle=shuffle)
        shuffle = False
    dataloader_kwargs.setdefault("collate_fn", collate)
    return DataLoader(dataset, batch_size, shuffle=shuffle, drop_last=drop_last, **dataloader_kwargs)


def torchvision(module: str, purpose: str) -> Any:
    """Import a module of torchvision; the error explains how to install it.

    Args:
        module: ``"datasets"``, ``"transforms"``, ...
        purpose: Name of the function that needs it, for the error.
    """
    return import_extra(f"torchvision.{module}", "vision", purpose)
