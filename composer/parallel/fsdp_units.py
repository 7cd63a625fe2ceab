"""Whether FSDP shards a model."""

from __future__ import annotations

from torch import nn

__all__ = ["has_fsdp_units"]


def has_fsdp_units(model: nn.Module) -> bool:
    """Return whether a backward pass also reduces and reshards the gradients of all ranks (FSDP).

    Args:
        model: The model.

    >>> has_fsdp_units(nn.Linear(1, 1))
    False
    """
    from torch.distributed.fsdp import FSDPModule  # takes seconds to import

    return any(isinstance(module, FSDPModule) for module in model.modules())
