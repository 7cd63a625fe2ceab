"""Which part of the data a process gets, and which data has been divided already."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, cast

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from composer import dist

__all__ = ["WHOLE", "DataShard", "check_sharded_data", "is_data_sharded"]

# What samplers that give a process its part only have their part by.
_PARTS = ("num_replicas", "rank", "world_size", "num_processes", "data_parallel_rank")


@dataclass(frozen=True)
class DataShard:
    """The part of each batch of the whole job that a process gets.

    Attributes:
        rank: Which, from 0.
        size: Of how many. Processes that have a layer's weights in parts between them get the same part of the data, so
            there may be fewer parts than processes.

    >>> DataShard()
    DataShard(rank=0, size=1)
    """

    rank: int = 0
    size: int = 1


WHOLE = DataShard()
"""All of the data, as a single process gets it."""


def is_data_sharded(loader: Any, share: DataShard) -> bool:
    """Tell whether each process's loader yields that process's part of the data, by the choice of who made it.

    That is so for data without indices, and where the sampler knows of several processes. The exception is torch's
    ``DistributedSampler`` with the number and the rank of this process: it says how the data is to be divided, and
    nothing is lost by following it.

    Args:
        loader: What the user made.
        share: What this process is to get.

    >>> data = torch.utils.data.TensorDataset(torch.arange(4))
    >>> (
    ...     is_data_sharded(DataLoader(data, shuffle=True), DataShard(0, 2)),
    ...     is_data_sharded([1, 2], DataShard(0, 2)),
    ... )
    (False, True)
    """
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        return True
    sampler: Any = loader.sampler
    if type(sampler) is DistributedSampler:
        ours = {(share.rank, share.size), (dist.get_global_rank(), dist.get_world_size())}
        return (sampler.rank, sampler.num_replicas) not in ours
    samplers: list[Any] = [sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)]
    return any(hasattr(one, name) for one in samplers for name in _PARTS)


def check_sharded_data(loader: Any, share: DataShard, name: str) -> None:
    """Refuse a loader that would give the same samples to several processes.

    A class of one's own may do more than fetch what its sampler says, so it cannot be dealt out.

    Args:
        loader: What the user made.
        share: What this process is to get.
        name: The argument that it was given as.

    Raises:
        ValueError: It is such a loader.

    >>> check_sharded_data([1, 2], DataShard(0, 2), "train_dataloader")
    """
    if share.size == 1 or type(loader) is DataLoader or not isinstance(loader, DataLoader):
        return
    loader = cast("DataLoader[Any]", loader)
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        return
    samplers: list[Any] = [loader.sampler, loader.batch_sampler]
    if not any(hasattr(one, part) for one in samplers for part in _PARTS):
        raise ValueError(
            f"{name}: a {type(loader).__name__} in {share.size} processes yields the same samples in each. "
            f"Give it sampler=composer.dist.get_sampler(dataset, shuffle=...), or give a torch DataLoader, whose "
            f"samples are dealt out."
        )
