from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer.algorithms import WeightStandardization, apply_weight_standardization
from composer.algorithms.weight_standardization import WeightStandardizer
from composer.warnings import NoEffectWarning
from tests.algorithms.cases import Case, by_surgery

CASE = Case(
    make=WeightStandardization,
    by_hand=by_surgery(lambda model, optimizer: apply_weight_standardization(model)),
    neutral=lambda: WeightStandardization(n_last_layers_ignore=10),
)


def formula(weight):
    flat = weight.flatten(1)
    flat = flat - flat.mean(1, keepdim=True)
    return (flat / (flat.square().mean(1, keepdim=True) + 1e-10).sqrt()).view_as(weight)


@pytest.mark.parametrize("shape", [(4, 3, 5), (4, 3, 3, 2), (4, 2, 2, 2, 2)])
def test_formula_and_gradient(shape):
    weight = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(shape, dtype=torch.float64)
    found, expected = WeightStandardizer()(weight), formula(weight)
    torch.testing.assert_close(found, expected)
    gradients = [torch.autograd.grad(out, weight, upstream)[0] for out in (found, expected)]
    torch.testing.assert_close(*gradients)


@given(scale=st.floats(0.01, 100), shift=st.floats(-10, 10))
def test_scale_and_shift_do_not_matter(scale, shift):
    weight = torch.randn(3, 4, 3, 3, dtype=torch.float64)
    torch.testing.assert_close(
        WeightStandardizer()(weight * scale + shift), WeightStandardizer()(weight), rtol=1e-4, atol=1e-4
    )


def test_memory_format_stays():
    weight = torch.randn(4, 3, 3, 3).to(memory_format=torch.channels_last)
    found = WeightStandardizer()(weight)
    assert found.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(found, formula(weight))


def test_layers():
    net = nn.Sequential(
        nn.Conv1d(2, 3, 3), nn.Conv2d(2, 3, 3), nn.Conv3d(2, 3, 3), nn.Linear(3, 3), nn.ConvTranspose2d(2, 3, 3)
    )
    parameters = {id(p) for p in net.parameters()}
    assert apply_weight_standardization(net) == 3
    assert {id(p) for p in net.parameters()} == parameters
    for layer in net[:3]:
        torch.testing.assert_close(layer.weight.flatten(1).mean(1), torch.zeros(3), atol=1e-6, rtol=0)
        torch.testing.assert_close(layer.weight.flatten(1).var(1, correction=0), torch.ones(3), atol=1e-4, rtol=0)
    with pytest.warns(NoEffectWarning, match="of the 3 convolutions"):
        assert apply_weight_standardization(net) == 0


def test_last_layers_stay():
    net = nn.Sequential(*(nn.Conv2d(2, 2, 3) for _ in range(4)))
    assert apply_weight_standardization(net, n_last_layers_ignore=3) == 1
    assert [nn.utils.parametrize.is_parametrized(layer) for layer in net] == [True, False, False, False]
    with pytest.warns(NoEffectWarning, match="apart from the last 9"):
        assert apply_weight_standardization(copy.deepcopy(net), n_last_layers_ignore=9) == 0


def test_filters_of_one_element_stay():
    """Their variance is 0: they would stay 0."""
    net = nn.Sequential(nn.Conv2d(4, 4, 1, groups=4), nn.Conv2d(4, 4, 3, groups=4))
    assert apply_weight_standardization(net) == 1
    assert not nn.utils.parametrize.is_parametrized(net[0])


def test_beside_other_parametrizations():
    conv = nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 3, 3))
    net = nn.Sequential(conv)
    assert apply_weight_standardization(net) == 1
    torch.testing.assert_close(net[0].weight.flatten(1).mean(1), torch.zeros(3), atol=1e-6, rtol=0)


def test_optimizer_goes_on():
    net = nn.Sequential(nn.Conv2d(2, 3, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    apply_weight_standardization(net)
    before = net[0].parametrizations.weight.original.detach().clone()
    net(torch.randn(2, 2, 5, 5)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(net[0].parametrizations.weight.original, before)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="n_last_layers_ignore"):
        WeightStandardization(-1)
    assert WeightStandardization.required_on_load()
