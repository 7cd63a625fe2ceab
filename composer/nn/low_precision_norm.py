"""Norm layers that run in the autocast dtype, whereas torch's run in float32.

Under autocast, torch's norm layers cast their inputs to float32 and return float32, so that twice the bytes are moved,
here and in later layers. In TorchScript and torch.fx graphs, which have no autocast state, these layers are torch's
norms.
"""

from __future__ import annotations

from collections.abc import Callable

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


def lower_norm(module: nn.Module, module_index: int = -1) -> nn.Module | None:
    """Make the low-precision version of a norm, with the same parameter objects and names.

    Args:
        module: A ``LayerNorm``, ``RMSNorm`` or ``GroupNorm``.
        module_index: Not used; present so that this is a policy of module surgery.

    Returns:
        The layer, or None for subclasses with a custom forward pass.

    >>> norm = nn.LayerNorm(8)
    >>> lower_norm(norm).weight is norm.weight
    True
    """
    new: nn.Module
    if type(module).forward is nn.LayerNorm.forward and isinstance(module, nn.LayerNorm):
        new = LPLayerNorm([*module.normalized_shape], module.eps, elementwise_affine=False)
        new.elementwise_affine = module.elementwise_affine
    elif type(module).forward is nn.RMSNorm.forward and isinstance(module, nn.RMSNorm):
        new = LPRMSNorm([*module.normalized_shape], module.eps, elementwise_affine=False)
        new.elementwise_affine = module.elementwise_affine
    elif type(module).forward is nn.GroupNorm.forward and isinstance(module, nn.GroupNorm):
        new = LPGroupNorm(module.num_groups, module.num_channels, module.eps, affine=False)
        new.affine = module.affine
    else:
        return None
    new._parameters.update(module._parameters)
    return new


Norm = Callable[[Tensor, Tensor | None, Tensor | None], Tensor]


def _lowered(norm: Norm, input: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Apply a norm in the autocast dtype, if autocast is on; sums are accumulated in float32 in any case."""
    if isinstance(input, fx.Proxy) or (dtype := autocast_dtype(input.device.type)) is None:
        return norm(input, weight, bias)
    lowered = [None if tensor is None else tensor.to(dtype) for tensor in (weight, bias)]
    with torch.autocast(input.device.type, enabled=False):
        return norm(input.to(dtype), *lowered)
