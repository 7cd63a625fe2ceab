from __future__ import annotations

from unittest.mock import Mock

import pytest
import torch
from torch import nn

from composer import Event, State
from composer.algorithms import Factorize, apply_factorization
from composer.nn import FactorizedConv2d, FactorizedLinear
from composer.warnings import NoEffectWarning
from tests.algorithms.cases import Case, by_surgery

ARGUMENTS = {"min_channels": 16, "latent_channels": 4, "min_features": 4, "latent_features": 2}

CASE = Case(
    make=lambda: Factorize(**ARGUMENTS),
    by_hand=by_surgery(lambda model, optimizer: apply_factorization(model, **ARGUMENTS, optimizers=optimizer)),
    neutral=lambda: Factorize(min_channels=10**6, min_features=10**6),
)


def model():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3),  # too few channels
        nn.Conv2d(32, 32, 3),
        nn.Conv2d(32, 32, 3, groups=2),
        nn.Conv2d(32, 64, 1),
        nn.Flatten(),
        nn.Linear(64, 32),
        nn.Linear(32, 10),
    )


def class_names(net):
    return "".join({FactorizedConv2d: "c", FactorizedLinear: "l"}.get(type(layer), ".") for layer in net)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({}, ".c.c.l."),
        ({"factorize_convs": False}, ".....l."),
        ({"factorize_linears": False}, ".c.c..."),
        ({"min_channels": 3}, "cc.c.l."),  # 27 * 32 / 59 is more than 3 * 0.25, at least 1
        ({"min_channels": 33}, ".....l."),
        ({"min_features": 10}, ".c.c.ll"),
        ({"latent_channels": 30}, ".....l."),  # 288 * 32 / 320 is 28.8
        ({"latent_features": 30}, ".c.c..."),
    ],
)
def test_choice_of_layers(arguments, expected):
    net = model()
    given = {"min_channels": 32, "latent_channels": 0.25, "min_features": 32, "latent_features": 0.25} | arguments
    assert apply_factorization(net, **given) is net
    assert class_names(net) == expected


def test_second_time_changes_nothing_and_says_so():
    net = apply_factorization(model(), min_channels=8, min_features=8)
    with pytest.warns(NoEffectWarning, match="Conv2d with at least 8 .* channels, and no Linear with at least 8"):
        apply_factorization(net, min_channels=8, min_features=8)


def test_layers_stay_that_cannot_be_changed_alone():
    tied = nn.Sequential(nn.Embedding(64, 64), nn.Linear(64, 64, bias=False))
    tied[1].weight = tied[0].weight
    attention = nn.MultiheadAttention(64, 4)
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64))
    net = nn.ModuleList([tied, attention, spectral, nn.Linear(64, 64)])
    apply_factorization(net, min_features=64)
    assert [type(layer).__name__ for layer in (tied[1], attention.out_proj, net[3])] == [
        "Linear",
        "NonDynamicallyQuantizableLinear",
        "FactorizedLinear",
    ]
    assert isinstance(net[2], nn.Linear)


def test_trained_model_goes_on_from_where_it_was():
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    for layer in (net[0], net[2]):
        layer.weight.data = torch.randn(64, 8) @ torch.randn(8, 64) / 8
    x = torch.randn(4, 64)
    before = net(x)
    apply_factorization(net, min_features=64, latent_features=8)
    torch.testing.assert_close(net(x), before, rtol=1e-3, atol=1e-3)


def test_optimizer_learns_the_new_weights():
    net = nn.Sequential(nn.Linear(64, 64))
    decay = {"params": [net[0].weight], "weight_decay": 0.1}
    optimizer = torch.optim.SGD([decay, {"params": [net[0].bias]}], lr=0.1)
    bias = net[0].bias
    apply_factorization(net, min_features=64, optimizers=optimizer)
    groups = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    assert groups == [[id(net[0].reduce.weight), id(net[0].expand.weight)], [id(bias)]]


def test_neither_kind_of_layer():
    """As in the predecessor; in a sweep it is the setting that does nothing."""
    net = nn.Linear(64, 64)
    off = Factorize(factorize_convs=False, factorize_linears=False)
    logger = Mock()
    with pytest.warns(NoEffectWarning, match="factorize_convs and factorize_linears are both False"):
        off.apply(Event.INIT, State(model=net), logger)
    assert type(net) is nn.Linear and not logger.log_hyperparameters.called


@pytest.mark.parametrize("make", [Factorize, lambda **kw: apply_factorization(nn.Linear(2, 2), **kw)])
def test_wrong_arguments(make):
    for name, value in {"min_channels": -1, "latent_channels": 0, "min_features": -1, "latent_features": 0}.items():
        with pytest.raises(ValueError, match=name):
            make(**{name: value})
    assert Factorize.required_on_load()
