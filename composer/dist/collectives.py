"""Collectives (barrier, all-reduce, broadcast, all-gather) that also work in a single process.

If a rank does not join, for example because it hangs or has exited, the error names it: see
:mod:`composer.dist.hang_report`.
"""

from __future__ import annotations

import pickle
from typing import Any, Final, TypeVar

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer._text import one_of
from composer.dist.grid_collectives import all_gather_rows, gather_rows, has_grid, start_all_reduce
from composer.dist.hang_report import InCollective
from composer.dist.ranks import get_world_size, is_initialized
from composer.dist.simulation import is_simulated

__all__ = [
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "communicates",
    "gather_object",
    "largest",
]

Object = TypeVar("Object")

_NOTHING: Final = torch.empty(0)
_REDUCE_OPERATIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def barrier(group: torch_dist.ProcessGroup | None = None) -> None:
    """Block until all ranks have reached this call.

    Args:
        group: The process group; all ranks if ``None``.

    Raises:
        RuntimeError: The world size is above 1 and the process group is not initialized.
        MissingRankError: Other ranks did not join before the timeout.

    >>> barrier()
    """
    if communicates():
        with InCollective(group):
            torch_dist.barrier(group)


def all_reduce(tensor: Tensor, reduce_operation: str = "SUM", group: torch_dist.ProcessGroup | None = None) -> None:
    """Reduce a tensor across all ranks, in place.

    Args:
        tensor: Any shape, the same on each rank; overwritten with the result.
        reduce_operation: ``SUM``, ``AVG``, ``PRODUCT``, ``MIN``, ``MAX``, ``BAND``, ``BOR`` or ``BXOR``; case does not
            matter.
        group: The process group; all ranks if ``None``.

    Raises:
        ValueError: The operation is unknown.
        RuntimeError: The world size is above 1 and the process group is not initialized.
        MissingRankError: Other ranks did not join before the timeout.

    >>> count = torch.tensor(3)
    >>> all_reduce(count)
    >>> count
    tensor(3)
    """
    name = one_of("reduce_operation", reduce_operation.upper(), _REDUCE_OPERATIONS)
    if communicates():
        operation = getattr(torch_dist.ReduceOp, name)
        with InCollective(group):
            if has_grid(tensor, group) and name != "AVG":
                start_all_reduce(tensor, operation).wait()
            else:
                torch_dist.all_reduce(tensor, op=operation, group=group)


def broadcast(tensor: Tensor, src: int, group: torch_dist.ProcessGroup | None = None) -> None:
    """Broadcast a tensor from one rank to all others, in place.

    Args:
        tensor: Any shape and dtype, the same on each rank.
        src: Global rank that sends its values.
        group: The process group; all ranks if ``None``.

    Raises:
        RuntimeError: The world size is above 1 and the process group is not initialized.
        MissingRankError: Other ranks did not join before the timeout.

    >>> broadcast(torch.zeros(2), src=0)
    """
    if communicates():
        with InCollective(group):
            torch_dist.broadcast(tensor, src, group)


def broadcast_object_list(object_list: list[Any], src: int = 0, group: torch_dist.ProcessGroup | None = None) -> None:
    """Broadcast picklable objects from one rank to all others, in place.

    Args:
        object_list: Of the same length on each rank; overwritten with the list of ``src``.
        src: Global rank that sends its objects.
        group: The process group; all ranks if ``None``.

    Raises:
        RuntimeError: The world size is above 1 and the process group is not initialized.
        MissingRankError: Other ranks did not join before the timeout.

    >>> names = ["run-1"]
    >>> broadcast_object_list(names)
    >>> names
    ['run-1']
    """
    if communicates() and not is_simulated():
        with InCollective(group):
            torch_dist.broadcast_object_list(object_list, src, group)


def all_gather(tensor: Tensor, group: torch_dist.ProcessGroup | None = None) -> list[Tensor]:
    """Return the tensors of all ranks, in rank order.

    Args:
        tensor: Any shape and dtype, the same on each rank.
        group: The process group; all ranks if ``None``.

    Raises:
        RuntimeError: The world size is above 1 and the process group is not initialized.
        MissingRankError: Other ranks did not join before the timeout.

    >>> all_gather(torch.tensor([1, 2]))
    [tensor([1, 2])]
    """
    if not communicates():
        return [tensor]
    with InCollective(group):
        if has_grid(tensor, group):
            return list(all_gather_rows(tensor).unbind())
        gathered = [torch.empty_like(tensor) for _ in range(torch_dist.get_world_size(group))]
        torch_dist.all_gather(gathered, tensor.contiguous(), group)
    return gathered


def all_gather_object(obj: Object, group: torch_dist.ProcessGroup | None = None) -> list[Object]:
    """Return the objects of all ranks, in rank order.

    Args:
        obj: Any picklable object.
        group: The process group; all ranks if ``None``.

    Raises:
        RuntimeError: The world size is above 1 and the process group is not initialized.
        MissingRankError: Other ranks did not join before the timeout.

    >>> all_gather_object("node-a")
    ['node-a']
    """
    if not communicates():
        return [obj]
    if is_simulated():  # without 1,024 copies
        return [obj] * torch_dist.get_world_size(group)
    with InCollective(group):
        if has_grid(_NOTHING, group):
            row, sizes = _as_rows(obj)
            return _objects(all_gather_rows(row), sizes)
        gathered: list[Any] = [None] * torch_dist.get_world_size(group)
        torch_dist.all_gather_object(gathered, obj, group)
    return gathered


def gather_object(obj: Object, group: torch_dist.ProcessGroup | None = None) -> list[Object] | None:
    """Return the objects of all ranks on the first rank of a group, in rank order, and None on the others.

    For what only one rank writes: with :func:`all_gather_object`, every rank would receive and unpickle all objects.

    Args:
        obj: Any picklable object.
        group: The process group; all ranks if ``None``.

    Raises:
        RuntimeError: The world size is above 1 and the process group is not initialized.
        MissingRankError: Other ranks did not join before the timeout.

    >>> gather_object("node-a")
    ['node-a']
    """
    if not communicates():
        return [obj]
    is_first = torch_dist.get_rank(group) == 0
    if is_simulated():
        return [obj] * torch_dist.get_world_size(group) if is_first else None
    if torch_dist.get_backend(group) == "xla":  # which has no gather
        everyone = all_gather_object(obj, group)
        return everyone if is_first else None
    with InCollective(group):
        if has_grid(_NOTHING, group):
            row, sizes = _as_rows(obj)
            rows = gather_rows(row)
            return None if rows is None else _objects(rows, sizes)
        gathered: list[Any] | None = [None] * torch_dist.get_world_size(group) if is_first else None
        torch_dist.gather_object(obj, gathered, group=group, group_dst=0)
    return gathered


def _as_rows(obj: Any) -> tuple[Tensor, list[int]]:
    """Return a pickled object, padded to the longest of all ranks, and the sizes on all ranks in bytes."""
    row = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
    sizes: list[int] = all_gather_rows(torch.tensor(len(row))).tolist()
    return torch.nn.functional.pad(row, (0, max(sizes) - len(row))), sizes


def _objects(rows: Tensor, sizes: list[int]) -> list[Any]:
    """Unpickle the objects of all ranks."""
    return [pickle.loads(row[:size].numpy().tobytes()) for row, size in zip(rows, sizes, strict=True)]


def largest(number: int, group: torch_dist.ProcessGroup | None = None) -> int:
    """Return the maximum of an integer over all ranks.

    Args:
        number: The value of this rank, at most 64 bits.
        group: The process group; all ranks if ``None``.

    Raises:
        RuntimeError: The world size is above 1 and the process group is not initialized.
        MissingRankError: Other ranks did not join before the timeout.

    >>> largest(3)
    3
    """
    if not communicates():
        return number
    # A CPU tensor avoids a host-device sync.
    found = torch.tensor(number, dtype=torch.int64)
    all_reduce(found, "MAX", group)
    return int(found)


def communicates() -> bool:
    """Return whether there is more than one rank.

    Raises:
        RuntimeError: There is more than one, and the process group is not initialized.

    >>> communicates()
    False
    """
    if is_initialized():
        return torch_dist.get_world_size() > 1
    world_size = get_world_size()
    if world_size > 1:
        raise RuntimeError(
            f"WORLD_SIZE is {world_size}, but the process group is not initialized. Call "
            "composer.dist.initialize_dist() first, or create a Trainer, which does so."
        )
    return False
