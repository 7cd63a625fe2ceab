"""Workspaces: memory that CPU kernels allocate and release while they run, which no operator returns.

Measured with the memory events of torch's profiler for each operator. Convolutions, products of matrices and attention
are those of oneDNN and of torch's flash attention; there the figures are upper bounds where a kernel's choice depends
on the processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["temporary_memory"]

aten = torch.ops.aten

_HALF = (torch.bfloat16, torch.float16)
# Other dtypes are computed without oneDNN.
_ONEDNN = (torch.float32, *_HALF)
_MIB = 2**20
# Height and width of the images together up to which they are resized in channels-last.
_SMALL_IMAGE = 128
# oneDNN's scratchpad for products in bfloat16, which are computed in tiles on processors that have AMX.
_TILES = _MIB // 2
# The scratchpads of the forward and backward pass of a convolution in bfloat16 without AMX.
_NO_TILES, _NO_TILES_BACKWARD = 12 * 2**10, 96 * 2**10

Rule = Callable[[Sequence[Tensor], Sequence[Tensor]], int]


def temporary_memory(func: Any, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Return the bytes that the kernel of an operator allocates while it runs, on the CPU, besides its outputs.

    Args:
        func: The operator; for a collective between simulated ranks its name, as of gloo.
        inputs: Its tensors.
        outputs: What it returns.

    >>> temporary_memory(
    ...     aten.mean.default,
    ...     [torch.zeros(8, dtype=torch.bfloat16)],
    ...     [torch.zeros((), dtype=torch.bfloat16)],
    ... )
    32
    """
    if isinstance(func, str):
        return _of_gloo(func, inputs, outputs)
    rule = _RULES.get(func)
    if rule is not None:
        return rule(inputs, outputs) if inputs and outputs else 0
    if torch.Tag.pointwise in func.tags:
        return _conversions(inputs, outputs)
    return 0


def _of_gloo(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Gloo gathers into a tensor of its own, and scatters a copy, which it reduces first if it is to be reduced."""
    copied = {"all_gather": outputs, "reduce_scatter": inputs, "scatter": inputs}.get(name, ())
    return sum(each.nbytes for each in copied)


def _conversions(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Elementwise kernels convert inputs of different dtypes to their common dtype first."""
    first = inputs[0].dtype if inputs else None
    if all(each.dtype == first for each in inputs):
        return 0
    dtypes = [each for each in inputs if each.ndim and each.dtype != torch.bool] or inputs
    common = dtypes[0].dtype
    for each in dtypes[1:]:
        common = torch.promote_types(common, each.dtype)
    result = outputs[0].dtype if outputs else common
    if result != torch.bool and not any(result == each.dtype for each in inputs):
        common = torch.promote_types(common, result)
    converted = sum(each.numel() * common.itemsize for each in inputs if each.ndim and each.dtype != common)
    # In place, the result is computed in the common dtype, too.
    written = any(each is inputs[0] for each in outputs) and outputs[0].dtype != common
    return converted + (outputs[0].numel() * common.itemsize if written else 0)


def _where(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    return _conversions(inputs[1:], outputs)


def _nothing(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    del inputs, outputs
    return 0


def _sum(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Sums into another dtype, such as those of booleans, convert their input first."""
    dtype = outputs[0].dtype
    return 0 if inputs[0].dtype == dtype else inputs[0].numel() * dtype.itemsize


def _mean(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    del outputs
    return 4 * inputs[0].numel() if inputs[0].dtype in _HALF else 0


def _like_input(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    del outputs
    return _nbytes(inputs[0])


def _half_to_float(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    del outputs
    return 4 * inputs[0].numel() if inputs[0].dtype in _HALF else 0


def _kth_value(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """A copy of the values, and the positions."""
    del outputs
    return inputs[0].numel() * (8 + inputs[0].itemsize)


def _safe_softmax(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """The mask of the entries that are minus infinity."""
    del outputs
    return inputs[0].numel()


def _loss(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """The loss of each element, and its mean."""
    if outputs[0].numel() == inputs[0].numel():
        return 0
    return _nbytes(inputs[0]) + _mean(inputs, outputs)


def _loss_with_logits(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    if outputs[0].numel() == inputs[0].numel():
        return _nbytes(inputs[0])
    return 2 * _nbytes(inputs[0]) + _mean(inputs, outputs)


def _matmul(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """OneDNN packs the second matrix of a product in bfloat16, by blocks; or computes a whole result in float32."""
    matrix = max(inputs[-2:], key=Tensor.numel) if len(inputs) > 1 else inputs[0]
    if matrix.dtype is not torch.bfloat16:
        return 0
    if _lacks_bfloat16():
        return 4 * outputs[0].shape[-2:].numel() + 128
    size = inputs[-1].shape[-2:].numel() * inputs[-1].itemsize
    return min(size, 2 * _MIB) + 8192


def _batch_norm_backward(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    del outputs
    return _nbytes(inputs[1])


def _is_channels_last(tensor: Tensor) -> bool:
    form = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.ndim)
    return form is not None and tensor.is_contiguous(memory_format=form) and not tensor.is_contiguous()


def _max_pool_backward(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Copies of the positions and of the result in the other layout, if gradient and input have different ones."""
    gradient, input, positions = inputs[:3]
    if not _is_channels_last(input) or _is_channels_last(gradient):
        return 0
    return _nbytes(outputs[0]) + _nbytes(positions)


def _is_plain(input: Tensor, weight: Tensor, output: Tensor) -> bool:
    """Return whether a convolution is a product of matrices: 1x1 and few samples, on one thread."""
    pointwise = weight.shape[2:].numel() == 1 and input.shape[2:] == output.shape[2:]
    few = input.shape[0] < 16 and torch.get_num_threads() == 1
    return weight.dtype == torch.float32 and pointwise and few and input.ndim == 4


def _blocked(tensor: Tensor) -> int:
    """Return the bytes of a tensor in the layout of oneDNN, whose channels come in blocks of 16 or 8."""
    channels = tensor.shape[1]
    if channels <= 3:
        return 0  # read as it is
    block = 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8
    return _nbytes(tensor) // channels * (-(-channels // block) * block)


def _blocked_weight(weight: Tensor) -> int:
    block = 16 if "AVX512" in torch.backends.cpu.get_cpu_capability() else 8
    outputs, inputs = (-(-n // block) * block if n > 3 else n for n in weight.shape[:2])
    return outputs * inputs * weight.shape[2:].numel() * weight.itemsize


def _is_transposed(input: Tensor, weight: Tensor, output: Tensor) -> bool:
    if weight.shape[0] != input.shape[1]:
        return False
    return output.shape[1] != weight.shape[0] or output.shape[2:].numel() > input.shape[2:].numel()


def _columns(input: Tensor, weight: Tensor, output: Tensor, *, forward: bool) -> int:
    """Return the bytes of a convolution that oneDNN does not compute, as of float64: columns for a product of matrices.

    The columns are those of all samples, or of one for transposed convolutions but the forward pass of 2-D ones. Groups
    are computed one after the other, and then concatenated.
    """
    kernel, samples = weight.shape[2:].numel(), input.shape[0]
    if _is_transposed(input, weight, output):
        columns = output.shape[1] * kernel * _nbytes(input) // input.shape[1]
        return columns if forward and input.ndim == 4 else columns // samples
    groups = max(input.shape[1] // weight.shape[1], 1)
    columns = weight.shape[1] * kernel * _nbytes(output) // output.shape[1]
    if kernel == 1 and input.shape[2:] == output.shape[2:]:
        columns = 0
    if groups == 1:
        return columns
    group = columns + _nbytes(input) // groups + (0 if forward else _nbytes(output) // groups)
    return max(group, _nbytes(output) if forward else _nbytes(input) + _nbytes(weight))


def _has_tiles() -> bool:
    return torch.cpu._is_amx_tile_supported()


def _lacks_bfloat16() -> bool:
    """Return whether the processor has AVX-512 without its instructions for bfloat16."""
    return torch.cpu._is_avx512_supported() and not torch.cpu._is_avx512_bf16_supported()


def _weights(weight: Tensor) -> int:
    """Return the bytes of the weight of a convolution in the layouts of its forward pass, with the scratchpad."""
    if weight.itemsize == 4:
        return _blocked_weight(weight) + 8192
    return 4 * _nbytes(weight) + _TILES // 2 if _has_tiles() else 2 * _nbytes(weight) + _NO_TILES


def _convolution(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """The blocked input, weight and output; then the output in both layouts."""
    input, weight = inputs[:2]
    output = outputs[0]
    if weight.dtype not in _ONEDNN:
        return _columns(input, weight, output, forward=True)
    if _is_plain(input, weight, output):
        return 0
    weights = _weights(weight)
    if _is_channels_last(input) or _is_channels_last(weight):
        return weights + (0 if _is_channels_last(input) else _nbytes(input))
    blocked = 4 * output.numel() if output.itemsize == 2 and _has_tiles() else _blocked(output)
    if _is_transposed(input, weight, output):
        blocked *= 2
    return max(blocked, _blocked(input) + weights + max(_blocked(output) - _nbytes(output), 0))


def _convolution_backward(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """The blocked input and gradients; then the gradient of the input or of the weight in both layouts."""
    gradient, input, weight = inputs[:3]
    if weight.dtype not in _ONEDNN:
        return _columns(input, weight, gradient, forward=False)
    if _is_plain(input, weight, gradient):
        return 0
    half = weight.itemsize == 2
    scratchpad = (_TILES if _has_tiles() else _NO_TILES_BACKWARD) if half else 0
    tiles = 2 * _nbytes(weight) + scratchpad
    # Part of a concatenation, for example.
    copied = 0 if gradient.is_contiguous() or _is_channels_last(gradient) else _nbytes(gradient)
    if _is_channels_last(input) or _is_channels_last(weight):
        tiles += _nbytes(weight) if half and not _has_tiles() else 0
        return tiles + copied + (0 if _is_channels_last(input) else _nbytes(input))
    of_input = any(each.shape == input.shape for each in outputs)
    weights = _blocked_weight(weight)
    blocked = _blocked(gradient) + (tiles if half else weights - _nbytes(weight))
    blocked += max(_blocked(input), _nbytes(input)) if of_input else _blocked(input)
    strided = gradient.shape[2:].numel() < input.shape[2:].numel()
    if of_input and (strided or half):
        blocked = max(blocked, 2 * _nbytes(input) - _nbytes(weight))
    return copied + max(blocked, weights)


def _attention_splits(query: Tensor, key: Tensor) -> tuple[int, int]:
    """Return the numbers of queries and keys that a thread takes at a time."""
    length = query.shape[-2]
    return min(256 if length >= 768 else 64 if length >= 192 else 32, length), min(512, key.shape[-2])


def _attention(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Scores, maxima, sums and outputs of a block, in float32, for each thread; keys and values packed for tiles."""
    del outputs
    query, key, value = inputs[:3]
    queries, keys = _attention_splits(query, key)
    thread = 4 * queries * (keys + 2 + value.shape[-1])
    packed = 0
    if query.dtype in _HALF:
        thread += 2 * queries * keys + 2 * keys * value.shape[-1]
        packed = _nbytes(key) + _nbytes(value) if query.dtype is torch.bfloat16 and _has_tiles() else 0
    return torch.get_num_threads() * thread + packed


def _attention_backward(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    del outputs
    gradient, query, key = inputs[:3]
    queries, keys = _attention_splits(query, key)
    thread = 8 * queries * keys + 4 * queries
    if query.dtype in _HALF:
        thread += 6 * queries * keys + 4 * keys * query.shape[-1]
    # The gradient of the outputs is read in the order (sample, position, head).
    copied = 0 if gradient.transpose(1, 2).is_contiguous() else _nbytes(query)
    return torch.get_num_threads() * thread + copied


def _upsampling(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Small images are resized in channels-last, to which input and output are converted."""
    if _is_channels_last(inputs[0]) or sum(outputs[0].shape[-2:]) > _SMALL_IMAGE:
        return 0
    return _nbytes(inputs[0]) + _nbytes(outputs[0])


def _bilinear_upsampling(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    if inputs[0].shape[1] == 3 and not _is_channels_last(inputs[0]):
        return _nbytes(inputs[0]) + _nbytes(outputs[0])
    return _upsampling(inputs, outputs)


def _antialiased_upsampling(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """The image that is resized along its last dimension only."""
    return _nbytes(inputs[0]) // inputs[0].shape[-1] * outputs[0].shape[-1]


def _eigenvalues(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """A copy of the matrix, and the workspace of LAPACK, which is as large as two if it returns eigenvectors."""
    vectors = len(outputs) > 1 and outputs[1].numel() > 0
    return _nbytes(inputs[0]) * (2 if vectors else 1)


def _absolute(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Of complex numbers it is computed in complex ones."""
    return _nbytes(inputs[0]) if inputs[0].is_complex() else _conversions(inputs, outputs)


def _contiguous_gradient(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """A contiguous copy of the gradient."""
    del outputs
    return 0 if inputs[0].is_contiguous() else _nbytes(inputs[0])


def _ctc_backward(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """The log-probabilities of the ends of the targets, like those of their beginnings."""
    del outputs
    return _nbytes(inputs[-1])


def _lstm(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """The gates of all positions, and the weights in the layout of oneDNN."""
    input, of_input, of_hidden = inputs[:3]
    gates = 4 * input.shape[:2].numel() * of_input.shape[0]
    return gates + _nbytes(of_input) + _nbytes(of_hidden) + _TILES // 2


def _lstm_backward(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """The gates, the weights in two layouts, and the gradient of the input."""
    return _lstm(inputs, outputs) + _nbytes(inputs[1]) + _nbytes(inputs[2]) + _nbytes(inputs[0]) + _TILES // 2


def _nbytes(tensor: Tensor) -> int:
    return math.prod(tensor.shape) * tensor.itemsize


_RULES: dict[Any, Rule] = {
    **dict.fromkeys((aten.sum.dim_IntList, aten.sum.default, aten.cumsum.default), _sum),
    **dict.fromkeys((aten.mean.dim, aten.mean.default), _mean),
    **dict.fromkeys((aten.logsumexp.default, aten.median.dim, aten.median.default, aten.im2col.default), _like_input),
    **dict.fromkeys((aten.scatter.src, aten.scatter.value, aten.scatter_.src, aten.scatter_.value), _half_to_float),
    **dict.fromkeys((aten.mse_loss.default, aten.smooth_l1_loss.default, aten.huber_loss.default), _loss),
    **dict.fromkeys((aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default), _matmul),
    **dict.fromkeys((aten.where.self, aten.masked_fill.Scalar, aten.masked_fill.Tensor), _where),
    **dict.fromkeys((aten.copy_.default, aten._to_copy.default, aten.clone.default), _nothing),
    **dict.fromkeys((aten._linalg_svd.default, aten.linalg_lstsq.default, aten.linalg_inv_ex.default), _like_input),
    **dict.fromkeys((aten.upsample_nearest2d.default, aten._upsample_nearest_exact2d.default), _upsampling),
    aten.upsample_bilinear2d.default: _bilinear_upsampling,
    aten._upsample_bilinear2d_aa.default: _antialiased_upsampling,
    aten._linalg_eigh.default: _eigenvalues,
    aten.abs.default: _absolute,
    aten._ctc_loss_backward.default: _ctc_backward,
    aten._ctc_loss_backward.Tensor: _ctc_backward,
    aten._pack_padded_sequence.default: lambda inputs, outputs: _nbytes(outputs[0]),
    aten.binary_cross_entropy_with_logits.default: _loss_with_logits,
    aten.kthvalue.default: _kth_value,
    aten._safe_softmax.default: _safe_softmax,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.mkldnn_rnn_layer.default: _lstm,
    aten.mkldnn_rnn_layer_backward.default: _lstm_backward,
    aten.embedding_dense_backward.default: _contiguous_gradient,
    **dict.fromkeys(
        (aten._log_softmax_backward_data.default, aten._softmax_backward_data.default), _contiguous_gradient
    ),
    aten.max_pool2d_with_indices_backward.default: _max_pool_backward,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _attention_backward,
}
