"""Hyperparameters of parameter groups by name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.optim.hyperparameter import initial_value, set_value

NAMES = {"lr": 0.5, "momentum": 0.5, "weight_decay": 0.25, "beta1": 0.5, "beta2": 0.75}


def group(tensors: bool) -> dict:
    def of(value):
        return torch.tensor(value) if tensors else value

    return {"lr": of(0.5), "momentum": of(0.5), "weight_decay": of(0.25), "betas": (of(0.5), of(0.75)), "foreach": None}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tensors", [False, True])
def test_read_and_set(name, tensors) -> None:
    entries = group(tensors)
    before = {key: entries[key] for key in ("lr", "momentum", "weight_decay")}
    assert initial_value(entries, name) == NAMES[name]
    set_value(entries, name, 0.125)
    assert initial_value(entries, name) == NAMES[name]  # still the first one
    now = entries["betas"][int(name[-1]) - 1] if name.startswith("beta") else entries[name]
    assert now == 0.125
    assert isinstance(now, torch.Tensor) is tensors
    if tensors and name in before:
        assert now is before[name]


def test_only_one_beta_changes() -> None:
    entries = group(tensors=False)
    set_value(entries, "beta2", 0.99)
    assert entries["betas"] == (0.5, 0.99)


def test_the_name_of_the_initial_rate_is_that_of_torch() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.25)
    (entries,) = optimizer.param_groups
    assert initial_value(entries, "lr") == entries["initial_lr"] == 0.25
    set_value(entries, "lr", 0.5)
    assert torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1.0).base_lrs == [0.25]


@pytest.mark.parametrize("name", ["lrr", "foreach", "nesterov", "params"])
def test_what_is_no_number(name) -> None:
    (entries,) = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.25).param_groups
    listed = "Available: 'lr', 'momentum', 'dampening', 'weight_decay'"
    with pytest.raises(ValueError, match=f"hyperparameter '{name}' is not a number in this optimizer.* {listed}"):
        initial_value(entries, name)


def test_momentum_of_adam() -> None:
    (entries,) = torch.optim.Adam([nn.Parameter(torch.ones(1))]).param_groups
    with pytest.raises(ValueError, match=r"Momentum is 'beta1' here\. Available: .* 'beta1', 'beta2'"):
        initial_value(entries, "momentum")
