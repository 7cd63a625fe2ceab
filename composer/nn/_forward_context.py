"""Find out under what a forward pass runs: autocast, torch.compile, torch.export, torch.jit.trace, torch.fx."""

from __future__ import annotations

import torch
from torch import Tensor, fx

__all__ = ["autocast_dtype", "is_followed"]


def is_followed(input: Tensor) -> bool:
    """Tell whether what is done with a tensor is traced, so that only operators that tracers know should be used.

    Args:
        input: The input of a forward pass, a tensor, or what stands for one.

    >>> is_followed(torch.zeros(1))
    False
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or isinstance(input, fx.Proxy)  # pyright: ignore[reportPrivateImportUsage]


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype of autocast on devices of a type; None where it is off, or the type has none, such as "meta".

    Args:
        device_type: As in ``torch.device(...).type``.

    >>> autocast_dtype("meta")
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     autocast_dtype("cpu")
    torch.bfloat16
    """
    is_on = torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)
    return torch.get_autocast_dtype(device_type) if is_on else None
