"""Data shard index and count of a rank; detects loaders that are already sharded (``sample_order`` shards others)."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, cast

from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.distributed import DistributedSampler

from composer import dist

__all__ = ["FULL_SHARD", "DataShard", "check_sharded_data", "is_data_sharded"]

# Attributes of samplers that yield only the shard of one rank.
_SHARD_ATTRIBUTES = ("num_replicas", "rank", "world_size", "num_processes", "data_parallel_rank")


@dataclass(frozen=True)
class DataShard:
    """The shard of each global batch that a rank gets.

    Attributes:
        rank: Index of the shard, from 0.
        size: Number of shards. Ranks of one tensor-parallel group get the same data shard, so there may be
            fewer shards than ranks.

    >>> DataShard()
    DataShard(rank=0, size=1)
    """

    rank: int = 0
    size: int = 1


FULL_SHARD = DataShard()
"""The full data, for a single process."""


def is_data_sharded(loader: Any, shard: DataShard) -> bool:
    """Return whether the user's loader already yields only the data shard of this rank.

    That is the case for data without indices, and if the sampler has a rank or a number of replicas. The exception is
    torch's ``DistributedSampler`` with the rank and world size of this process: it only requests the sharding that is
    done anyway.

    Args:
        loader: The user's loader.
        shard: The data shard of this rank.

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
        current = {(shard.rank, shard.size), (dist.get_global_rank(), dist.get_world_size())}
        return (sampler.rank, sampler.num_replicas) not in current
    samplers: list[Any] = [sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None)]
    return any(hasattr(one, name) for one in samplers for name in _SHARD_ATTRIBUTES)


def check_sharded_data(loader: Any, shard: DataShard, name: str) -> None:
    """Raise if a loader would yield the same samples on several ranks.

    A custom loader class may do more than fetch the indices of its sampler, so it cannot be sharded automatically.

    Args:
        loader: The user's loader.
        shard: The data shard of this rank.
        name: Name of the argument, for the error message.

    Raises:
        ValueError: The loader would yield the same samples on several ranks.

    >>> check_sharded_data([1, 2], DataShard(0, 2), "train_dataloader")
    """
    if shard.size == 1 or type(loader) is DataLoader or not isinstance(loader, DataLoader):
        return
    loader = cast("DataLoader[Any]", loader)
    dataset: Any = loader.dataset
    if isinstance(dataset, IterableDataset) or not isinstance(dataset, Sized):
        return
    samplers: list[Any] = [loader.sampler, loader.batch_sampler]
    if not any(hasattr(one, attribute) for one in samplers for attribute in _SHARD_ATTRIBUTES):
        raise ValueError(
            f"{name}: a {type(loader).__name__} yields the same samples on each of {shard.size} ranks. "
            f"Pass it sampler=composer.dist.get_sampler(dataset, shuffle=...), or pass a torch DataLoader, which is "
            f"sharded automatically."
        )
