from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from composer.models import Initializer
from composer.models.initializers import initialize


def test_members_are_found_by_name_and_value() -> None:
    assert Initializer("xavier_normal") is Initializer("XAVIER_NORMAL") is Initializer.XAVIER_NORMAL
    assert [member.value for member in Initializer] == [
        "kaiming_normal",
        "kaiming_uniform",
        "xavier_normal",
        "xavier_uniform",
        "bn_uniform",
        "bn_ones",
        "linear_log_constant_bias",
    ]
    for wrong in ("kaiming_nromal", 3, None):
        with pytest.raises(ValueError, match="initializer must be one of"):
            Initializer(wrong)
    with pytest.raises(ValueError, match="Did you mean 'kaiming_normal'"):
        Initializer("kaiming_nromal")


@pytest.mark.parametrize(
    ("name", "variance", "bound"),
    [
        # Variances of the papers; a uniform distribution on [-b, b] has b^2 / 3.
        ("kaiming_normal", lambda n_in, n_out: 2 / n_in, None),
        ("kaiming_uniform", lambda n_in, n_out: 2 / n_in, 3),
        ("xavier_normal", lambda n_in, n_out: 2 / (n_in + n_out), None),
        ("xavier_uniform", lambda n_in, n_out: 2 / (n_in + n_out), 3),
    ],
)
@pytest.mark.parametrize("convolution", [False, True])
def test_weights_have_the_variance_of_the_paper(name, variance, bound, convolution) -> None:
    layer = nn.Conv2d(40, 90, 3) if convolution else nn.Linear(400, 300)
    bias = layer.bias.detach().clone()
    layer.apply(Initializer(name).get_initializer())
    wanted = variance(*((40 * 9, 90 * 9) if convolution else (400, 300)))
    # The standard error of the variance of n draws is at most sqrt(2 / n) of it.
    assert layer.weight.var().item() == pytest.approx(wanted, rel=6 * math.sqrt(2 / layer.weight.numel()))
    assert abs(layer.weight.mean().item()) < 6 * math.sqrt(wanted / layer.weight.numel())
    largest = layer.weight.abs().max().item()
    if bound is None:
        assert largest > 3 * math.sqrt(wanted)
    else:
        assert 0.99 * math.sqrt(bound * wanted) < largest <= math.sqrt(bound * wanted) * 1.000001
    assert torch.equal(layer.bias, bias)


def test_batch_norms() -> None:
    for layer in (nn.BatchNorm1d(5000), nn.BatchNorm2d(5000), nn.SyncBatchNorm(5000)):
        nn.init.constant_(layer.bias, 3.0)
        initialize(layer, "bn_uniform")
        assert 0 <= layer.weight.min() < 0.01 < 0.99 < layer.weight.max() <= 1
        assert layer.weight.mean().item() == pytest.approx(0.5, abs=0.03)
        assert not layer.bias.any()
        initialize(layer, Initializer.BN_ONES)
        assert (layer.weight == 1).all()
    initialize(nn.BatchNorm2d(3, affine=False), ["bn_uniform", "bn_ones"])


def test_log_bias_lets_sigmoids_begin_at_the_share_of_a_class() -> None:
    layer = nn.Linear(3, 50)
    initialize(layer, "linear_log_constant_bias")
    torch.testing.assert_close(layer.bias.exp(), torch.full((50,), 1 / 50))
    initialize(nn.Linear(3, 4, bias=False), "linear_log_constant_bias")


def test_several_apply_in_order_and_none_changes_nothing() -> None:
    layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    before = layers[0].weight.detach().clone()
    initialize(layers, None)
    initialize(layers, [])
    assert torch.equal(layers[0].weight, before)
    initialize(layers, [Initializer.BN_UNIFORM, "BN_ONES", "kaiming_normal"])
    assert (layers[1].weight == 1).all()
    assert not torch.equal(layers[0].weight, before)


def test_a_wrong_name_leaves_everything_as_it_was() -> None:
    layer = nn.Linear(3, 4)
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match="bn_one"):
        initialize(layer, ["kaiming_normal", "bn_onez"])
    assert torch.equal(layer.weight, before)


def test_weights_may_have_no_storage_yet() -> None:
    with torch.device("meta"):
        layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    initialize(layers, list(Initializer))
    assert layers[0].weight.is_meta
