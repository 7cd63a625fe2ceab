"""Tensors that are never written: their memory is virtual, and can be larger than the memory of the host."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["placeholder"]

# Of Linux, which Python's mmap does not name: no memory is set aside.
_MAP_NORESERVE = 0x4000


def placeholder(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> Tensor:
    """Return a tensor without values.

    Args:
        size: Its shape.
        stride: Its strides, in elements.
        dtype: Its data type.
        device: Its device.

    Raises:
        RuntimeError: The system does not assign that much virtual memory.
        OSError: Nor does Linux without reserving memory.

    >>> placeholder((3, 2), (2, 1), torch.float32, "cpu").shape
    torch.Size([3, 2])
    """
    try:
        return torch.empty_strided(size, stride, dtype=dtype, device=device)
    except RuntimeError:
        if torch.device(device).type != "cpu" or sys.platform != "linux":
            raise
    # Linux refuses a single mapping that is larger than its memory, unless nothing is reserved for it.
    numel = 1 + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    memory = mmap.mmap(-1, numel * dtype.itemsize, flags=flags)
    return torch.frombuffer(memory, dtype=dtype).as_strided(size, stride)
