"""FLOPs, memory traffic, and the bound of the time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from composer.estimation.devices import find_device
from composer.estimation.roofline import OperatorCosts, lower_bound
from composer.estimation.skip_compute import skip_compute
from composer.memory.allocations import AllocationLog

aten = torch.ops.aten


def step(model: nn.Module, x: torch.Tensor) -> None:
    model(x).sum().backward()


@pytest.mark.parametrize(
    "model, size",
    [
        (nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), (16, 32)),
        (
            nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.ConvTranspose2d(8, 4, 2, 2)),
            (2, 3, 16, 16),
        ),
    ],
    ids=["linear", "convolution"],
)
def test_flops_are_those_of_torch(model: nn.Module, size: tuple[int, ...]) -> None:
    with FlopCounterMode(display=False) as counter:
        step(model, torch.ones(size))
    costs = OperatorCosts()
    with skip_compute(AllocationLog(), model.parameters(), observe=costs.add):
        step(model, torch.ones(size))
    assert costs.flops == counter.get_total_flops() > 0


def test_attention_on_the_cpu_counts() -> None:
    query = torch.ones(2, 4, 128, 32, requires_grad=True)
    costs = OperatorCosts()
    with skip_compute(AllocationLog(), [query], observe=costs.add):
        output = F.scaled_dot_product_attention(query, query, query)
        forward = costs.flops
        output.sum().backward()
    product = 2 * 2 * 4 * 128 * 128 * 32
    assert forward == 2 * product
    assert costs.flops == 2 * product + 5 * product  # the scores are computed again


def test_bytes_of_operators() -> None:
    x, table = torch.ones(16, 16), torch.ones(1000, 16)

    def nbytes(func, *args) -> int:
        costs = OperatorCosts()
        costs.add(func, args, {}, func(*args))
        return costs.nbytes

    assert nbytes(aten.relu.default, x) == 2 * 1024
    assert nbytes(aten.add.Tensor, x, x.clone()) == 3 * 1024
    assert nbytes(aten.add_.Tensor, x, x.clone()) == 3 * 1024
    assert nbytes(aten.t.default, x) == 0  # a view
    assert nbytes(aten.empty_like.default, x) == 0
    assert nbytes(aten.zeros.default, [16, 16]) == 1024
    assert nbytes(aten.relu.default, torch.ones(1, 16).expand(16, 16)) == 64 + 1024
    indices = torch.zeros(4, dtype=torch.int64)
    assert nbytes(aten.embedding.default, table, indices) == 2 * 4 * 64 + 32  # not the whole table
    assert nbytes(aten._foreach_add_.Scalar, [x, x.clone()], 1) == 4 * 1024


def test_the_bound_is_the_larger_of_compute_and_traffic() -> None:
    device = find_device("A100-40GB")
    bound = lower_bound([("bf16", 312 * 10**12, 0, 2), ("fp32", 0, 1555 * 10**9, 1)], device)
    assert bound is not None
    assert bound.seconds == pytest.approx(3.0) and bound.compute == pytest.approx(2.0)
    assert bound.peak_utilization == pytest.approx(2 / 3)
    assert (bound.flops, bound.nbytes) == (624 * 10**12, 1555 * 10**9)


def test_tensor_float_32() -> None:
    device = find_device("A100-40GB")
    slow, fast = (lower_bound([("fp32", 10**15, 0, 1)], device, allow_tf32=allowed) for allowed in (False, True))
    assert slow is not None and fast is not None
    assert slow.seconds / fast.seconds == pytest.approx(156 / 19.5)


def test_a_device_of_unknown_speed_has_no_bound() -> None:
    assert lower_bound([("fp32", 1, 1, 1)], find_device("80GB")) is None


def test_counts_survive_json_and_clear() -> None:
    costs = OperatorCosts()
    for _ in range(3):
        costs.add(aten.relu.default, (torch.ones(4),), {}, torch.ones(4))
    assert costs.to_json() == [["fp32", 0, 32, 3]]
    costs.clear()
    assert costs.to_json() == []
