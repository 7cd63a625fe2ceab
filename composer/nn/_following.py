"""Find out whether a forward pass is traced: by torch.compile, torch.export, torch.jit.trace or torch.fx."""

from __future__ import annotations

import torch
from torch import Tensor, fx

__all__ = ["is_followed"]


def is_followed(input: Tensor) -> bool:
    """Tell whether what is done with a tensor is traced, so that only operators that tracers know should be used.

    Args:
        input: The input of a forward pass, a tensor, or what stands for one.

    >>> is_followed(torch.zeros(1))
    False
    """
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or isinstance(input, fx.Proxy)  # pyright: ignore[reportPrivateImportUsage]
