from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.nn.factorized import FactorizedLinear
from composer.nn.gated_linear import GatedLinear


def test_closed_form():
    layer = GatedLinear(2, 1, torch.relu, gated_layer_bias=True, non_gated_layer_bias=True)
    with torch.no_grad():
        for parameter, values in zip(layer.parameters(), ([[1.0, -1.0]], [0.5], [[2.0, 0.0]], [1.0]), strict=True):
            parameter.copy_(torch.tensor(values))
    # Gates max(3 - 1 + 0.5, 0) and max(1 - 3 + 0.5, 0), values 2 * 3 + 1 and 2 * 1 + 1.
    assert layer(torch.tensor([[3.0, 1.0], [1.0, 3.0]])).tolist() == [[17.5], [0.0]]


@pytest.mark.parametrize("gate_bias", [False, True])
@pytest.mark.parametrize("value_bias", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_from_linear(gate_bias, value_bias, bias):
    linear = nn.Linear(3, 5, bias=bias).eval()
    layer = GatedLinear.from_linear(linear, torch.relu, gate_bias, value_bias)
    assert layer.gate.weight is linear.weight
    assert (layer.gate.bias is not None, layer.value.bias is not None) == (gate_bias, value_bias)
    if gate_bias:
        assert layer.gate.bias is linear.bias if bias else not layer.gate.bias.any()
    if value_bias:
        assert not layer.value.bias.any()
    assert not layer.training


def test_value_is_as_wide_spread_as_the_gate():
    torch.manual_seed(0)
    linear = nn.Linear(300, 400, dtype=torch.float64)
    nn.init.normal_(linear.weight, std=0.02)
    value = GatedLinear.from_linear(linear, torch.relu).value.weight
    assert value.dtype == torch.float64
    assert value.std().item() == pytest.approx(0.02, rel=0.02)
    assert value.mean().item() == pytest.approx(0, abs=3e-4)


def test_weights_the_other_way_round():
    class Conv1D(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(3, 5)), nn.Parameter(torch.randn(5))

        def forward(self, x):
            return x @ self.weight + self.bias

    conv = Conv1D()
    layer = GatedLinear.from_linear(conv, nn.Identity(), gated_layer_bias=True)
    x = torch.randn(2, 3)
    torch.testing.assert_close(layer.gate(x), conv(x))


def test_a_layer_split_in_two_stays_so():
    thin = FactorizedLinear.from_linear(nn.Linear(8, 6), latent_features=2)
    new = GatedLinear.from_linear(thin, torch.relu, gated_layer_bias=True)
    x = torch.randn(5, 8)
    torch.testing.assert_close(new.gate(x), thin(x))
    assert [(layer_.latent_features, layer_.out_features) for layer_ in (new.gate, new.value)] == [(2, 6)] * 2
    assert new.value.bias is None
    assert new(x).shape == (5, 6)
