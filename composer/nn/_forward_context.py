"""Detect the context of a forward pass: autocast, torch.compile, torch.export, torch.jit.trace, torch.fx."""

from __future__ import annotations

import torch
from torch import Tensor, fx

__all__ = ["autocast_dtype", "is_traced"]


def is_traced(input: Tensor) -> bool:
    """Return whether a forward pass is being traced or compiled, so that only traceable operators should be used.

    Args:
        input: The input of a forward pass, a tensor or a proxy.

    >>> is_traced(torch.zeros(1))
    False
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or isinstance(input, fx.Proxy)  # pyright: ignore[reportPrivateImportUsage]


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the autocast dtype of a device type; None if it is off, or not available for the type, such as "meta".

    Args:
        device_type: As in ``torch.device(...).type``.

    >>> autocast_dtype("meta")
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_dtype("cpu")
    torch.bfloat16
    """
    is_on = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
    return torch.get_autocast_dtype(device_type) if is_on else None
