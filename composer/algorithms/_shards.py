"""What a process holds of tensors that are divided among processes: element by element, each may work on its own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

__all__ = ["held"]


def held(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return of each tensor the part that this process holds, in the same memory; one that is not divided as it is.

    torch has no rule for many operations on lists of divided tensors, nor for lists of both kinds.

    >>> import torch
    >>> weight = torch.zeros(2)
    >>> held([weight])[0] is weight
    True
    """
    return [_part(tensor) if hasattr(tensor, "to_local") else tensor for tensor in tensors]


def _part(tensor: Any) -> Tensor:
    return tensor.detach().to_local()
