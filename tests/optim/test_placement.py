"""Where the state of an optimizer lies: after it was loaded, where it lies after the first step.

Parameters on the meta device stand for those on an accelerator.
"""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

import composer.optim
from composer.devices import Device
from composer.optim import DecoupledAdamW, DecoupledSGDW, MuonAdamW


class Meta(Device):
    name, dist_backend, torch_device = "meta", "", torch.device("meta")


def network(device: str) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)).to(device)


def schedule_free(name: str) -> Any:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = getattr(pytest.importorskip("schedulefree"), name)(model.parameters())
        optimizer.train()
        return optimizer

    return make


OPTIMIZERS = {
    "DecoupledAdamW": lambda model: DecoupledAdamW(model.parameters()),
    "DecoupledAdamW, amsgrad": lambda model: DecoupledAdamW(model.parameters(), amsgrad=True),
    "DecoupledSGDW": lambda model: DecoupledSGDW(model.parameters(), lr=0.1, momentum=0.9),
    "MuonAdamW": MuonAdamW,
    "AdamW": lambda model: torch.optim.AdamW(model.parameters()),
    "AdamWScheduleFree": schedule_free("AdamWScheduleFree"),
    "SGDScheduleFree": schedule_free("SGDScheduleFree"),
}


def stepped(name: str, device: str) -> torch.optim.Optimizer:
    model = network(device)
    optimizer = OPTIMIZERS[name](model)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def places(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Device and dtype of every tensor of the state, parameter after parameter."""
    return [
        {
            key: (value.device.type, value.dtype)
            for key, value in optimizer.state[parameter].items()
            if torch.is_tensor(value)
        }
        for group in optimizer.param_groups
        for parameter in group["params"]
    ]


def test_all_optimizers_are_here() -> None:
    ours = {
        name
        for name in composer.optim.__all__
        if isinstance(value := getattr(composer.optim, name), type) and issubclass(value, torch.optim.Optimizer)
    }
    assert ours <= {name.partition(",")[0] for name in OPTIMIZERS}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_loaded_state_lies_where_the_first_step_put_it(name: str) -> None:
    file = io.BytesIO()
    torch.save(stepped(name, "cpu").state_dict(), file)
    file.seek(0)
    loaded = OPTIMIZERS[name](network("meta"))
    loaded.load_state_dict(torch.load(file))
    expected = places(stepped(name, "meta"))
    assert places(loaded) == expected
    Meta().optimizer_to_device(loaded)
    assert places(loaded) == expected
    assert any(expected)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_copies_keep_it(copied: Any) -> None:
    optimizer = stepped("DecoupledAdamW", "cpu")
    assert places(copied(optimizer)) == places(optimizer)


def test_a_state_that_was_made_before_the_move_moves() -> None:
    model = network("cpu")
    optimizer = DecoupledAdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    Meta().optimizer_to_device(optimizer)
    assert {place for state in places(optimizer) for place, _ in state.values()} == {"meta"}
