"""Memory of communication between ranks: all-gathered parameters, and the buffers of collectives.

The role "communication" is for the buffers of all-gathers, reduce-scatters and all-reduces, and for the unsharded
parameters of FSDP. Memory that is part of something else keeps the role of that: the gradients of DDP are views of its
all-reduced buckets. What tensor parallelism all-gathers or reduces within the forward and backward pass are activations
or temporary, as the results of other operators.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from composer.dist.simulation import observed_collectives
from composer.memory.allocations import AllocationLog

__all__ = ["Temporary", "communication_noted", "copy_in", "is_copy_in", "is_fsdp_copy"]

Temporary = Callable[[Any, Sequence[Tensor], Sequence[Tensor]], int]

_ROLE = "communication"


@contextmanager
def communication_noted(log: AllocationLog, temporary: Temporary | None = None) -> Generator[None]:
    """Note the role of the tensors of all collectives between simulated ranks, and what the backend allocates.

    Args:
        log: Gets the roles.
        temporary: ``temporary(name, inputs, outputs)`` returns the bytes that a collective allocates while it runs.

    >>> import torch
    >>> from composer.dist.simulation import simulated_ranks
    >>> log, bucket = AllocationLog(), torch.ones(4)
    >>> log.add(bucket)
    >>> with simulated_ranks(2), communication_noted(log):
    ...     torch.distributed.all_reduce(bucket)
    >>> log.allocations[0].role
    'communication'
    """

    def note(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        log.add_roles([*inputs, *outputs], _ROLE)
        if temporary is not None:
            log.add_temporary(temporary(name, inputs, outputs))

    with observed_collectives(note):
        yield


def is_fsdp_copy(func: Any) -> bool:
    """Return whether an operator copies between parameters or gradients and the buffers of FSDP.

    Args:
        func: The operator, such as ``torch.ops.fsdp.chunk_cat.default``.

    >>> is_fsdp_copy(torch.ops.aten.add.Tensor)
    False
    """
    return func.namespace == "fsdp"


def is_copy_in(func: Any) -> bool:
    """Return whether an operator copies the shards of a rank into the buffer of an all-gather.

    Args:
        func: The operator.

    >>> is_copy_in(torch.ops.aten.add.Tensor)
    False
    """
    return func.name() == "fsdp::all_gather_copy_in"


def copy_in(shards: Iterable[Tensor], buffer: Tensor, sizes: Sequence[int], size: int, rank: int) -> Any:
    """Return what ``fsdp::all_gather_copy_in`` returns, without the copy: the part of a rank, and the buffer.

    Its fake implementation cannot be used, since the outputs are views of the buffer, which its schema does not say.

    Args:
        shards: The shards of the parameters.
        buffer: The buffer of the all-gather, of shape (ranks * size,).
        sizes: The number of elements of each shard.
        size: Their sum.
        rank: The rank.

    >>> import torch
    >>> [tensor.shape for tensor in copy_in([], torch.zeros(8), [], 2, 1)]
    [torch.Size([2]), torch.Size([8])]
    """
    del shards, sizes
    return buffer.narrow(0, size * rank, size), buffer
