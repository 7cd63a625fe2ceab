"""Where the state of an optimizer lies: after it was loaded, where it lies after the first step.

Parameters on the meta device, or on a pretend accelerator that computes, stand for those on an accelerator.
"""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import composer.optim
from composer.devices import Device
from composer.optim import DecoupledAdamW, DecoupledSGDW, MuonAdamW
from tests.accelerator import DEVICE, FakeAccelerator, FakeDevice
from tests.callbacks.cases import run_with
from tests.common import Received, classifier
from tests.trainer.test_sync_free import Step


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
TORCH = {
    "Adam, foreach": lambda model: torch.optim.Adam(model.parameters(), foreach=True),
    "AdamW, fused": lambda model: torch.optim.AdamW(model.parameters(), fused=True),
    "AdamW, capturable": lambda model: torch.optim.AdamW(model.parameters(), foreach=True, capturable=True),
    "AdamW, amsgrad": lambda model: torch.optim.AdamW(model.parameters(), amsgrad=True),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), momentum=0.9),
    "RMSprop": lambda model: torch.optim.RMSprop(model.parameters(), momentum=0.9, centered=True),
    "Adagrad": lambda model: torch.optim.Adagrad(model.parameters()),
    "Adadelta": lambda model: torch.optim.Adadelta(model.parameters()),
    "Adamax": lambda model: torch.optim.Adamax(model.parameters()),
    "NAdam": lambda model: torch.optim.NAdam(model.parameters()),
    "RAdam": lambda model: torch.optim.RAdam(model.parameters()),
    "Rprop": lambda model: torch.optim.Rprop(model.parameters()),
    "ASGD": lambda model: torch.optim.ASGD(model.parameters()),
}
RATES = {
    "DecoupledAdamW, rate on the device": lambda model: DecoupledAdamW(
        model.parameters(), lr=torch.tensor(0.1, device=DEVICE)
    ),
}
WAITS = {
    "ASGD": "PyTorch makes the steps on the device, reads them there in each step, and loads them to the host.",
    "NAdam": "PyTorch loads to the device what it reads in each step; checkpoints of a Trainer are loaded to the host.",
    "Rprop": "PyTorch assigns by masks.",
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


def trained(name: str, load: dict[str, Any] | None = None) -> tuple[torch.optim.Optimizer, list[Any]]:
    """Take three steps on the pretend accelerator, the last two of which are watched."""
    torch.manual_seed(0)
    with FakeAccelerator() as accelerator:
        model = FakeDevice().module_to_device(network("cpu"))
        optimizer = (OPTIMIZERS | TORCH | RATES)[name](model)
        if load is not None:
            optimizer.load_state_dict(load)
            FakeDevice().optimizer_to_device(optimizer)
        for step in range(3):
            accelerator.step = step or None
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        return optimizer, accelerator.found


@pytest.mark.parametrize("name", [*OPTIMIZERS, *TORCH, *RATES])
def test_no_step_waits_for_the_device_before_or_after_loading(name: str) -> None:
    first, found = trained(name)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    loaded, found_later = trained(name, torch.load(file))
    if name in WAITS:
        assert found or found_later
    else:
        assert places(loaded) == places(first)
        assert found == []
        assert found_later == []


@pytest.mark.parametrize("kind", [DecoupledAdamW, torch.optim.NAdam, torch.optim.AdamW])
def test_a_trainer_that_resumes_waits_no_more_than_before(kind: type[torch.optim.Optimizer], tmp_path: Path) -> None:
    found = []
    with FakeAccelerator() as accelerator:
        for more in (
            {"save_folder": str(tmp_path), "save_interval": "2ba"},
            {"load_path": f"{tmp_path}/ep0-ba2-rank0.pt"},
        ):
            model = classifier()
            optimizer = kind(model.parameters(), lr=0.1)
            step = Step(lambda step: setattr(accelerator, "step", step if step in (1, 3) else None))
            run_with(
                step, model=model, optimizers=optimizer, loggers=Received(50), run_name="run", **more
            ).trainer.fit()
            found.append(places(optimizer))
    assert found[0] == found[1]
    assert accelerator.found == []
