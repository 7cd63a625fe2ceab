"""The rules for workspaces of CPU kernels against the memory events of torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.allocations import Allocations
from composer.estimation.kernel_memory import temporary_memory

aten = torch.ops.aten
KIB = 1024
HALF = torch.bfloat16


def values(*size: int, dtype: torch.dtype = torch.float32, last: bool = False) -> Tensor:
    tensor = torch.ones(size, dtype=dtype)
    return tensor.to(memory_format=torch.channels_last) if last else tensor


def convolution(
    dtype: torch.dtype, inputs: int, outputs: int, kernel: int, stride: int, last: bool
) -> tuple[Any, tuple[Any, ...]]:
    x, w = (
        values(16, inputs, 28, 28, dtype=dtype, last=last),
        values(outputs, inputs, kernel, kernel, dtype=dtype, last=last),
    )
    return aten.convolution.default, (x, w, None, [stride] * 2, [kernel // 2] * 2, [1, 1], False, [0, 0], 1)


def backward(
    dtype: torch.dtype, inputs: int, outputs: int, kernel: int, stride: int, last: bool
) -> tuple[Any, tuple[Any, ...]]:
    func, (x, w, *others) = convolution(dtype, inputs, outputs, kernel, stride, last)
    gradient = func(x, w, *others)
    return aten.convolution_backward.default, (gradient, x, w, None, *others[1:], [True, True, False])


def attention(dtype: torch.dtype, length: int) -> tuple[Any, tuple[Any, ...]]:
    query = values(2, 4, length, 32, dtype=dtype)
    return aten._scaled_dot_product_flash_attention_for_cpu.default, (query, query.clone(), query.clone())


def measured(func: Any, args: tuple[Any, ...]) -> tuple[int, int]:
    """Return the measured and the expected bytes."""
    func(*args)  # what is made at the first call
    with Allocations("cpu") as allocations:
        outputs = func(*args)
    found = [each for each in (outputs if isinstance(outputs, tuple) else (outputs,)) if isinstance(each, Tensor)]
    inputs = [each for each in args if isinstance(each, Tensor)]
    return allocations.whole.peak - max(allocations.whole.end, 0), temporary_memory(func, inputs, found)


def resized(channels: int, extent: int, last: bool = False) -> tuple[Any, tuple[Any, ...]]:
    return aten.upsample_bilinear2d.default, (values(4, channels, extent, extent, last=last), [2 * extent] * 2, False)


# Those whose memory follows from shapes and dtypes alone: exact.
EXACT: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "convolution in float64": lambda: convolution(torch.float64, 16, 32, 3, 1, last=False),
    "convolution in float64, backward": lambda: backward(torch.float64, 16, 32, 3, 2, last=False),
    "1x1 convolution in float64": lambda: convolution(torch.float64, 16, 32, 1, 1, last=False),
    "bilinear": lambda: resized(8, 32),
    "bilinear, channels last": lambda: resized(8, 32, last=True),
    "absolute of complex": lambda: (aten.abs.default, (values(64, 512, dtype=torch.complex64),)),
    "sum": lambda: (aten.sum.dim_IntList, (values(256, 512, dtype=HALF), [0])),
    "sum of booleans": lambda: (aten.sum.dim_IntList, (values(256, 512, dtype=torch.bool), [0])),
    "mean": lambda: (aten.mean.dim, (values(256, 512, dtype=HALF), [0])),
    "mean in float32": lambda: (aten.mean.dim, (values(256, 512), [0])),
    "two dtypes": lambda: (aten.mul.Tensor, (values(256, 512, dtype=HALF), values(512))),
    "with booleans": lambda: (aten.mul.Tensor, (values(256, 512), values(256, 512, dtype=torch.bool))),
    "one dtype": lambda: (aten.mul.Tensor, (values(256, 512), values(256, 512))),
    "where": lambda: (aten.where.self, (values(256, 512, dtype=torch.bool), values(256, 512), values(256, 512))),
    "mse": lambda: (aten.mse_loss.default, (values(256, 512, dtype=HALF), values(256, 512, dtype=HALF))),
    "with logits": lambda: (aten.binary_cross_entropy_with_logits.default, (values(256, 512), values(256, 512))),
    "logsumexp": lambda: (aten.logsumexp.default, (values(256, 512), [0])),
    "scatter": lambda: (
        aten.scatter.src,
        (values(256, 512, dtype=HALF), 1, torch.zeros(256, 1, dtype=torch.int64), values(256, 1, dtype=HALF)),
    ),
    "copy": lambda: (aten._to_copy.default, (values(256, 512),)),
    "attention": lambda: attention(torch.float32, 128),
    "long attention": lambda: attention(torch.float32, 1024),
    "pooling in two layouts": lambda: (
        aten.max_pool2d_with_indices_backward.default,
        (
            values(16, 32, 14, 14),
            (x := values(16, 32, 28, 28, last=True)),
            [2, 2],
            [2, 2],
            [0, 0],
            [1, 1],
            False,
            aten.max_pool2d_with_indices.default(x, [2, 2])[1],
        ),
    ),
}


@pytest.mark.parametrize("case", EXACT)
def test_memory_of_a_kernel(case: str) -> None:
    truth, expected = measured(*EXACT[case]())
    assert abs(truth - expected) <= 9 * KIB, (truth, expected)  # sums and maxima of a row


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("kernel, stride", [(1, 1), (3, 1), (3, 2)])
@pytest.mark.parametrize("inputs, outputs", [(64, 64), (24, 64), (64, 128)])
@pytest.mark.parametrize("make", [convolution, backward])
def test_convolutions_in_float32(make: Any, inputs: int, outputs: int, kernel: int, stride: int, last: bool) -> None:
    truth, expected = measured(*make(torch.float32, inputs, outputs, kernel, stride, last))
    size = 4 * 16 * 28 * 28 * inputs
    # Of the largest tensors that are there; the exact scratchpads are those of the processor.
    assert truth - 0.02 * size - 256 * KIB <= expected <= truth + 0.1 * size + 256 * KIB, (truth, expected)


def product(rows: int, inner: int, columns: int) -> tuple[Any, tuple[Any, ...]]:
    return aten.mm.default, (values(rows, inner, dtype=HALF), values(columns, inner, dtype=HALF).t())


@pytest.mark.parametrize("rows, inner, columns", [(2048, 128, 512), (256, 1024, 256), (512, 4096, 64)])
@pytest.mark.parametrize("kind", ["matrices", "batches"])
def test_products_in_bfloat16(kind: str, rows: int, inner: int, columns: int) -> None:
    func, args = product(rows, inner, columns)
    if kind == "batches":
        func, args = aten.bmm.default, tuple(torch.stack([each] * 4) for each in args)
    truth, expected = measured(func, args)
    assert truth <= expected + 9 * KIB  # an upper bound of what a processor packs
    if torch.cpu._is_avx512_supported() and not torch.cpu._is_avx512_bf16_supported():
        assert truth == pytest.approx(expected, abs=KIB)
        assert expected == 4 * rows * columns + 128  # of one batch at a time


def test_products_in_bfloat16_by_the_instructions_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = values(2048, 128, dtype=HALF), values(128, 512, dtype=HALF)
    for has_it, expected in ((False, 4 * 2048 * 512 + 128), (True, 2 * 128 * 512 + 8 * KIB)):
        monkeypatch.setattr(torch.cpu, "_is_avx512_supported", lambda: True)
        monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda has_it=has_it: has_it)
        assert temporary_memory(aten.mm.default, [x, w], [x @ w]) == expected


def test_an_operator_without_a_rule_takes_no_memory() -> None:
    x = values(8, 8)
    assert temporary_memory(aten.relu.default, [x], [x.relu()]) == 0
    assert measured(aten.relu.default, (values(256, 512),)) == (0, 0)
