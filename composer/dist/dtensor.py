"""Tensors that are divided among processes (``DTensor``): what lies here of them, and norms of the whole."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["held", "inner_products", "is_sharded", "joint_norm", "like", "norms", "row_norms", "whole"]

_WHOLE = frozenset({Tensor, torch.nn.Parameter})


def is_sharded(tensor: Any) -> bool:
    """Tell whether a tensor is one that processes divide among them.

    Args:
        tensor: Any tensor.

    >>> is_sharded(torch.ones(1))
    False
    """
    # By what it has: to import the class costs time that most runs need not spend.
    return type(tensor) not in _WHOLE and hasattr(tensor, "device_mesh") and hasattr(tensor, "to_local")


def held(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return of each tensor the part that this process holds, in the same memory; one that is not divided as it is.

    Element by element, each process may work on its own; and torch has no rule for many operations on lists of divided
    tensors, nor for lists of several kinds.

    Args:
        tensors: Of any shapes; those that are divided into sums are refused, as no part of them has a meaning.

    Raises:
        ValueError: One is a sum of what the processes hold.

    >>> weight = torch.zeros(2)
    >>> held([weight])[0] is weight
    True
    """
    return [_part(tensor) if is_sharded(tensor) else tensor for tensor in tensors]


def like(tensor: Tensor, local: Tensor) -> Tensor:
    """Return a tensor that is divided as another one is, of the part that this process holds.

    Args:
        tensor: The other one.
        local: The part; what is returned if the other one is not divided.

    >>> like(torch.zeros(2), torch.ones(2))
    tensor([1., 1.])
    """
    if not is_sharded(tensor):
        return local
    from torch.distributed.tensor import DTensor

    divided: Any = tensor
    mesh, places = divided.device_mesh, divided.placements
    return DTensor.from_local(local, mesh, places, run_check=False, shape=divided.shape, stride=divided.stride())


def whole(value: Any) -> Tensor:
    """Return a tensor that may be divided as a whole one; every process must take part.

    Args:
        value: Any tensor.

    >>> whole(torch.ones(1))
    tensor([1.])
    """
    return value.full_tensor() if is_sharded(value) else value


@torch.no_grad()
def norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the L2 norm of each tensor, () on its device, computed in float32 or better.

    All are computed in a few kernels, and nothing is read by the host. Of tensors that are divided it is the norm of
    the whole, and there is one communication for all of them; every process must take part.

    Args:
        tensors: Of any shapes, devices and dtypes; sparse ones too.

    >>> norms([torch.tensor([3.0, 4.0]), torch.ones(2, 2)])
    [tensor(5.), tensor(2.)]
    """
    parts = [_local(tensor) for tensor in tensors]
    found: list[Any] = [None] * len(parts)
    groups: dict[tuple[bool, torch.device], list[int]] = defaultdict(list)
    for place, part in enumerate(parts):
        groups[part.dtype in (torch.float16, torch.bfloat16), part.device].append(place)
    for (short, _), places in groups.items():
        chosen = [parts[place] for place in places]
        values = torch._foreach_norm(chosen, 2, dtype=torch.float32 if short else None)  # pyright: ignore[reportPrivateImportUsage]
        for place, norm in zip(places, values, strict=True):
            found[place] = norm
    for places, mesh, kinds in _divisions(tensors, found):
        squares = torch.stack([found[place] for place in places]).square()
        for place, square in zip(places, _added_up(squares, mesh, kinds).unbind(), strict=True):
            found[place] = square.sqrt()
    return found


@torch.no_grad()
def row_norms(tensor: Tensor) -> Tensor:
    """Return the L2 norm of each row or filter that this process holds, (n, 1, ...); of a vector that of the whole.

    Where rows are divided, every process must take part.

    Args:
        tensor: Of any shape; its first dimension counts rows.

    >>> row_norms(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
    tensor([[5.],
            [2.]])
    """
    dims = tuple(range(1, tensor.ndim)) or None
    if not is_sharded(tensor):
        return torch.linalg.vector_norm(tensor.detach(), dim=dims, keepdim=True)
    divided: Any = tensor
    local = held([tensor])[0]
    squares = local.square().sum(dims, keepdim=True)
    kinds = tuple(not p.is_replicate() and (dims is None or p.dim > 0) for p in divided.placements)
    return (_added_up(squares, divided.device_mesh, kinds) if any(kinds) else squares).sqrt()


def joint_norm(norms: Sequence[Tensor]) -> Tensor:
    """Return the norm of tensors taken as one vector from the norms of each, () on the device of the first.

    Args:
        norms: Each ().

    >>> joint_norm([torch.tensor(3.0), torch.tensor(4.0)])
    tensor(5.)
    """
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))


@torch.no_grad()
def inner_products(ones: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """Return the inner product of each pair of tensors, () on its device; as :func:`norms` does of divided ones.

    Args:
        ones: Of any shapes.
        others: As many, each of the shape of its partner and divided as it is.

    >>> inner_products([torch.tensor([1.0, 2.0])], [torch.tensor([3.0, 4.0])])
    [tensor(11.)]
    """
    products = torch._foreach_mul(held(ones), held(others))  # pyright: ignore[reportPrivateImportUsage]
    found = [product.sum() for product in products]
    for places, mesh, kinds in _divisions(ones, found):
        sums = _added_up(torch.stack([found[place] for place in places]), mesh, kinds)
        for place, value in zip(places, sums.unbind(), strict=True):
            found[place] = value
    return found


def _part(tensor: Any) -> Tensor:
    if any(place.is_partial() for place in tensor.placements):
        raise ValueError(f"A tensor of shape {tuple(tensor.shape)} is a sum over processes; redistribute it first.")
    return tensor.detach().to_local()


def _local(tensor: Any) -> Tensor:
    """The values that lie here, as one dense tensor."""
    if is_sharded(tensor):
        return whole(tensor) if any(place.is_partial() for place in tensor.placements) else tensor.to_local()
    return tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor


def _divisions(tensors: Sequence[Any], values: Sequence[Tensor]) -> Iterator[tuple[list[int], Any, tuple[bool, ...]]]:
    """The places of tensors that are divided in the same way: over which mesh, and along which of its dimensions."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for place, tensor in enumerate(tensors):
        if is_sharded(tensor) and not all(p.is_replicate() or p.is_partial() for p in tensor.placements):
            # Along which dimension of the tensor, whether evenly or in strides, makes no difference to a sum.
            kinds = tuple(not placement.is_replicate() for placement in tensor.placements)
            groups[tensor.device_mesh, kinds, values[place].dtype, values[place].device].append(place)
    for (mesh, kinds, _, _), places in groups.items():
        yield places, mesh, kinds


def _added_up(values: Tensor, mesh: Any, kinds: tuple[bool, ...]) -> Tensor:
    """Values of what lies here, added up over those who hold the other parts."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    parts = [Partial() if divided else Replicate() for divided in kinds]
    # Weights that are kept in the memory of the host may be divided over accelerators.
    there = values.to(mesh.device_type)
    return DTensor.from_local(there, mesh, parts, run_check=False).full_tensor().to(values.device)
