"""Cast float32 weights of sharded layers again in the backward pass, rather than keep what autocast has cast.

A layer under autocast saves the low-precision copy of its weight for the backward pass. Where weights are all-gathered
in float32 and resharded after the forward pass, these copies of all layers would still be in memory together.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import MixedPrecisionPolicy

if TYPE_CHECKING:
    from composer.distributed.config import FSDPConfig
    from composer.distributed.wrapping import Unit

__all__ = ["recast_as_configured", "recast_weights"]

_LAYERS = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
)  # fmt: skip


def recast_weights(model: nn.Module) -> None:
    """Let linear layers and convolutions save no cast weight for the backward pass; gradients are the same.

    Without autocast, and where weights have its dtype already, nothing is changed. Classes derived from these layers
    are left alone, since they may compute in another way.

    Args:
        model: The model, whose sharded weights are there again when the backward pass comes to a layer.

    >>> layer = nn.Linear(2, 2)
    >>> recast_weights(layer)
    >>> with torch.autocast("cpu", torch.bfloat16):
    ...     layer(torch.ones(1, 2)).sum().backward()
    >>> layer.weight.grad.dtype
    torch.float32
    """
    for module in model.modules():
        if type(module) in _LAYERS and not _pads_itself(module):
            module.forward = _Recasting(module, module.forward)


def recast_as_configured(
    model: nn.Module, config: FSDPConfig, units: Sequence[Unit], policy: MixedPrecisionPolicy
) -> None:
    """Recast weights where a block's are resharded after its forward pass, and may be float32 under autocast.

    Args:
        model: The model.
        config: Where it recomputes or offloads activations, which casts are among, nothing is to be done.
        units: The blocks, some of which may have a precision of their own.
        policy: In which formats the other weights are gathered.

    >>> from composer.distributed.config import FSDPConfig
    >>> layer = nn.Linear(2, 2)
    >>> recast_as_configured(layer, FSDPConfig(), [], MixedPrecisionPolicy())
    >>> "forward" in vars(layer)
    True
    """
    keeps = config.reshards is False or config.activation_checkpointing or config.activation_cpu_offload
    may_be_wide = policy.param_dtype is None or any("mixed_precision" in unit.settings for unit in units)
    if may_be_wide and not keeps:
        recast_weights(model)


def _pads_itself(module: nn.Module) -> bool:
    """Whether a layer saves a padded copy of its input, which could be taken for the weight."""
    return getattr(module, "padding_mode", "zeros") != "zeros" or isinstance(getattr(module, "padding", 0), str)


class _Recasting:
    """The forward pass of a layer with one input and one weight."""

    def __init__(self, module: nn.Module, forward: Any) -> None:
        functools.update_wrapper(self, forward)
        self._module, self._forward = module, forward

    def __call__(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        weight, kind = self._weight(), input.device.type
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or kind == "meta":
            return self._forward(input, *args, **kwargs)
        if not torch.is_autocast_enabled(kind):
            return self._forward(input, *args, **kwargs)
        dtype = torch.get_autocast_dtype(kind)
        if weight.dtype != torch.float32 or input.dtype not in (torch.float32, dtype):
            return self._forward(input, *args, **kwargs)
        # As autocast and the layer would, so that what is saved and has other memory than this is the weight.
        input = input.to(dtype)
        if input.ndim > 2 and type(self._module) is nn.Linear:
            input = input.contiguous()
        inputs, size = input.untyped_storage().data_ptr(), weight.numel()

        def pack(saved: Tensor) -> Tensor | tuple[Any, ...]:
            is_input = saved.untyped_storage().data_ptr() == inputs
            if is_input or saved.dtype != dtype or saved.ndim < 2 or saved.numel() != size:
                return saved
            return saved.shape, saved.stride(), saved.storage_offset()

        def unpack(packed: Tensor | tuple[Any, ...]) -> Tensor:
            return packed if isinstance(packed, Tensor) else self._weight().detach().to(dtype).as_strided(*packed)

        with saved_tensors_hooks(pack, unpack):
            return self._forward(input, *args, **kwargs)

    def _weight(self) -> Tensor:
        """The full weight while the layer runs, forward or backward."""
        weight: Any = self._module.weight
        return weight
