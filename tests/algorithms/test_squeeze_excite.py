from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.algorithms import BlurPool, SqueezeExcite, apply_blurpool, apply_squeeze_excite
from composer.nn import BlurConv2d, SqueezeExciteConv2d
from composer.warnings import NoEffectWarning
from tests import loop
from tests.algorithms.cases import Case, by_surgery, make_model

CASE = Case(
    make=lambda: SqueezeExcite(latent_channels=0.25, min_channels=16),
    by_hand=by_surgery(lambda model, optimizer: apply_squeeze_excite(model, 0.25, 16, optimizer)),
    neutral=lambda: SqueezeExcite(min_channels=10**6),
)


def test_wide_convolutions_are_replaced_once():
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Conv2d(16, 8, 3), nn.Conv2d(16, 32, 3))
    weight = net[2].weight
    assert apply_squeeze_excite(net, 4, 16) is net
    assert [isinstance(layer, SqueezeExciteConv2d) for layer in net] == [False, False, True]
    assert net[2].conv.weight is weight
    with pytest.warns(NoEffectWarning, match="at least 16 input and output channels"):
        apply_squeeze_excite(net, 4, 16)


def test_blurred_convolutions_are_not_treated_twice():
    net = apply_squeeze_excite(nn.Sequential(nn.Conv2d(16, 16, 3, 2)), 4, 16)
    apply_blurpool(net)
    assert isinstance(net[0].conv, BlurConv2d)
    with pytest.warns(NoEffectWarning):
        apply_squeeze_excite(net, 4, 16)
    assert net(torch.randn(1, 16, 9, 9)).shape == (1, 16, 4, 4)


@pytest.mark.parametrize("order", [1, -1])
def test_with_blurpool_in_any_order(order):
    methods = [SqueezeExcite(min_channels=16), BlurPool()][::order]
    engine = loop.start(make_model(), methods)
    loop.fit(engine, [(torch.randn(2, 2, 8, 8), torch.tensor([0, 1]))])


def test_optimizer_learns_the_new_weights():
    net = nn.Sequential(nn.Conv2d(16, 16, 3))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    apply_squeeze_excite(net, 4, 16, optimizer)
    assert {id(p) for p in net.parameters()} == {id(p) for p in optimizer.param_groups[0]["params"]}


def test_wrong_arguments():
    with pytest.raises(ValueError, match="latent_channels"):
        SqueezeExcite(latent_channels=0)
    with pytest.raises(ValueError, match="min_channels"):
        apply_squeeze_excite(nn.Conv2d(2, 2, 1), min_channels=-1)
    assert SqueezeExcite.required_on_load()
