from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from composer.optim import DecoupledAdamW, parameter_groups


class Encoder(nn.Module):
    """Embedding, layers, norm, head."""

    def __init__(self, depth=3):
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layer = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm((2, 4))) for _ in range(depth))
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 2, bias=False)


def names(model, groups):
    of = {id(param): name for name, param in model.named_parameters()}
    return {group["name"]: [of[id(param)] for param in group["params"]] for group in groups}


def test_norms_and_biases_do_not_decay():
    model = Encoder(depth=1)
    groups = parameter_groups(model, lr=0.1, weight_decay=0.01)
    assert names(model, groups) == {
        "decay": ["embedding.weight", "layer.0.0.weight", "head.weight"],
        # The second norm's weights are matrices.
        "no decay": ["layer.0.0.bias", "layer.0.1.weight", "layer.0.1.bias", "norm.weight", "norm.bias"],
    }
    assert [(group["lr"], group["weight_decay"]) for group in groups] == [(0.1, 0.01), (0.1, 0.0)]


def test_further_names_without_decay():
    model = Encoder(depth=1)
    found = names(model, parameter_groups(model, weight_decay=0.01, no_decay=["embedding.*", "head.weight"]))
    assert found["decay"] == ["layer.0.0.weight"]
    assert "lr" not in parameter_groups(model)[0]
    with pytest.raises(ValueError, match=r"no_decay: no parameter is named 'hed.weight'. Did you mean 'head.weight'"):
        parameter_groups(model, no_decay="hed.weight")


@settings(max_examples=25, deadline=None)
@given(depth=st.integers(2, 6), layer_decay=st.floats(0.1, 0.99))
def test_rates_fall_by_the_same_factor_from_layer_to_layer(depth, layer_decay):
    model = Encoder(depth)
    groups = parameter_groups(model, lr=0.3, weight_decay=0.01, layer_decay=layer_decay)
    rates = {name: group["lr"] for group in groups for name in names(model, [group])[group["name"]]}
    assert rates["head.weight"] == rates["norm.bias"] == 0.3
    assert rates["embedding.weight"] == pytest.approx(0.3 * layer_decay ** (depth + 1))
    for layer in range(depth):
        expected = 0.3 * layer_decay ** (depth - layer)
        assert rates[f"layer.{layer}.0.weight"] == rates[f"layer.{layer}.1.bias"] == pytest.approx(expected)
    assert sorted(rates) == sorted(name for name, _ in model.named_parameters())


def test_layers_in_several_places():
    model = nn.Module()
    model.stem = nn.Linear(2, 2)
    model.one = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    model.between = nn.Linear(2, 2)
    model.two = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model.head = nn.Linear(2, 2)
    groups = parameter_groups(model, lr=1.0, layer_decay=0.5, layers=["one", "two"])
    found = names(model, groups)
    assert found["layer 0, decay"] == ["stem.weight"]
    assert found["layer 2, decay"] == ["one.2.weight", "between.weight"]
    assert found["layer 3, decay"] == ["two.0.weight"]
    assert found["layer 5, decay"] == ["head.weight"]
    assert {group["name"]: group["lr"] for group in groups}["layer 3, no decay"] == 0.25


def test_frozen_and_tied_parameters():
    model = Encoder()
    model.embedding.weight.requires_grad_(False)
    model.layer[1] = model.layer[0]
    params = [param for group in parameter_groups(model, lr=1.0, layer_decay=0.5) for param in group["params"]]
    assert len(params) == len(set(params)) == sum(p.requires_grad for p in model.parameters())


def test_an_optimizer_takes_them():
    model = Encoder()
    optimizer = DecoupledAdamW(parameter_groups(model, lr=0.1, weight_decay=1e-4, layer_decay=0.5))
    assert [group["initial_lr"] for group in optimizer.param_groups] == [g["lr"] for g in optimizer.param_groups]
    assert optimizer.param_groups[0]["lr"] == 0.1 * 0.5**4
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    optimizer.step()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer_decay": 0.5}, "requires lr"),
        ({"layer_decay": 0, "lr": 0.1}, "layer_decay must be greater than 0"),
        ({"layers": "layer"}, "has no effect without layer_decay"),
        ({"lr": 0.1, "layer_decay": 0.5, "layers": "layers"}, "no module is named 'layers'. Did you mean 'layer'"),
        ({"lr": 0.1, "layer_decay": 0.5, "layers": "head"}, "'head' has no children with parameters"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        parameter_groups(Encoder(), **arguments)


def test_models_without_layers_or_parameters():
    with pytest.raises(ValueError, match="Linear has no ModuleList or Sequential"):
        parameter_groups(nn.Linear(2, 2), lr=0.1, layer_decay=0.5)
    with pytest.raises(ValueError, match="no parameter of ReLU requires a gradient"):
        parameter_groups(nn.ReLU())
