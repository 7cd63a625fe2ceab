"""Norm layers that run in the autocast dtype, whereas torch's run in float32.

Under autocast, torch's norm layers cast their inputs to float32 and return float32, so that twice the bytes are moved,
here and in later layers. In TorchScript and torch.fx graphs, which have no autocast state, these layers are torch's
norms.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from composer.nn._forward_context import autocast_dtype

__all__ = ["LPGroupNorm", "LPLayerNorm", "LPRMSNorm", "lower_norm"]


class LPLayerNorm(nn.LayerNorm):
    """``LayerNorm`` that runs in the autocast dtype if autocast is on, and is unchanged otherwise.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     LPLayerNorm(8)(torch.ones(2, 8)).dtype
    torch.bfloat16
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize over the last dimensions, (..., *normalized_shape)."""
        if torch.jit.is_scripting():  # pyright: ignore[reportPrivateImportUsage]
            return self._norm(input, self.weight, self.bias)
        else:
            return _lowered(self._norm, input, self.weight, self.bias)

    def _norm(self, input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class LPRMSNorm(nn.RMSNorm):
    """``RMSNorm`` that runs in the autocast dtype if autocast is on, and is unchanged otherwise.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     LPRMSNorm(8)(torch.ones(2, 8)).dtype
    torch.bfloat16
    """

    def forward(self, x: Tensor) -> Tensor:
        """Normalize over the last dimensions, (..., *normalized_shape)."""
        if torch.jit.is_scripting():  # pyright: ignore[reportPrivateImportUsage]
            return self._norm(x, self.weight, None)
        else:
            return _lowered(self._norm, x, self.weight, None)

    def _norm(self, input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, weight, self.eps)


class LPGroupNorm(nn.GroupNorm):
    """``GroupNorm`` that runs in the autocast dtype if autocast is on, and is unchanged otherwise.

    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     LPGroupNorm(2, 8)(torch.ones(2, 8, 4, 4)).dtype
    torch.bfloat16
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize over groups of channels, (B, C, ...)."""
        if torch.jit.is_scripting():  # pyright: ignore[reportPrivateImportUsage]
            return self._norm(input, self.weight, self.bias)
        else:
            return _lowered(self._norm, input, self.weight, self.bias)

    def _norm(self, input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return F.group_norm(input, self.num_groups, weight, bias, self.eps)


_LOWERED: Mapping[type[nn.Module], type[nn.Module]] = {
    nn.LayerNorm: LPLayerNorm,
    nn.RMSNorm: LPRMSNorm,
    nn.GroupNorm: LPGroupNorm,
}


def lower_norm(module: nn.Module, module_index: int = -1) -> nn.Module | None:
    """Make the low-precision version of a norm, with the same parameters, hooks and attributes.

    Args:
        module: A ``LayerNorm``, ``RMSNorm`` or ``GroupNorm``.
        module_index: Not used; present so that this is a policy of module surgery.

    Returns:
        The layer, or None for norms with a custom forward pass.

    >>> norm = nn.LayerNorm(8)
    >>> lower_norm(norm).weight is norm.weight
    True
    """
    lowered = [new for cls, new in _LOWERED.items() if isinstance(module, cls) and type(module).forward is cls.forward]
    if not lowered or "forward" in vars(module):
        return None
    new = lowered[0].__new__(lowered[0])
    # Hooks and attributes too; the handles of hooks refer to these dicts, and go on removing them.
    vars(new).update({name: value for name, value in vars(module).items() if name != "_compiled_call_impl"})
    for hook in new._load_state_dict_pre_hooks.values():
        if getattr(hook, "with_module", False):
            cast("Any", hook).module = weakref.ref(new)
    return new


Norm = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def _lowered(norm: Norm, input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Apply a norm in the autocast dtype, if autocast is on; sums are accumulated in float32 in any case."""
    if isinstance(input, fx.Proxy) or (dtype := autocast_dtype(input.device.type)) is None:
        return norm(input, weight, bias)
    lowered = [None if tensor is None else tensor.to(dtype) for tensor in (weight, bias)]
    with torch.autocast(input.device.type, enabled=False):
        return norm(input.to(dtype), *lowered)
