"""Memory that kernels allocate and release while they run, which no operator returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["temporary_memory"]

aten = torch.ops.aten

# Reductions that convert their input to float32 first, on the CPU.
_CONVERTING = frozenset({aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default})
_HALF = (torch.bfloat16, torch.float16)


def temporary_memory(func: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Return the bytes that the kernel of an operator allocates while it runs, on the CPU.

    Args:
        func: The operator; for a collective between simulated ranks its name, as of gloo.
        inputs: Its tensors.
        outputs: What it returns.

    >>> temporary_memory(aten.sum.default, [torch.zeros(8, dtype=torch.bfloat16)], [])
    32
    """
    # gloo gathers into a tensor of its own, and reduces a copy of what it scatters.
    if func == "all_gather":
        return sum(tensor.nbytes for tensor in outputs)
    if func == "reduce_scatter":
        return sum(tensor.nbytes for tensor in inputs)
    if func in _CONVERTING and inputs[0].dtype in _HALF:
        return 4 * inputs[0].numel()
    return 0
