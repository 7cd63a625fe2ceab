"""Copies of tensors between the host and a device, which the host does not wait for where it may go on."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["copied_to", "may_go_on"]

# Kinds of devices that read memory which is not pinned after the call has returned, when it may be freed and used anew:
# https://github.com/pytorch/pytorch/issues/189690, https://github.com/intel/torch-xpu-ops/pull/5217. CUDA has read it.
_READ_LATER = frozenset({"mps", "mtia", "xpu"})


def may_go_on(tensor: Tensor, device: torch.device) -> bool:
    """Return whether a copy of a tensor may be on its way while the host goes on, whatever becomes of the tensor.

    To the host it may not, since nothing tells when the copy is there. To a device it may from pinned memory, which
    torch keeps until it has been read, and to CUDA from any memory.

    Args:
        tensor: What is copied.
        device: Where to.

    >>> may_go_on(torch.ones(1), torch.device("cuda")), may_go_on(torch.ones(1), torch.device("xpu"))
    (True, False)
    """
    if device.type in _READ_LATER:
        return tensor.is_pinned()
    return device.type != "cpu"


def copied_to(tensor: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return a tensor on a device; the host waits only where it has to.

    Args:
        tensor: Any tensor; it may be freed or changed as soon as this returns, if it is not pinned.
        device: Where to.
        dtype: Which format; that of the tensor by default.

    >>> copied_to(torch.ones(1), torch.device("cpu"), torch.float64)
    tensor([1.], dtype=torch.float64)
    """
    return tensor.to(device, dtype or tensor.dtype, non_blocking=may_go_on(tensor, device))
