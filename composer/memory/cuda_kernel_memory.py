"""Workspaces of CUDA kernels: memory that they allocate and release while they run, from torch's sources.

Elementwise kernels and reductions convert dtypes in registers and need none. cuDNN chooses the algorithm of a
convolution, and its workspace, when it runs; what is assumed here is the conversion to channels-last that the tensor
cores need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["cuda_temporary_memory"]

aten = torch.ops.aten

_HALF = (torch.bfloat16, torch.float16)

Rule = Callable[[Sequence[Tensor], Sequence[Tensor]], int]


def cuda_temporary_memory(func: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Return the bytes that the kernel of an operator allocates while it runs, on CUDA, besides its outputs.

    Args:
        func: The operator.
        inputs: Its tensors.
        outputs: What it returns.

    >>> cuda_temporary_memory(aten.sum.default, [torch.zeros(8, dtype=torch.bfloat16)], [torch.zeros(())])
    0
    """
    rule = _RULES.get(func)
    return rule(inputs, outputs) if rule is not None and inputs and outputs else 0


def _nbytes(*tensors: Tensor) -> int:
    return sum(each.numel() * each.itemsize for each in tensors)


def _is_channels_last(tensor: Tensor) -> bool:
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.ndim)
    return form is not None and tensor.is_contiguous(memory_format=form)


def _convolution(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Input, weight and output in channels-last, for the tensor cores."""
    input, weight = inputs[:2]
    if input.dtype not in _HALF or _is_channels_last(input):
        return 0
    return _nbytes(input, weight, outputs[0])


def _convolution_backward(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """The gradient of the input and that of the weight are computed one after the other."""
    gradient, input, weight = inputs[:3]
    if input.dtype not in _HALF or _is_channels_last(input):
        return 0
    return _nbytes(gradient, input, weight)


def _loss(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """The loss of each element, of which the mean or sum is taken."""
    return 0 if outputs[0].numel() == inputs[0].numel() else _nbytes(inputs[0])


def _loss_with_logits(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    return _nbytes(inputs[0]) * (1 if outputs[0].numel() == inputs[0].numel() else 2)


def _like_input(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    del outputs
    return _nbytes(inputs[0])


def _sort(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Second buffers of the values and of the positions (radix sort of CUB)."""
    del outputs
    return inputs[0].numel() * (inputs[0].itemsize + 8)


def _of_indices(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """The indices are sorted, with their positions, in two buffers each."""
    del outputs
    return 4 * sum(_nbytes(each) for each in inputs if each.dtype in (torch.int64, torch.int32))


def _flash_backward(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """The gradient of the queries in float32, and a sum for each query; lengths in blocks of 128, widths of 32."""
    del outputs
    query = inputs[1]
    batch, heads, length, width = query.shape
    length, width = -(-length // 128) * 128, -(-width // 32) * 32
    return 4 * batch * heads * length * (width + 1)


def _efficient_backward(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """A sum for each query, and the gradient of the queries in float32 where they have a lower precision.

    In float32, other kernels compute the sums: the product of the output and its gradient, and its sums in two layouts
    (``kKernelComputesDelta`` is false).
    """
    del outputs
    query, value = inputs[1], inputs[3]
    sums = 4 * query.shape[:3].numel()
    if query.dtype in _HALF:
        return 4 * query.numel() + sums
    return sums * value.shape[-1] + 2 * sums


_RULES: dict[Any, Rule] = {
    **dict.fromkeys((aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default), _loss),
    **dict.fromkeys((aten.sort.default, aten.sort.stable, aten.kthvalue.default, aten.median.dim), _sort),
    **dict.fromkeys((aten.embedding_dense_backward.default, aten._embedding_bag_dense_backward.default), _of_indices),
    **dict.fromkeys((aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default), _of_indices),
    aten.binary_cross_entropy_with_logits.default: _loss_with_logits,
    aten.logsumexp.default: _like_input,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
}
