"""Process groups for low-communication training: DDP among the ranks of a replica, nothing between replicas.

Between nodes, DiLoCo and local SGD send parameters once every many steps; the ranks of a node form a replica, whose
gradients are averaged in each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch.distributed as torch_dist
from torch import nn

from composer import dist
from composer.core.replicas import Replicas
from composer.dist.collectives import communicates
from composer.parallel.mesh import Degrees, copy_timeout, make_meshes

if TYPE_CHECKING:
    from composer.core.algorithm import Algorithm

__all__ = ["broadcast_model", "destroy_groups", "make_replicas", "requested_replica_size", "with_new_groups"]


def requested_replica_size(algorithms: Sequence[Algorithm]) -> int | None:
    """Return the number of ranks that average their gradients, as an algorithm requests; None for all ranks.

    Args:
        algorithms: The algorithms of the run.

    Raises:
        ValueError: Several algorithms request it.

    >>> requested_replica_size([]) is None
    True
    """
    requests = [one for one in algorithms if getattr(one, "replica_size", None) is not None]
    if len(requests) > 1:
        names = " and ".join(type(one).__name__ for one in requests)
        raise ValueError(f"algorithms: {names} both decide when replicas synchronize; use one of them.")
    return requests[0].replica_size if requests else None


def make_replicas(size: int, device_type: str) -> Replicas:
    """Return the replicas of adjacent ranks, with their process groups; all ranks must call this.

    Args:
        size: Number of ranks that form a replica.
        device_type: ``"cuda"``, ``"cpu"``, ...

    Raises:
        ValueError: The size does not divide the world size.

    >>> make_replicas(1, "cpu").count
    1
    """
    world, rank = dist.get_world_size(), dist.get_global_rank()
    if size < 1 or world % size:
        raise ValueError(
            f"replica_size={size} does not divide the world size, {world}: all replicas must have the same number of "
            f"ranks. Use a divisor of it, such as 1, or the number of ranks of a node."
        )
    count = world // size
    replicas = Replicas(count, size, rank // size, rank % size)
    if world == 1:
        return replicas
    mesh: Any = make_meshes(Degrees(replicate=count, shard=size), device_type).all
    if size > 1:
        replicas.group = mesh.get_group("data_parallel_shard")
    if count > 1 and replicas.is_first:
        replicas.first_ranks = mesh.get_group("data_parallel_replicate")
    return replicas


def with_new_groups(replicas: Replicas) -> Replicas:
    """Return the same replicas with process groups of their own, for collectives in the background.

    Collectives of a process group must start in the same order on all ranks, which those of two threads do not. The
    groups are of gloo, which communicates from the CPU: kernels of two NCCL communicators could wait for each other.
    All ranks must call this, and :func:`destroy_groups` once the groups are not used any more.

    Args:
        replicas: The replicas of the run.

    >>> with_new_groups(Replicas()).first_ranks is None
    True
    """
    new = replace(replicas, group=None, first_ranks=None, synchronized=None, background=None)
    if replicas.count == 1:
        return new
    starts = range(0, replicas.count * replicas.size, replicas.size)
    new.first_ranks = _new_group(starts)
    if replicas.size > 1:
        groups = [_new_group(range(start, start + replicas.size)) for start in starts]
        new.group = groups[replicas.index]
    return new


def _new_group(ranks: range) -> torch_dist.ProcessGroup | None:
    """Return a new gloo process group of some ranks, with the timeout of the default group; None on other ranks."""
    group: Any = torch_dist.new_group(list(ranks), backend="gloo")
    if dist.get_global_rank() not in ranks:
        return None
    copy_timeout(torch_dist.group.WORLD, group)
    return group


def destroy_groups(replicas: Replicas) -> None:
    """Destroy the process groups of :func:`with_new_groups`.

    Args:
        replicas: A result of that function.

    >>> destroy_groups(with_new_groups(Replicas()))
    """
    for group in (replicas.group, replicas.first_ranks):
        if group is not None and dist.is_initialized():
            torch_dist.destroy_process_group(group)
    replicas.group = replicas.first_ranks = None


def broadcast_model(model: nn.Module) -> None:
    """Broadcast parameters and buffers from rank 0 to all ranks, so that all replicas start from the same weights.

    Args:
        model: A model with the same layers on each rank; all ranks must call this.

    >>> broadcast_model(nn.Linear(1, 1))
    """
    if not communicates():
        return
    tensors = {id(one): one.detach() for one in (*model.parameters(), *model.buffers())}.values()
    sent = [one.contiguous() for one in tensors]
    works: list[Any] = [torch_dist.broadcast(one, 0, async_op=True) for one in sent]
    for work, one, value in zip(works, tensors, sent, strict=True):
        work.wait()
        if value is not one:  # such as a weight in the channels-last format
            one.copy_(value)
