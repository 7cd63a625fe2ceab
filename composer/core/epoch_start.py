"""What all ranks do before an epoch of the training data: set its number, and agree on the seed of its order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from composer import dist
from composer.core.data_sharding import samplers_of

if TYPE_CHECKING:
    from composer.core.sample_order import SampleOrder

__all__ = ["agree_on_seed", "set_epoch"]


def set_epoch(loader: Any, epoch: int) -> None:
    """Set the epoch of a loader, its dataset and its samplers, as far as they take one.

    Args:
        loader: The loader.
        epoch: Number of the epoch that begins, from 0.

    >>> from torch.utils.data.distributed import DistributedSampler
    >>> from torch.utils.data import DataLoader
    >>> loader = DataLoader([1, 2], sampler=DistributedSampler([1, 2], num_replicas=1, rank=0))
    >>> set_epoch(loader, 3)
    >>> loader.sampler.epoch
    3
    """
    # Outer samplers after those that they wrap, whose epoch they may set themselves.
    objects: list[Any] = [*reversed(samplers_of(loader)), getattr(loader, "dataset", None)]
    for each in {id(one): one for one in (*objects, loader)}.values():
        if callable(method := getattr(each, "set_epoch", None)):
            method(epoch)
        elif type(getattr(each, "next_epoch", None)) is int:
            each.next_epoch = epoch


def agree_on_seed(order: SampleOrder) -> None:
    """Broadcast the seed of the user's generator, which may differ among ranks; all ranks must call this.

    Args:
        order: The sample order of the loader; its ``generator_seed`` is set.

    >>> from torch.utils.data import DataLoader
    >>> from composer.core.sample_order import SampleOrder
    >>> loader = DataLoader([1, 2], shuffle=True, generator=torch.Generator().manual_seed(5))
    >>> order = SampleOrder(loader)
    >>> agree_on_seed(order)  # on one rank nothing changes
    >>> order.generator_seed
    5
    """
    if order.num_ranks > 1 and not order.is_data_sharded:
        generator_seed = [order.generator_seed]
        dist.broadcast_object_list(generator_seed)
        order.generator_seed = generator_seed[0]
