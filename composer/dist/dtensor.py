"""Helpers for sharded tensors (``DTensor``): local shards, full tensors, and global norms and inner products."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = [
    "from_local_like",
    "full_tensor",
    "inner_products",
    "is_dtensor",
    "joint_norm",
    "local_tensors",
    "norms",
    "row_norms",
]

_PLAIN_TYPES = frozenset({Tensor, torch.nn.Parameter})


def is_dtensor(tensor: Any) -> bool:
    """Return whether a tensor is a ``DTensor``, that is, sharded or replicated over a device mesh.

    Args:
        tensor: Any tensor.

    >>> is_dtensor(torch.ones(1))
    False
    """
    # Duck-typed: importing the class costs time that most runs need not spend.
    return type(tensor) not in _PLAIN_TYPES and hasattr(tensor, "device_mesh") and hasattr(tensor, "to_local")


def local_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the local shard of each sharded tensor, in the same memory; other tensors are returned unchanged.

    Elementwise operations can run on local shards. torch has no sharding rules for many operations on lists of sharded
    tensors, nor for lists that mix sharded and plain tensors.

    Args:
        tensors: Tensors of any shape; those with partial placements are rejected, since their local values have no
            meaning.

    Raises:
        ValueError: A tensor has a ``Partial`` placement.

    >>> weight = torch.zeros(2)
    >>> local_tensors([weight])[0] is weight
    True
    """
    return [_local_shard(tensor) if is_dtensor(tensor) else tensor for tensor in tensors]


def from_local_like(tensor: Tensor, local: Tensor) -> Tensor:
    """Return a ``DTensor`` made of a local shard, with the mesh, placements and global shape of another tensor.

    Args:
        tensor: The tensor whose sharding is used.
        local: The local shard; returned unchanged if ``tensor`` is not sharded.

    >>> from_local_like(torch.zeros(2), torch.ones(2))
    tensor([1., 1.])
    """
    if not is_dtensor(tensor):
        return local
    from torch.distributed.tensor import DTensor

    sharded: Any = tensor
    mesh, placements = sharded.device_mesh, sharded.placements
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=sharded.shape, stride=sharded.stride())


def full_tensor(value: Any) -> Tensor:
    """All-gather a sharded tensor into a full one; all ranks must call this.

    Args:
        value: Any tensor; returned unchanged if it is not sharded.

    >>> full_tensor(torch.ones(1))
    tensor([1.])
    """
    return value.full_tensor() if is_dtensor(value) else value


@torch.no_grad()
def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the L2 norm of each tensor, () on its device, computed in float32 or better.

    The norms are computed in a few kernels without a host-device sync. For sharded tensors it is the norm of the full
    tensor, with one all-reduce for all of them; all ranks must call this.

    Args:
        tensors: Tensors of any shape, device and dtype; sparse ones too.

    >>> norms([torch.tensor([3.0, 4.0]), torch.ones(2, 2)])
    [tensor(5.), tensor(2.)]
    """
    parts = [_local_values(tensor) for tensor in tensors]
    found: list[Any] = [None] * len(parts)
    groups: dict[tuple[bool, torch.device], list[int]] = defaultdict(list)
    for index, part in enumerate(parts):
        groups[part.dtype in (torch.float16, torch.bfloat16), part.device].append(index)
    for (is_low_precision, _), indices in groups.items():
        chosen = [parts[index] for index in indices]
        values = torch._foreach_norm(chosen, 2, dtype=torch.float32 if is_low_precision else None)  # pyright: ignore[reportPrivateImportUsage]
        for index, norm in zip(indices, values, strict=True):
            found[index] = norm
    for indices, mesh, sharded_dims in _group_by_sharding(tensors, found):
        squares = torch.stack([found[index] for index in indices]).square()
        for index, square in zip(indices, _sum_over_shards(squares, mesh, sharded_dims).unbind(), strict=True):
            found[index] = square.sqrt()
    return found


@torch.no_grad()
def row_norms(tensor: Tensor) -> Tensor:
    """Return the L2 norm of each local row or filter, (n, 1, ...); for a vector, the norm of the full vector.

    If rows are sharded, all ranks must call this.

    Args:
        tensor: A tensor of any shape; its first dimension counts rows.

    >>> row_norms(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
    tensor([[5.],
            [2.]])
    """
    dims = tuple(range(1, tensor.ndim)) or None
    if not is_dtensor(tensor):
        return torch.linalg.vector_norm(tensor.detach(), dim=dims, keepdim=True)
    sharded: Any = tensor
    local = local_tensors([tensor])[0]
    squares = local.square().sum(dims, keepdim=True)
    sharded_dims = tuple(not p.is_replicate() and (dims is None or p.dim > 0) for p in sharded.placements)
    return (_sum_over_shards(squares, sharded.device_mesh, sharded_dims) if any(sharded_dims) else squares).sqrt()


def joint_norm(norms: Sequence[Tensor]) -> Tensor:
    """Return the norm of the concatenation of tensors, given the norm of each, () on the device of the first.

    Args:
        norms: Scalars of shape ().

    >>> joint_norm([torch.tensor(3.0), torch.tensor(4.0)])
    tensor(5.)
    """
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))


@torch.no_grad()
def inner_products(ones: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """Return the inner product of each pair of tensors, () on its device; of the full tensors if they are sharded.

    Args:
        ones: Tensors of any shape.
        others: As many tensors, each with the shape and sharding of its partner.

    >>> inner_products([torch.tensor([1.0, 2.0])], [torch.tensor([3.0, 4.0])])
    [tensor(11.)]
    """
    products = torch._foreach_mul(local_tensors(ones), local_tensors(others))  # pyright: ignore[reportPrivateImportUsage]
    found = [product.sum() for product in products]
    for indices, mesh, sharded_dims in _group_by_sharding(ones, found):
        sums = _sum_over_shards(torch.stack([found[index] for index in indices]), mesh, sharded_dims)
        for index, value in zip(indices, sums.unbind(), strict=True):
            found[index] = value
    return found


def _local_shard(tensor: Any) -> Tensor:
    if any(placement.is_partial() for placement in tensor.placements):
        raise ValueError(f"A tensor of shape {tuple(tensor.shape)} has a Partial placement; redistribute it first.")
    return tensor.detach().to_local()


def _local_values(tensor: Any) -> Tensor:
    """Return the local values as a dense tensor."""
    if is_dtensor(tensor):
        return (
            full_tensor(tensor) if any(placement.is_partial() for placement in tensor.placements) else tensor.to_local()
        )
    return tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor


def _group_by_sharding(
    tensors: Sequence[Any], values: Sequence[Tensor]
) -> Iterator[tuple[list[int], Any, tuple[bool, ...]]]:
    """Yield the indices of tensors with the same sharding, their mesh, and which of its dimensions shard them."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for index, tensor in enumerate(tensors):
        if is_dtensor(tensor) and not all(p.is_replicate() or p.is_partial() for p in tensor.placements):
            # The sharded dimension of the tensor, and whether shards are even or strided, does not matter for a sum.
            sharded_dims = tuple(not placement.is_replicate() for placement in tensor.placements)
            groups[tensor.device_mesh, sharded_dims, values[index].dtype, values[index].device].append(index)
    for (mesh, sharded_dims, _, _), indices in groups.items():
        yield indices, mesh, sharded_dims


def _sum_over_shards(values: Tensor, mesh: Any, sharded_dims: tuple[bool, ...]) -> Tensor:
    """All-reduce local values over the mesh dimensions that hold the other shards."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    placements = [Partial() if is_sharded_dim else Replicate() for is_sharded_dim in sharded_dims]
    # Weights offloaded to the CPU may be sharded over a mesh of accelerators.
    on_mesh = values.to(mesh.device_type)
    return DTensor.from_local(on_mesh, mesh, placements, run_check=False).full_tensor().to(values.device)
