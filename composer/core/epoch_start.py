"""What all ranks do before an epoch of the training data: set its number, and agree on the seed of its order."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from composer import dist
from composer.core.data_sharding import parts_of, samplers_of
from composer.core.epoch_iterator import has_state_dict

if TYPE_CHECKING:
    from composer.core.sample_order import SampleOrder

__all__ = ["agree_on_seed", "epoch_kept", "set_epoch"]


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
    for each, _ in _numbered(loader, epoch):
        _set(each, epoch)


@contextlib.contextmanager
def epoch_kept(data: Any, loader: Any, epoch: int) -> Generator[None]:
    """Set the epoch of a dataset and samplers again at the end, if another loader has them too and may change it.

    Args:
        data: The data that are in an epoch.
        loader: The other loader, or the same.
        epoch: Number of the epoch, where an object with ``set_epoch`` has no attribute ``epoch``.

    >>> from torch.utils.data.distributed import DistributedSampler
    >>> from torch.utils.data import DataLoader
    >>> loader = DataLoader([1, 2], sampler=DistributedSampler([1, 2], num_replicas=1, rank=0))
    >>> set_epoch(loader, 3)
    >>> with epoch_kept(loader, loader, 3):
    ...     set_epoch(loader, 0)
    >>> loader.sampler.epoch
    3
    """
    taken = {id(one) for part in parts_of(data) for one, _ in _numbered(part, epoch)}
    shared = [
        (one, before)
        for part in parts_of(loader)
        for one, before in _numbered(part, epoch)
        # A loader with a state is restored by that.
        if id(one) in taken and not (one is part and has_state_dict(one))
    ]
    try:
        yield
    finally:
        for one, before in shared:
            _set(one, before)


def _numbered(loader: Any, unknown: int) -> list[tuple[Any, int]]:
    """Return the samplers, the dataset and the loader, as far as the number of an epoch can be set, each with its own.

    Samplers are after those that they wrap, whose epoch they may set themselves.
    """
    objects: list[Any] = [*reversed(samplers_of(loader)), getattr(loader, "dataset", None), loader]
    found: list[tuple[Any, int]] = []
    for each in {id(one): one for one in objects}.values():
        epoch, following = getattr(each, "epoch", None), getattr(each, "next_epoch", None)
        if callable(getattr(each, "set_epoch", None)):
            found.append((each, epoch if type(epoch) is int else unknown))
        elif type(following) is int:
            found.append((each, following))
    return found


def _set(each: Any, epoch: int) -> None:
    if callable(method := getattr(each, "set_epoch", None)):
        method(epoch)
    else:
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
