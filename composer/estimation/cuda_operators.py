"""Let CPU tensors be treated as CUDA tensors are: dropout, attention, RMSNorm, the optimizers' default implementation.

Of a trial for a GPU all tensors are on the CPU, without values. What torch does differently for CUDA tensors, as far as
memory is concerned:

- Dropout saves a mask of booleans (``native_dropout``); the CPU saves the factors in the dtype of the input.
- Scaled dot-product attention takes the flash kernel for float16 and bfloat16 without a mask, and the memory-efficient
  one otherwise. Both draw dropout from a counter, save the log-sum-exp of the scores, and never hold the scores. The
  CPU has a flash kernel without dropout only.
- RMSNorm is one operator, which saves its input and a factor for each row; the CPU also saves the normalized input.
- Optimizers and gradient clipping use the foreach implementation by default, with temporary tensors as large as all
  parameters; on the CPU the default is a loop over them.
- Autocast has other lists; see :mod:`.autocast_rules`.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._decomp import decomposition_table

from composer.estimation.autocast_rules import cuda_autocast_rules

__all__ = ["cuda_operators"]

aten = torch.ops.aten

_MAX_FLASH_WIDTH = 256


@contextmanager
def cuda_operators() -> Generator[None]:
    """Treat CPU tensors as CUDA tensors in a ``with`` block, in the whole process.

    >>> with cuda_operators():
    ...     output = torch.dropout(torch.ones(4, requires_grad=True), 0.5, True)
    >>> type(output.grad_fn).__name__
    'NativeDropoutBackward0'
    """
    library = torch.library.Library("aten", "IMPL")
    with ExitStack() as stack:
        stack.callback(library._destroy)
        for key in ("AutogradCPU", "CPU"):
            library.impl("dropout", _dropout, key)
            library.impl("scaled_dot_product_attention", _attention, key)
        # With kernels for the CPU, autograd takes the formula of the fused operators rather than that of their parts.
        for operator in (aten._fused_rms_norm, aten._fused_rms_norm_backward):
            library.impl(operator.__name__, decomposition_table[operator.default], "CPU")
        stack.enter_context(cuda_autocast_rules())
        for module in ("torch.utils._foreach_utils", "torch.optim.optimizer"):
            name = f"{module}._get_foreach_kernels_supported_devices"
            stack.enter_context(patch(name, lambda: ["cuda", "cpu"]))
        yield


def _dropout(input: Tensor, p: float, train: bool) -> Tensor:
    if not train or p == 0 or input.numel() == 0:
        return input
    return input * 0 if p == 1 else torch.native_dropout(input, p, train)[0]


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    width = query.shape[-1]
    if query.ndim != 4 or value.shape[-1] != width:
        return aten._scaled_dot_product_attention_math.default(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )[0]
    half = query.dtype in (torch.float16, torch.bfloat16)
    scale = width**-0.5 if scale is None else scale
    if half and attn_mask is None and width <= _MAX_FLASH_WIDTH:
        if width % 8:
            query, key, value = (F.pad(each, (0, 8 - width % 8)) for each in (query, key, value))
        found: Any = aten._scaled_dot_product_flash_attention.default(
            query, key, value, dropout_p, is_causal, False, scale=scale
        )
        return found[0][..., :width] if width % 8 else found[0]
    if enable_gqa:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    bias = attn_mask
    if bias is not None:
        if bias.dtype == torch.bool:
            bias = torch.zeros_like(bias, dtype=query.dtype).masked_fill_(bias.logical_not(), float("-inf"))
        if bias.shape[-1] % 16:
            bias = F.pad(bias, (0, 16 - bias.shape[-1] % 16))[..., : bias.shape[-1]]
        bias = bias.expand(*query.shape[:2], query.shape[2], key.shape[2])
    saves = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    return aten._scaled_dot_product_efficient_attention.default(
        query, key, value, bias, saves, dropout_p, is_causal, scale=scale
    )[0]
