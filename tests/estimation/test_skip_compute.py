"""Operators that change shapes without computing."""

from __future__ import annotations

import torch

from composer.estimation.skip_compute import skip_compute
from composer.memory.allocations import AllocationLog


def test_in_place_changes_of_the_shape() -> None:
    x = torch.ones(2, 3)
    with skip_compute(AllocationLog(), [x]):
        y = x * 2
        y.transpose_(0, 1)
        assert y.shape == (3, 2)
        assert y.unsqueeze_(0).shape == (1, 3, 2)


def test_splits_share_memory_although_their_schema_does_not_say_so() -> None:
    x = torch.ones(1024)
    log = AllocationLog()
    with skip_compute(log, [x]):
        parts = [*x.unsafe_chunk(4), *x.unsafe_split(256), *x.unsafe_split_with_sizes([512, 512])]
    assert [len(part) for part in parts] == [256] * 8 + [512] * 2
    assert len(log.allocations) == 1


def test_a_layer_of_an_lstm_keeps_a_workspace() -> None:
    lstm = torch.nn.LSTM(64, 128)
    log = AllocationLog()
    with skip_compute(log, lstm.parameters()):
        output = lstm(torch.ones(10, 4, 64))[0]
    assert output.shape == (10, 4, 128)
    real = torch.nn.LSTM(64, 128)
    found: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dtype == torch.uint8:
            found.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        real(torch.ones(10, 4, 64))
    assert len(found) == 1
    assert 0.95 * found[0] < max(each.nbytes for each in log.allocations) < 1.1 * found[0]


def test_a_known_mask_of_several_dimensions_selects_what_it_selects() -> None:
    weight = torch.nn.Parameter(torch.ones(4, 6, 8))
    mask = torch.zeros(4, 6, dtype=torch.bool)
    mask[1, :5] = True
    with skip_compute(AllocationLog(), [weight]) as mode:
        chosen = weight[mask]
        assert chosen.shape == (5, 8) and not mode.has_values(chosen)
        assert weight[mask, 0].shape == (5,)
        chosen.sum().backward()
        assert weight.grad is not None and weight.grad.shape == weight.shape
        unknown = weight.sum(2) > 0
        assert weight[unknown].shape == (24, 8)  # the largest that is possible
