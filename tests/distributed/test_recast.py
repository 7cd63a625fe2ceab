"""Weights that are cast again in the backward pass: the gradients are those of autocast, bit for bit."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from composer.distributed.recast import recast_weights

# So small that inputs, padded inputs and weights often have the same shape.
numbers = st.integers(1, 3)


class Casts(TorchDispatchMode):
    """Notes the memory of what is cast to bfloat16, by its number of elements."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, StorageWeakRef]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._to_copy.default and result.dtype == torch.bfloat16:
            self.found.append((result.numel(), StorageWeakRef(result.untyped_storage())))
        return result


def gradients(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        y = layer(x)
    (y.float() * torch.linspace(-1, 1, y.numel()).reshape(y.shape)).sum().backward()
    return [x.grad, *(parameter.grad for parameter in layer.parameters())]


def check(layer: nn.Module, x: torch.Tensor) -> None:
    twin = copy.deepcopy(layer)
    recast_weights(twin)
    for one, other in zip(gradients(layer, x), gradients(twin, x), strict=True):
        assert torch.equal(one, other)


@given(numbers, numbers, st.lists(numbers, max_size=3), st.booleans(), st.booleans(), st.booleans())
def test_linear_layers(inputs: int, outputs: int, lead: list[int], bias: bool, turned: bool, short: bool) -> None:
    x = torch.randn(*lead, inputs)
    if turned and len(lead) > 1:
        x = torch.randn(*lead[::-1], inputs).transpose(0, len(lead) - 1)
    check(nn.Linear(inputs, outputs, bias), x.bfloat16() if short else x)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@given(
    st.sampled_from([nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d]),
    numbers, numbers, numbers, numbers, st.sampled_from([0, 1, "same", "circular"]), st.booleans(),
)  # fmt: skip
def test_convolutions(kind: Any, batch: int, inputs: int, outputs: int, kernel: int, padding: Any, last: bool) -> None:
    options: dict[str, Any] = {"padding": padding}
    if isinstance(padding, str) and "Transpose" in kind.__name__:
        options = {"padding": 0}
    elif padding == "circular":
        options = {"padding": 1, "padding_mode": "circular"}
    x = torch.randn(batch, inputs, *[3] * (1 + ("2d" in kind.__name__)))
    if last and x.ndim == 4:
        x = x.to(memory_format=torch.channels_last)
    check(kind(inputs, outputs, kernel, **options), x)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(4, 8), (2, 3, 4)),
        (lambda: nn.Conv1d(4, 8, 3), (2, 4, 9)),
        (lambda: nn.Conv2d(4, 8, 3), (2, 4, 9, 9)),
    ],
)
def test_no_cast_weight_is_kept(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    kept = []
    for recasts in (False, True):
        layer = make()
        if recasts:
            recast_weights(layer)
        with Casts() as casts, torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            y = layer(torch.randn(shape, requires_grad=True))
        kept.append(sum(not one.expired() for size, one in casts.found if size == layer.weight.numel()))
        del y
    assert kept == [1, 0]


def test_nothing_changes_without_autocast_or_for_derived_classes() -> None:
    class Own(nn.Linear):
        def forward(self, input):
            return nn.functional.linear(input, self.weight * 2, self.bias)

    own, layer = Own(2, 2), nn.Linear(2, 2).bfloat16()
    expected = own(torch.ones(1, 2))
    recast_weights(nn.Sequential(own, layer))
    assert torch.equal(own(torch.ones(1, 2)), expected)
    assert "forward" not in vars(own)
    assert layer(torch.ones(1, 2, dtype=torch.bfloat16)).dtype == torch.bfloat16
    check(nn.Linear(3, 3).double(), torch.randn(3, 3, dtype=torch.float64))


def test_a_copy_casts_its_own_weight() -> None:
    layer = nn.Linear(3, 3)
    recast_weights(layer)
    twin = copy.deepcopy(layer)
    nn.init.zeros_(twin.weight)
    assert not gradients(twin, torch.randn(2, 3))[0].any()
    assert gradients(layer, torch.randn(2, 3))[0].any()


def test_meta_tensors():
    """Which have no autocast to ask for."""
    layer = nn.Linear(2, 3).to("meta")
    recast_weights(layer)
    assert layer(torch.empty(4, 2, device="meta")).shape == (4, 3)
