from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from composer.nn import FactorizedConv2d, FactorizedLinear
from composer.nn.factorized import factorizing_could_speedup
from composer.nn.low_rank import LowRankSolution


def low_rank_linear(rank=4):
    layer = nn.Linear(32, 16)
    layer.weight.data = torch.randn(16, rank) @ torch.randn(rank, 32)
    return layer


def low_rank_conv(rank=4, **arguments):
    layer = nn.Conv2d(16, 24, 3, **arguments)
    layer.weight.data = (torch.randn(24, rank) @ torch.randn(rank, 144)).view(24, 16, 3, 3)
    return layer


def test_linear_keeps_what_it_has_learned():
    layer, x = low_rank_linear(), torch.randn(2, 3, 32)
    split = FactorizedLinear.from_linear(layer, latent_features=4)
    torch.testing.assert_close(split(x), layer(x), rtol=1e-3, atol=1e-3)
    assert split.expand.bias is layer.bias
    assert split.bias is layer.bias
    torch.testing.assert_close(split.weight, layer.weight, rtol=1e-3, atol=1e-3)
    assert FactorizedLinear.from_linear(nn.Linear(32, 16, bias=False)).bias is None


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(
    "arguments", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "padding": 2, "padding_mode": "reflect"}]
)
def test_conv_keeps_what_it_has_learned(arguments, memory_format):
    layer = low_rank_conv(**arguments).to(memory_format=memory_format)
    x = torch.randn(2, 16, 9, 9).contiguous(memory_format=memory_format)
    split = FactorizedConv2d.from_conv2d(layer, latent_channels=4)
    torch.testing.assert_close(split(x), layer(x), rtol=1e-3, atol=1e-3)
    assert split.expand.bias is layer.bias
    assert split.reduce.weight.is_contiguous(memory_format=memory_format)


def test_frozen_weights_stay_frozen():
    layer = low_rank_linear().requires_grad_(False)
    assert not any(p.requires_grad for p in FactorizedLinear.from_linear(layer).parameters())
    assert all(p.requires_grad for p in FactorizedConv2d.from_conv2d(low_rank_conv()).parameters())


def test_widths():
    assert FactorizedLinear(32, 16).latent_features == 4
    assert FactorizedLinear(32, 16, latent_features=0.01).latent_features == 1
    assert FactorizedConv2d(16, 32, 3).latent_channels == 4
    with pytest.raises(ValueError, match="latent_features must be at most 10"):
        FactorizedLinear(32, 16, latent_features=11)
    with pytest.raises(ValueError, match="latent_channels must be at most"):
        FactorizedConv2d(16, 16, 1, latent_channels=8)
    with pytest.raises(NotImplementedError, match="groups"):
        FactorizedConv2d(16, 16, 3, groups=2)


@pytest.mark.parametrize(
    ("layer", "latent", "expected"),
    [
        (nn.Linear(100, 100), 49, True),
        (nn.Linear(100, 100), 50, False),
        (nn.Conv2d(10, 10, 3), 8, True),  # 90 * 10 / 100 is 9
        (nn.Conv2d(10, 10, 3), 9, False),
        (nn.Conv2d(10, 10, 3, groups=2), 1, False),
        (nn.Conv2d(10, 10, (1, 3)), 0.5, True),
        (FactorizedLinear(100, 100), 49, True),
        (FactorizedConv2d(10, 10, 3), 9, False),
        (nn.ReLU(), 1, False),
    ],
)
def test_where_it_could_be_faster(layer, latent, expected):
    assert factorizing_could_speedup(layer, latent) is expected


@pytest.mark.parametrize(
    ("layer", "x"),
    [
        (FactorizedLinear(32, 16, latent_features=6), torch.randn(8, 20, 32)),
        (FactorizedConv2d(16, 24, 3, latent_channels=6, padding=1, stride=2), torch.randn(4, 16, 12, 12)),
    ],
)
def test_smaller_rank(layer, x):
    before, layer = layer(x), copy.deepcopy(layer)
    errors = {rank: layer.solution_for_rank(x, rank).nmse for rank in (1, 3, 5, 6)}
    assert 1 > errors[1] > errors[3] > errors[5] > errors[6] > -1e-9
    layer.set_rank(x, 3)
    assert getattr(layer, "latent_features", getattr(layer, "latent_channels", None)) == 3
    after = layer(x)
    assert after.shape == before.shape
    axes = [axis for axis in range(before.ndim) if axis != (1 if before.ndim == 4 else 2)]
    variance = (before - before.mean(axes, keepdim=True)).square().mean()
    assert ((after - before).square().mean() / variance).item() == pytest.approx(errors[3], rel=1e-3)
    layer.set_rank(x, 3)
    assert torch.equal(layer(x), after)
    with pytest.raises(ValueError, match="Requested rank 5 exceeds current rank 3"):  # no way back
        layer.set_rank(x, 5)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_older_names_of_the_two_layers():
    for layer in (FactorizedLinear(32, 16), FactorizedConv2d(16, 24, 3)):
        assert layer.module0 is layer.reduce
        assert layer.module1 is layer.expand
        assert {name.partition(".")[0] for name in layer.state_dict()} == {"reduce", "expand"}
        assert [name for name, _ in layer.named_children()] == ["reduce", "expand"]
        script = torch.jit.script(layer)
        assert script.state_dict().keys() == layer.state_dict().keys()


def test_solutions_that_do_not_fit():
    for layer in (FactorizedLinear(32, 16), FactorizedConv2d(16, 24, 3)):
        with pytest.raises(ValueError, match="two factors"):
            layer.apply_solution(LowRankSolution())


def test_random_numbers_are_not_used_up():
    layer = low_rank_linear()
    state = torch.get_rng_state()
    FactorizedLinear.from_linear(layer)
    assert torch.equal(torch.get_rng_state(), state)


def test_inside_torch_layers_that_read_the_weight():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    layer.linear1 = FactorizedLinear.from_linear(layer.linear1)
    x = torch.randn(2, 5, 32)
    trained = layer(x)
    with torch.no_grad():
        torch.testing.assert_close(layer.eval()(x), trained, rtol=1e-4, atol=1e-4)
