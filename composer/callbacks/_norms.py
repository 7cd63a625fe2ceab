"""Norms of many tensors at once, whole or divided among processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

_SHORT = (torch.float16, torch.bfloat16)


@torch.no_grad()
def l2_norms(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the L2 norm of each tensor, () on its device, computed in float32 or better.

    All are computed in a few kernels, and nothing is read by the host. For tensors that are divided among processes
    (DTensor) it is the norm of the whole, and there is one communication for all of them; every process must take part.

    Args:
        tensors: Of any shapes, devices and dtypes; sparse ones too.

    >>> l2_norms([torch.tensor([3.0, 4.0]), torch.ones(2, 2)])
    [tensor(5.), tensor(2.)]
    """
    parts = [_local(tensor) for tensor in tensors]
    norms: list[Any] = [None] * len(parts)
    groups: dict[bool, list[int]] = defaultdict(list)
    for place, part in enumerate(parts):
        groups[part.dtype in _SHORT].append(place)
    for short, places in groups.items():
        dtype = torch.float32 if short else None
        chosen = [parts[place] for place in places]
        found = torch._foreach_norm(chosen, 2, dtype=dtype)  # pyright: ignore[reportPrivateImportUsage]
        for place, norm in zip(places, found, strict=True):
            norms[place] = norm
    _join(tensors, norms)
    return norms


def total_norm(norms: Sequence[Tensor]) -> Tensor:
    """Return the norm of all tensors together from the norms of each, ().

    Args:
        norms: Each ().

    >>> total_norm([torch.tensor(3.0), torch.tensor(4.0)])
    tensor(5.)
    """
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))


def whole(value: Any) -> Tensor:
    """Return a tensor that may be divided among processes as a whole one.

    Args:
        value: Any tensor.

    >>> whole(torch.ones(1))
    tensor([1.])
    """
    return value.full_tensor() if _is_divided(value) else value


def _is_divided(tensor: Any) -> bool:
    # DTensor by what it has: importing its package costs time that most runs need not spend.
    return type(tensor) is not Tensor and hasattr(tensor, "device_mesh") and hasattr(tensor, "to_local")


def _local(tensor: Any) -> Tensor:
    """The values that lie here, as one dense tensor."""
    if _is_divided(tensor):
        return whole(tensor) if any(place.is_partial() for place in tensor.placements) else tensor.to_local()
    return tensor.coalesce().values() if tensor.layout is torch.sparse_coo else tensor


def _join(tensors: Sequence[Any], norms: list[Any]) -> None:
    """Turn norms of what lies here into norms of the whole, in place: sums of squares over those who hold parts."""
    groups: dict[Any, list[int]] = defaultdict(list)
    for place, tensor in enumerate(tensors):
        if _is_divided(tensor) and not all(p.is_replicate() or p.is_partial() for p in tensor.placements):
            groups[tensor.device_mesh, tensor.placements, norms[place].dtype].append(place)
    for (mesh, placements, _), places in groups.items():
        from torch.distributed.tensor import DTensor, Partial, Replicate

        squares = torch.stack([norms[place] for place in places]).square()
        held = [Replicate() if placement.is_replicate() else Partial() for placement in placements]
        joined = DTensor.from_local(squares, mesh, held, run_check=False).full_tensor().sqrt()
        for place, norm in zip(places, joined.unbind(), strict=True):
            norms[place] = norm
