"""CPU tensors that are treated as CUDA tensors: dtypes under autocast, dropout, attention, optimizers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from composer.estimation.autocast_rules import cuda_autocast_rules
from composer.estimation.cuda_operators import cuda_operators
from composer.estimation.skip_compute import skip_compute
from composer.memory.allocations import AllocationLog
from composer.memory.cuda_kernel_memory import cuda_temporary_memory

aten = torch.ops.aten
LOW = torch.bfloat16

# By operator: the dtype on CUDA and on the CPU; "CUDA op reference" of torch's documentation of torch.amp.
DTYPES: dict[str, tuple[Callable[[Tensor], Tensor], torch.dtype, torch.dtype]] = {
    "layer_norm": (lambda x: F.layer_norm(x, (8,)), torch.float32, LOW),
    "rms_norm": (lambda x: F.rms_norm(x, (8,)), torch.float32, LOW),
    "group_norm": (lambda x: F.group_norm(x[..., None], 2), torch.float32, LOW),
    "softmax": (lambda x: x.softmax(-1), torch.float32, LOW),
    "softmax with dtype": (lambda x: x.softmax(-1, dtype=LOW), LOW, LOW),
    "log_softmax": (lambda x: F.log_softmax(x, -1), torch.float32, LOW),
    "exp": (torch.exp, torch.float32, LOW),
    "pow": (lambda x: x**2, torch.float32, LOW),
    "sum": (lambda x: x.sum(), torch.float32, LOW),
    "sum of a dim": (lambda x: x.sum(1, keepdim=True), torch.float32, LOW),
    "sum with dtype": (lambda x: x.sum(1, dtype=LOW), LOW, LOW),
    "cumsum": (lambda x: x.cumsum(0), torch.float32, LOW),
    "norm": (lambda x: x.norm(), torch.float32, LOW),
    "norm of a dim": (lambda x: x.norm(dim=1), torch.float32, LOW),
    "cross_entropy": (lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.int64)), torch.float32, torch.float32),
    "addcmul": (lambda x: torch.addcmul(x, x, x.float()), torch.float32, torch.float32),
    "addcmul of one dtype": (lambda x: torch.addcmul(x, x, x), LOW, LOW),
    "gelu": (F.gelu, LOW, LOW),
    "matmul": (lambda x: x.float() @ x.float().t(), LOW, LOW),
    "linear": (lambda x: F.linear(x, torch.ones(2, 8)), LOW, LOW),
    "mv": (lambda x: x.float().mv(torch.ones(8)), LOW, torch.float32),
    "conv2d": (lambda x: F.conv2d(x.float().view(1, 4, 2, 4), torch.ones(1, 4, 1, 1)), LOW, LOW),
    "conv2d with padding": (
        lambda x: F.conv2d(x.float().view(1, 4, 2, 4), torch.ones(1, 4, 1, 1), padding="same"),
        LOW,
        LOW,
    ),
    "float64": (lambda x: x.double().exp(), torch.float64, torch.float64),
}


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_under_autocast(name: str) -> None:
    function, on_cuda, on_cpu = DTYPES[name]
    x = torch.ones(4, 8, dtype=LOW)

    def dtype() -> torch.dtype:
        with torch.autocast("cpu", LOW):
            return function(x).dtype

    assert dtype() == on_cpu
    with cuda_autocast_rules():
        assert dtype() == on_cuda
        with torch.autocast("cpu", enabled=False):
            assert torch.ones(2, 2, dtype=LOW).exp().dtype == LOW
    assert dtype() == on_cpu  # all is as before


def test_every_rule_of_cuda_is_followed() -> None:
    from composer.estimation.autocast_rules import _kernels

    registered = torch._C._dispatch_get_registrations_for_dispatch_key
    cuda = {name.removeprefix("aten::") for name in registered("AutocastCUDA") if name.startswith("aten::")}
    cpu = {name.removeprefix("aten::") for name in registered("AutocastCPU")}
    # Made of operators that have a rule; or of cuDNN alone.
    made = {
        "_convolution", "convolution", "cudnn_convolution", "cudnn_convolution_transpose", "chain_matmul", "einsum",
        "linalg_multi_dot", "gru_cell", "lstm_cell", "rnn_relu_cell", "rnn_tanh_cell", "_thnn_fused_gru_cell",
        "_thnn_fused_lstm_cell", "_scaled_dot_product_flash_attention",
    }  # fmt: skip
    assert cuda - set(_kernels()) - cpu <= made


def saved(function: Callable[[Tensor], Tensor]) -> dict[torch.dtype, int]:
    """Return the bytes that are kept for the backward pass, besides the input."""
    x = torch.ones(64, 64, requires_grad=True)
    sizes: dict[torch.dtype, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor is not x:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.numel() * tensor.itemsize
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function(x)
    return sizes


def test_dropout_saves_a_mask() -> None:
    dropout = nn.Dropout(0.5)
    assert saved(dropout) == {torch.float32: 64 * 64 * 4}
    with cuda_operators():
        assert saved(dropout) == {torch.bool: 64 * 64}
        x = torch.ones(8)
        assert dropout.eval()(x) is x
        assert F.dropout(x, 1.0).tolist() == [0.0] * 8
        values = F.dropout(torch.ones(10000), 0.25)
        assert set(values.tolist()) <= {0.0, float(torch.tensor(1.0) / 0.75)}
    assert saved(nn.Dropout(0.5)) == {torch.float32: 64 * 64 * 4}


@pytest.mark.parametrize(
    "dtype, masked, name",
    [
        (LOW, False, "ScaledDotProductFlashAttentionBackward0"),
        (LOW, True, "ScaledDotProductEfficientAttentionBackward0"),
        (torch.float32, False, "ScaledDotProductEfficientAttentionBackward0"),
    ],
)
def test_attention_holds_no_scores(dtype: torch.dtype, masked: bool, name: str) -> None:
    length = 256
    query = torch.ones(2, 4, length, 32, dtype=dtype, requires_grad=True)
    mask = torch.ones(length, length, dtype=torch.bool) if masked else None
    log = AllocationLog()
    with cuda_operators(), skip_compute(log, [query], cuda_temporary_memory):
        output = F.scaled_dot_product_attention(query, query, query, attn_mask=mask, dropout_p=0.1)
        assert type(output.grad_fn).__name__ == name
        output.sum().backward()
    assert output.shape == query.shape and query.grad is not None
    scores = 2 * 4 * length * length
    allowed = length * length * dtype.itemsize if masked else 0  # the mask in floating point
    assert max(each.nbytes for each in log.allocations) <= max(4 * query.numel() * 2, allowed) < scores * dtype.itemsize


def test_the_backward_pass_of_attention_in_float32_multiplies_outside_of_the_kernel() -> None:
    """As many elements as the outputs have, and the sums over the last dimension twice."""
    query = torch.ones(2, 4, 256, 32)
    value = torch.ones(2, 4, 256, 48)
    operator = aten._scaled_dot_product_efficient_attention_backward.default
    assert cuda_temporary_memory(operator, [value, query, query, value], [query]) == 4 * (
        value.numel() + 2 * 2 * 4 * 256
    )
    low = [each.to(LOW) for each in (value, query, query, value)]
    assert cuda_temporary_memory(operator, low, [query]) == 4 * (query.numel() + 2 * 4 * 256)


def test_rms_norm_is_one_operator() -> None:
    """CUDA saves the input and a factor for each row; the CPU also the normalized input."""
    weight = torch.rand(64, requires_grad=True)

    def norm(x: Tensor) -> Tensor:
        return F.rms_norm(x, (64,), weight)

    x = torch.randn(8, 64, requires_grad=True)
    expected = torch.autograd.grad(norm(x).square().sum(), [x, weight])
    composed = saved(norm)[torch.float32]
    with cuda_operators():
        assert saved(norm)[torch.float32] == 4 * (64 + 64) <= composed - 4 * 64 * 64
        output = norm(x)
        assert type(output.grad_fn).__name__ == "FusedRmsNormBackward0"
        found = torch.autograd.grad(output.square().sum(), [x, weight])
    torch.testing.assert_close(found, expected)
    assert saved(norm)[torch.float32] == composed  # all is as before


def test_a_width_that_flash_attention_pads() -> None:
    query = torch.ones(1, 2, 16, 12, dtype=LOW, requires_grad=True)
    with cuda_operators(), skip_compute(AllocationLog(), [query]):
        assert F.scaled_dot_product_attention(query, query, query).shape == query.shape


def test_optimizers_take_the_foreach_implementation() -> None:
    def peak() -> int:
        model = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(8)))
        optimizer = torch.optim.AdamW(model.parameters())
        log = AllocationLog()
        with skip_compute(log, model.parameters()):
            model(torch.ones(1, 64)).sum().backward()
            optimizer.step()
        return log.peak()[0]

    alone = peak()
    with cuda_operators():
        assert peak() - alone > 4 * 64 * 64 * 4  # a temporary tensor for each parameter
    assert peak() == alone


def test_kernels_of_cuda_convert_in_registers() -> None:
    x = torch.ones(64, 64, dtype=LOW)
    assert cuda_temporary_memory(aten.sum.default, [x], [x.sum()]) == 0
    assert cuda_temporary_memory(aten.mul.Tensor, [x, x.float()], [x.float()]) == 0
    assert cuda_temporary_memory(aten.mse_loss.default, [x, x], [x.sum()]) == 64 * 64 * 2


def test_convolutions_are_converted_to_channels_last_for_tensor_cores() -> None:
    x, w = torch.ones(2, 8, 16, 16, dtype=LOW), torch.ones(4, 8, 3, 3, dtype=LOW)
    y = torch.ones(2, 4, 14, 14, dtype=LOW)
    assert cuda_temporary_memory(aten.convolution.default, [x, w], [y]) == 2 * (x.numel() + w.numel() + y.numel())
    last = x.to(memory_format=torch.channels_last)
    assert cuda_temporary_memory(aten.convolution.default, [last, w], [y]) == 0
    assert cuda_temporary_memory(aten.convolution.default, [x.float(), w.float()], [y.float()]) == 0
