"""Operations in which every process takes part; in a single process they return what they were given."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer._text import one_of
from composer.dist.ranks import get_world_size, is_initialized
from composer.dist.hang_report import Together

__all__ = [
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "communicates",
    "largest",
]

Object = TypeVar("Object")

_REDUCE_OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def barrier(group: torch_dist.ProcessGroup | None = None) -> None:
    """Wait until every process has come to this point.

    Args:
        group: The processes to wait for; all if ``None``.

    Raises:
        RuntimeError: Several processes run and the process group is not set up.
        AbsentRankError: Others did not come in time.

    >>> barrier()
    """
    if communicates():
        with Together(group):
            torch_dist.barrier(group)


def all_reduce(tensor: Tensor, reduce_operation: str = "SUM", group: torch_dist.ProcessGroup | None = None) -> None:
    """Combine a tensor over the processes, in place.

    Args:
        tensor: Any shape, the same on each rank; becomes the result.
        reduce_operation: ``SUM``, ``AVG``, ``PRODUCT``, ``MIN``, ``MAX``, ``BAND``, ``BOR`` or ``BXOR``, in any case.
        group: The processes that take part; all if ``None``.

    Raises:
        ValueError: The operation is unknown.
        RuntimeError: Several processes run and the process group is not set up.
        AbsentRankError: Others did not come in time.

    >>> count = torch.tensor(3)
    >>> all_reduce(count)
    >>> count
    tensor(3)
    """
    name = one_of("reduce_operation", reduce_operation.upper(), _REDUCE_OPERATIONS)
    if communicates():
        with Together(group):
            torch_dist.all_reduce(tensor, op=getattr(torch_dist.ReduceOp, name), group=group)


def broadcast(tensor: Tensor, src: int, group: torch_dist.ProcessGroup | None = None) -> None:
    """Copy a tensor from one process into the tensors of all others, in place.

    Args:
        tensor: Any shape and dtype, the same on each rank.
        src: Global rank of the process whose values are copied.
        group: The processes that take part; all if ``None``.

    Raises:
        RuntimeError: Several processes run and the process group is not set up.
        AbsentRankError: Others did not come in time.

    >>> broadcast(torch.zeros(2), src=0)
    """
    if communicates():
        with Together(group):
            torch_dist.broadcast(tensor, src, group)


def broadcast_object_list(object_list: list[Any], src: int = 0, group: torch_dist.ProcessGroup | None = None) -> None:
    """Copy picklable objects from one process into the lists of all others, in place.

    Args:
        object_list: As long on each rank; becomes the list of ``src``.
        src: Global rank of the process whose objects are copied.
        group: The processes that take part; all if ``None``.

    Raises:
        RuntimeError: Several processes run and the process group is not set up.
        AbsentRankError: Others did not come in time.

    >>> names = ["run-1"]
    >>> broadcast_object_list(names)
    >>> names
    ['run-1']
    """
    if communicates():
        with Together(group):
            torch_dist.broadcast_object_list(object_list, src, group)


def all_gather(tensor: Tensor, group: torch_dist.ProcessGroup | None = None) -> list[Tensor]:
    """Return the tensors of all processes, in the order of their ranks.

    Args:
        tensor: Any shape and dtype, the same on each rank.
        group: The processes that take part; all if ``None``.

    Raises:
        RuntimeError: Several processes run and the process group is not set up.
        AbsentRankError: Others did not come in time.

    >>> all_gather(torch.tensor([1, 2]))
    [tensor([1, 2])]
    """
    if not communicates():
        return [tensor]
    gathered = [torch.empty_like(tensor) for _ in range(torch_dist.get_world_size(group))]
    with Together(group):
        torch_dist.all_gather(gathered, tensor.contiguous(), group)
    return gathered


def all_gather_object(obj: Object, group: torch_dist.ProcessGroup | None = None) -> list[Object]:
    """Return the objects of all processes, in the order of their ranks.

    Args:
        obj: Anything that can be pickled.
        group: The processes that take part; all if ``None``.

    Raises:
        RuntimeError: Several processes run and the process group is not set up.
        AbsentRankError: Others did not come in time.

    >>> all_gather_object("node-a")
    ['node-a']
    """
    if not communicates():
        return [obj]
    gathered: list[Any] = [None] * torch_dist.get_world_size(group)
    with Together(group):
        torch_dist.all_gather_object(gathered, obj, group)
    return gathered


def largest(number: int, group: torch_dist.ProcessGroup | None = None) -> int:
    """Return the largest number that any process has, for counts by which all have to go on together.

    Args:
        number: That of this process, of at most 64 bits.
        group: The processes that take part; all if ``None``.

    Raises:
        RuntimeError: Several processes run and the process group is not set up.
        AbsentRankError: Others did not come in time.

    >>> largest(3)
    3
    """
    if not communicates():
        return number
    # On the host, so that no device is waited for.
    found = torch.tensor(number, dtype=torch.int64)
    all_reduce(found, "MAX", group)
    return int(found)


def communicates() -> bool:
    """Return whether there is anybody to talk to.

    Raises:
        RuntimeError: There is, and the process group is not set up.

    >>> communicates()
    False
    """
    if is_initialized():
        return torch_dist.get_world_size() > 1
    world_size = get_world_size()
    if world_size > 1:
        raise RuntimeError(
            f"WORLD_SIZE is {world_size}, but the process group is not set up. Call composer.dist.initialize_dist() "
            "first, or make a Trainer, which does."
        )
    return False
