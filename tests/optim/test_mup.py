from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from composer.optim import mup_groups, scale_readout

BASE = 16


class Net(nn.Module):
    """Embedding, two hidden layers, readout."""

    def __init__(self, width):
        super().__init__()
        self.table = nn.Embedding(5, width)
        self.hidden = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.readout = nn.Linear(width, 3)

    def forward(self, tokens):
        return self.readout(self.hidden(self.table(tokens)))


def rates(model, groups):
    of = {id(param): name for name, param in model.named_parameters()}
    return {of[id(param)]: group["lr"] for group in groups for param in group["params"]}


@pytest.mark.parametrize(
    ("optimizer", "table", "vector", "hidden", "readout"), [("adam", 1, 1, 1 / 4, 1 / 4), ("sgd", 4, 4, 1, 1 / 4)]
)
def test_rates_of_the_paper(optimizer, table, vector, hidden, readout):
    """Table 3 of the paper, for a model four times as wide."""
    model = Net(4 * BASE)
    found = rates(model, mup_groups(model, Net(BASE), lr=0.1, weight_decay=0.2, optimizer=optimizer))
    assert found == pytest.approx(
        {
            "table.weight": 0.1 * table,
            "hidden.0.weight": 0.1 * hidden,
            "hidden.0.bias": 0.1 * vector,
            "hidden.2.weight": 0.1 * hidden,
            "hidden.2.bias": 0.1 * vector,
            "readout.weight": 0.1 * readout,
            "readout.bias": 0.1,
        }
    )


def test_decay_of_matrices_only():
    model = Net(4 * BASE)
    for group in mup_groups(model, Net(BASE), lr=0.1, weight_decay=0.2):
        assert {param.ndim > 1 for param in group["params"]} == {group["weight_decay"] == 0.2}


def test_at_the_width_of_the_base_nothing_changes():
    model = Net(BASE)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert set(rates(model, mup_groups(model, Net(BASE), lr=0.1)).values()) == {0.1}
    assert scale_readout(model, Net(BASE)) == []
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_kernels_and_a_base_without_memory():
    def network(width):
        return nn.Sequential(nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.Conv2d(width, 2 * width, 3))

    model = network(32)
    with torch.device("meta"):
        base = network(8)
    assert rates(model, mup_groups(model, base, lr=1.0)) == {
        "0.weight": 1.0,
        "0.bias": 1.0,
        "1.weight": 1.0,
        "1.bias": 1.0,
        "2.weight": 0.25,
        "2.bias": 1.0,
    }


def change_of_outputs(width, scaled):
    """How far the outputs and the hidden layer move in a few steps of Adam."""
    torch.manual_seed(1)
    model, base = Net(width), Net(BASE)
    groups = model.parameters()
    if scaled:
        scale_readout(model, base)
        groups = mup_groups(model, base, lr=0.01)
    optimizer = torch.optim.Adam(groups, lr=0.01)
    tokens, targets = torch.arange(5), torch.tensor([0, 1, 2, 0, 1])
    with torch.no_grad():
        before = model(tokens)
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(tokens), targets).backward()
        optimizer.step()
    with torch.no_grad():
        return (model(tokens) - before).pow(2).mean().sqrt().item()


def test_outputs_move_alike_at_every_width():
    """The law behind the rates: with them a step moves the outputs by the same, without them by more and more."""
    wide = [change_of_outputs(width, scaled=True) for width in (64, 1024)]
    assert 0.5 < wide[1] / wide[0] < 2
    usual = [change_of_outputs(width, scaled=False) for width in (64, 1024)]
    assert usual[1] / usual[0] > 3


def test_variance_of_the_readout():
    torch.manual_seed(2)
    model = nn.Linear(4096, 8)
    assert scale_readout(model, nn.Linear(64, 8)) == ["weight"]
    usual = 1 / math.sqrt(3 * 4096)  # of the uniform distribution that Linear begins with
    assert model.weight.std().item() == pytest.approx(usual / 8, rel=0.05)


def test_models_that_do_not_fit():
    model = Net(64)
    tied = Net(64)
    tied.readout = nn.Linear(64, 5)
    tied.readout.weight = tied.table.weight
    with pytest.raises(ValueError, match="tied to the readout"):
        mup_groups(tied, tied, lr=0.1)
    with pytest.raises(ValueError, match=r"only one of them has 'readout\.bias'"):
        other = Net(16)
        other.readout = nn.Linear(16, 3, bias=False)
        mup_groups(model, other, lr=0.1)
    with pytest.raises(ValueError, match="the kernel of 'weight' has a different size"):
        mup_groups(nn.Conv2d(2, 4, 3), nn.Conv2d(2, 4, 1), lr=0.1)
    with pytest.raises(ValueError, match="'weight' has a different number of dimensions"):
        scale_readout(nn.Conv1d(2, 4, 3), nn.Conv2d(2, 4, 3))
    with pytest.raises(ValueError, match="optimizer must be one of 'adam', 'sgd', but got 'adamm'"):
        mup_groups(model, Net(16), lr=0.1, optimizer="adamm")
    with pytest.raises(ValueError, match="lr must be greater than 0"):
        mup_groups(model, Net(16), lr=0.0)
