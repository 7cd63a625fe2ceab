"""Copy tensors from the host to a device, non-blocking if that is safe."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["copied_to", "is_non_blocking_safe"]


def is_non_blocking_safe(tensor: Tensor, device: torch.device) -> bool:
    """Return whether ``tensor.to(device, non_blocking=True)`` is safe even if the tensor is freed or changed at once.

    On CUDA it is, since the runtime has read pageable memory when the call returns. Other backends may read it later,
    as XPU and MPS do (https://github.com/pytorch/pytorch/issues/189690,
    https://github.com/intel/torch-xpu-ops/pull/5217), so there it is safe for pinned memory only, which PyTorch's
    allocator keeps until it has been read. Copies to the host are not safe, since nothing signals their completion.

    Args:
        tensor: The source.
        device: The target.

    >>> tensor = torch.ones(1)
    >>> (
    ...     is_non_blocking_safe(tensor, torch.device("cuda")),
    ...     is_non_blocking_safe(tensor, torch.device("xpu")),
    ... )
    (True, False)
    """
    return device.type == "cuda" or (device.type != "cpu" and tensor.is_pinned())


def copied_to(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a copy of a tensor on a device, non-blocking if that is safe.

    Args:
        tensor: The source; it may be freed or, if it is not pinned, changed as soon as this returns.
        device: The target.
        dtype: The dtype of the result; that of the tensor by default.

    >>> copied_to(torch.ones(1), torch.device("cpu"), torch.float64)
    tensor([1.], dtype=torch.float64)
    """
    return tensor.to(device, dtype or tensor.dtype, non_blocking=is_non_blocking_safe(tensor, device))
