"""Collectives of short CPU tensors over many ranks in few messages: along the axes of a grid of ranks, not one ring.

gloo all-reduces and all-gathers around a ring. Of short tensors, only the number of messages that a rank sends one
after another counts:

    one ring of R ranks: 2 (R - 1)        a grid of D_1 x ... x D_k = R ranks, one axis after another: 2 sum_i (D_i - 1)

For 16,384 ranks these are 32,766 and 62. Every rank does the same work: none serves all others.
"""

from __future__ import annotations

import math
import weakref
from concurrent.futures import Future
from typing import Any, Final, Protocol

import torch
import torch.distributed as torch_dist
from torch import Tensor

from composer.dist.ranks import get_global_rank, get_world_size

__all__ = [
    "PendingWork",
    "all_gather_rows",
    "axis_ranks",
    "gather_rows",
    "grid_of",
    "has_grid",
    "num_messages",
    "start_all_reduce",
]

# Up to this many ranks a single ring is as fast: a further axis costs a callback, and groups at the start.
_MAX_RING: Final = 32
# Longest axis: a shorter one needs fewer messages, and more axes.
_MAX_AXIS: Final = 8


class PendingWork(Protocol):
    """A pending collective.

    >>> hasattr(PendingWork, "wait")
    True
    """

    def wait(self) -> Any:
        """Wait for the result."""
        ...


def grid_of(num_ranks: int) -> tuple[int, ...]:
    """Return the lengths of the axes of the grid of ranks; one axis is a ring.

    A prime factor above 8 is an axis of its own.

    Args:
        num_ranks: World size.

    >>> grid_of(32), grid_of(64), grid_of(1000), grid_of(16_384)
    ((32,), (8, 8), (5, 5, 5, 8), (8, 8, 8, 8, 4))
    """
    if num_ranks <= _MAX_RING:
        return (num_ranks,)
    axes: list[int] = []
    for prime in reversed(_prime_factors(num_ranks)):
        index = next((index for index, length in enumerate(axes) if length * prime <= _MAX_AXIS), None)
        if index is None:
            axes.append(prime)
        else:
            axes[index] *= prime
    return tuple(axes)


def num_messages(num_ranks: int) -> int:
    """Return the number of messages that a rank sends one after another in an all-reduce.

    Args:
        num_ranks: World size.

    >>> num_messages(2), num_messages(1024), num_messages(16_384)
    (2, 44, 62)
    """
    return 2 * sum(length - 1 for length in grid_of(num_ranks))


def axis_ranks(rank: int, num_ranks: int) -> list[list[int]]:
    """Return the ranks with which a rank communicates along each axis; those of the first axis are consecutive.

    Args:
        rank: The rank.
        num_ranks: World size.

    >>> axis_ranks(9, 64)
    [[8, 9, 10, 11, 12, 13, 14, 15], [1, 9, 17, 25, 33, 41, 49, 57]]
    """
    found: list[list[int]] = []
    stride = 1
    for length in grid_of(num_ranks):
        first = rank - rank // stride % length * stride
        found.append([first + index * stride for index in range(length)])
        stride *= length
    return found


def has_grid(tensor: Tensor, group: torch_dist.ProcessGroup | None) -> bool:
    """Return whether a collective should go along the axes of a grid.

    Args:
        tensor: A tensor. Those on accelerators are left to the backend, which has trees.
        group: Its process group; only collectives of all ranks have a grid.

    >>> has_grid(torch.ones(2), None)  # in a single process
    False
    """
    is_short = group is None and tensor.is_cpu and tensor.nbytes <= _SHORT
    return is_short and get_world_size() > _MAX_RING and len(_groups()) > 1


# In bytes. Of longer tensors, a ring sends each rank's data once.
_SHORT: Final = 1 << 16


def start_all_reduce(tensor: Tensor, operation: Any = torch_dist.ReduceOp.SUM) -> PendingWork:
    """Start to reduce a tensor over all ranks, in place; all ranks must call this in the same order.

    Args:
        tensor: Of the same shape, dtype and device type on each rank. All ranks get the same bits.
        operation: An associative operation of ``torch.distributed.ReduceOp``.

    >>> from composer.dist.simulation import simulated_ranks
    >>> with simulated_ranks(1024):
    ...     vector = torch.tensor([1.0, 3.0])
    ...     _ = start_all_reduce(vector).wait()
    ...     vector
    tensor([1024., 3072.])
    """
    if has_grid(tensor, None):
        return _AxisReductions(tensor, operation, _groups())
    return torch_dist.all_reduce(tensor, operation, async_op=True)  # type: ignore[return-value]


def all_gather_rows(row: Tensor) -> Tensor:
    """Return the tensors of all ranks as the rows of one, in rank order; all ranks must call this.

    Args:
        row: On the CPU, of the same shape and dtype on each rank.

    >>> from composer.dist.simulation import simulated_ranks
    >>> with simulated_ranks(1024):
    ...     all_gather_rows(torch.tensor([1, 2])).shape
    torch.Size([1024, 2])
    """
    block = row.unsqueeze(0).contiguous()
    _wait_for_starts()
    for group in _groups():
        parts = [torch.empty_like(block) for _ in range(torch_dist.get_world_size(group))]
        torch_dist.all_gather(parts, block, group)
        block = torch.cat(parts)
    return block


def gather_rows(row: Tensor) -> Tensor | None:
    """Return the tensors of all ranks as the rows of one on rank 0, and None on others; all ranks must call this.

    Along each axis, the first rank receives the rows that the others have gathered so far.

    Args:
        row: As for :func:`all_gather_rows`.

    >>> from composer.dist.simulation import simulated_ranks
    >>> with simulated_ranks(1024):
    ...     gather_rows(torch.tensor([1, 2])).shape
    torch.Size([1024, 2])
    """
    block = row.unsqueeze(0).contiguous()
    _wait_for_starts()
    for group in _groups():
        is_first = torch_dist.get_rank(group) == 0
        size = torch_dist.get_world_size(group)
        parts = [torch.empty_like(block) for _ in range(size)] if is_first else None
        torch_dist.gather(block, parts, group=group, group_dst=0)
        if parts is None:
            return None  # the first rank of the axis goes on with its rows
        block = torch.cat(parts)
    return block


class _AxisReductions:
    """Reductions along one axis after another, each started by the end of the one before, while the caller goes on.

    Along each axis, they start in the order in which they were created, the same on all ranks, as collectives of a
    process group must. They may end in another order, since a group has several threads.
    """

    def __init__(self, tensor: Tensor, operation: Any, groups: list[Any]) -> None:
        self._tensor, self._operation, self._groups = tensor, operation, groups
        self._done: Any = torch.futures.Future()
        self._started = [Future[None]() for _ in groups]
        self._earlier = _replace_last(groups, self._started)
        self._start_in_turn(0)

    def wait(self) -> None:
        """Wait for the reduction along the last axis; raise the error of any axis."""
        self._done.wait()

    def _start_in_turn(self, axis: int) -> None:
        """Start the reduction along an axis once that of the reductions before has started."""
        if self._earlier is None:
            self._start(axis)
        else:
            self._earlier[axis].add_done_callback(lambda _: self._start(axis))

    def _start(self, axis: int) -> None:
        try:
            work: Any = torch_dist.all_reduce(self._tensor, self._operation, self._groups[axis], async_op=True)
            self._started[axis].set_result(None)
            work.get_future().add_done_callback(lambda future: self._continue(axis + 1, future))
        except Exception as error:  # perhaps in a thread of the process group: raised where the result is waited for
            self._fail(error)

    def _continue(self, axis: int, future: Any) -> None:
        try:
            future.wait()
        except Exception as error:
            self._fail(error)
            return
        if axis < len(self._groups):
            self._start_in_turn(axis)
        else:
            self._earlier = None
            self._done.set_result(None)

    def _fail(self, error: Exception) -> None:
        """End with an error, and let later reductions go on to theirs."""
        for started in self._started:
            if not started.done():
                started.set_result(None)
        self._done.set_exception(error)


# The groups, and for each axis, whether the newest reduction has started.
_last: tuple[list[Any], list[Future[None]]] | None = None


def _replace_last(groups: list[Any], started: list[Future[None]]) -> list[Future[None]] | None:
    """Note the newest reduction; return when the one before starts along each axis; None if these groups had none."""
    global _last
    earlier, _last = _last, (groups, started)
    return earlier[1] if earlier is not None and earlier[0] is groups else None


def _wait_for_starts() -> None:
    """Wait until all reductions have started along all axes, before another collective of their groups starts."""
    for started in _last[1] if _last is not None and _last[0] is _groups() else ():
        started.result()


_axes: tuple[weakref.ref[Any], list[Any]] | None = None


def _groups() -> list[Any]:
    """Return the process group of each axis; None is all ranks. Created by the first collective of a default group."""
    global _axes
    world: Any = torch_dist.group.WORLD
    if _axes is None or _axes[0]() is not world:
        size = get_world_size()
        groups: list[Any] = [None]
        # torch_xla replaces new_group by a function that creates no such groups.
        if len(grid_of(size)) > 1 and "xla" not in torch_dist.get_backend_config():
            # Each rank creates only its own groups, whose ranks create them in the same order.
            backend, timeout = "gloo" if torch_dist.is_gloo_available() else None, _timeout(world)
            groups = [
                torch_dist.new_group(
                    ranks, timeout, backend, use_local_synchronization=True, group_desc=f"axis {axis} of all ranks"
                )
                for axis, ranks in enumerate(axis_ranks(get_global_rank(), size))
            ]
        _axes = weakref.ref(world), groups
    return _axes[1]


def _timeout(world: Any) -> Any:
    """Return the timeout of collectives on the CPU in the default group, which new groups do not inherit."""
    try:
        backend = world._get_backend(torch.device("cpu"))
    except RuntimeError:  # a group that is written in Python, as that of simulated ranks
        return None
    return getattr(getattr(backend, "options", None), "_timeout", None)


def _prime_factors(number: int) -> list[int]:
    """Return the prime factors in ascending order."""
    factors: list[int] = []
    divisor = 2
    while divisor <= math.isqrt(number):
        if number % divisor:
            divisor += 1
        else:
            factors.append(divisor)
            number //= divisor
    return [*factors, number] if number > 1 else factors
