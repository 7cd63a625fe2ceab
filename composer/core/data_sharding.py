"""Data shard index and count of a rank; detects loaders that are already sharded (``sample_order`` shards others)."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import dataclass
from typing import Any, cast

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Sampler
from torch.utils.data.distributed import DistributedSampler

from composer import dist

__all__ = [
    "FULL_SHARD",
    "DataShard",
    "check_sharded_data",
    "index_sampler",
    "is_data_sharded",
    "parts_of",
    "samplers_of",
]

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


def index_sampler(loader: DataLoader[Any]) -> Any:
    """Return the sampler of a loader that yields its indices: that within a ``BatchSampler`` of torch, if it has one.

    A loader that is created with ``batch_sampler=`` has an unused sequential sampler beside it.

    Args:
        loader: A loader over a dataset with indices.

    >>> data = torch.utils.data.TensorDataset(torch.arange(4))
    >>> batches = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), 2, drop_last=False)
    >>> loader = DataLoader(data, batch_sampler=batches)
    >>> type(loader.sampler).__name__, type(index_sampler(loader)).__name__
    ('SequentialSampler', 'RandomSampler')
    """
    batch_sampler: Any = loader.batch_sampler
    return batch_sampler.sampler if type(batch_sampler) is BatchSampler else loader.sampler


def parts_of(loader: Any) -> list[Any]:
    """Return the loaders that a loader reads, as :class:`.Mixture` and :class:`.DevicePrefetcher` do, and last itself.

    Args:
        loader: The user's loader.

    >>> from composer.datasets import DevicePrefetcher
    >>> data = [torch.zeros(1)]
    >>> [part is data for part in parts_of(DevicePrefetcher(data, "cpu"))]
    [True, False]
    """
    return [*(one for part in getattr(loader, "__loaders__", ()) for one in parts_of(part)), loader]


def samplers_of(loader: Any) -> list[Any]:
    """Return the samplers of a loader, and those that they wrap; each once, the outer ones first.

    A wrapped sampler is one in an attribute of another: itself, or in a list, tuple or dict.

    Args:
        loader: The user's loader.

    >>> data = torch.utils.data.TensorDataset(torch.arange(4))
    >>> batches = torch.utils.data.BatchSampler(torch.utils.data.RandomSampler(data), 2, drop_last=False)
    >>> [type(one).__name__ for one in samplers_of(DataLoader(data, batch_size=None, sampler=batches))]
    ['BatchSampler', 'RandomSampler']
    """
    found: dict[int, Any] = {}
    rest = [getattr(loader, "sampler", None), getattr(loader, "batch_sampler", None)]
    while rest:
        one = rest.pop(0)
        if one is None or id(one) in found:
            continue
        found[id(one)] = one
        if isinstance(one, BatchSampler):
            rest.append(one.sampler)  # any iterable
        for value in getattr(one, "__dict__", {}).values():
            rest += [inner for inner in _members(value) if isinstance(inner, Sampler)]
    return list(found.values())


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
    return any(hasattr(one, name) for one in samplers_of(loader) for name in _SHARD_ATTRIBUTES)


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
    if not any(hasattr(one, attribute) for one in samplers_of(loader) for attribute in _SHARD_ATTRIBUTES):
        raise ValueError(
            f"{name}: a {type(loader).__name__} yields the same samples on each of {shard.size} ranks. "
            f"Pass it sampler=composer.dist.get_sampler(dataset, shuffle=...), or pass a torch DataLoader, which is "
            f"sharded automatically."
        )


def _members(value: Any) -> list[Any]:
    """Return the members of a collection of samplers, or the value itself."""
    members: Any = value if isinstance(value, (list, tuple)) else (value,)
    if isinstance(value, dict):
        members = cast("dict[Any, Any]", value).values()
    # Collections of indices are long: only the first entry is looked at.
    return list(members) if isinstance(next(iter(members), None), Sampler) else []
