"""A digest of a tensor that is computed on its device, to compare large values of ranks or runs by a few bytes."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["tensor_digest"]

# Odd multipliers of Fibonacci hashing; any will do.
_FACTOR, _STEP = -7046029254386353131, 6364136223846793005
# Elements that are mixed at once: bounds the memory of the 64-bit copies.
_CHUNK = 1 << 22


def tensor_digest(tensor: Tensor) -> Tensor:
    """Return a digest of the elements and the dtype of a tensor, computed on its device: an int64 scalar.

    The digest is sum_i mix(bits_i + (i + 1) * c) modulo 2**64: every element counts with its position.

    Args:
        tensor: Any tensor; a sharded one must be gathered first.

    >>> bool(tensor_digest(torch.zeros(2)) == tensor_digest(torch.tensor([0.0, -0.0])))
    False
    """
    tensor = tensor.detach()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    size = tensor.element_size()
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]
    flat = tensor.contiguous().reshape(-1)
    bits = flat.to(torch.uint8) if flat.dtype is torch.bool else flat.view(integer)
    total = torch.tensor(tensor.numel() * _STEP % 2**31 + size, dtype=torch.int64, device=tensor.device)
    for start in range(0, bits.numel(), _CHUNK):
        chunk = bits[start : start + _CHUNK].to(torch.int64)
        mixed = chunk + torch.arange(start + 1, start + 1 + chunk.numel(), device=chunk.device) * _STEP
        mixed = (mixed ^ (mixed >> 29)) * _FACTOR
        total = total + (mixed ^ (mixed >> 32)).sum()
    return total
