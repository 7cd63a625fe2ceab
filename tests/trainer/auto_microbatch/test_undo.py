from __future__ import annotations

import collections
import copy
import random

import numpy as np
import pytest
import torch
from torch import nn

from composer import Callback, State
from composer.trainer.auto_microbatch.undo import ObjectSnapshot


class Box:
    """Any object."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def test_state_is_restored_in_place():
    inner = [1, 2]
    box = Box(
        number=1,
        names=["a", inner],
        table={"x": torch.ones(2), "y": {"z": 3}},
        queue=collections.deque([1, 2], maxlen=2),
        members={1, 2},
        pair=(torch.zeros(1), [5]),
        array=np.arange(3),
        other=Box(value=7),
    )
    box.itself = box
    kept, tensor, array = dict(vars(box)), box.table["x"], box.array
    snapshot = ObjectSnapshot([box])
    for _ in range(2):  # as often as wanted
        box.number, box.new = 2, 3
        inner.append(9)
        box.names.insert(0, "b")
        tensor.zero_()
        box.table["x"] = torch.full((2,), 5.0)
        box.table["y"].clear()
        box.queue.append(3)
        box.members.discard(1)
        box.pair[0].fill_(4)
        box.pair[1].clear()
        array[:] = 0
        box.other.value = 8
        del box.itself
        snapshot.restore()
        assert vars(box).keys() == kept.keys()
        assert all(vars(box)[name] is value for name, value in kept.items() if name != "number")
        assert (box.number, box.names, inner, box.other.value) == (1, ["a", [1, 2]], [1, 2], 7)
        assert box.table["x"] is tensor
        assert (tensor.tolist(), box.table["y"]) == ([1.0, 1.0], {"z": 3})
        assert (list(box.queue), box.members) == ([1, 2], {1, 2})
        assert (box.pair[0].item(), box.pair[1], array.tolist()) == (0.0, [5], [0, 1, 2])


def test_models_and_optimizers():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad()
        model(torch.ones(3, 2)).sum().backward()
        optimizer.step()

    step()
    kept = copy.deepcopy((model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]))
    layer, group, parameters = model[0], optimizer.param_groups[0], list(model.parameters())
    snapshot = ObjectSnapshot([model, optimizer])
    step()
    model[0] = nn.Linear(2, 2)
    model.eval()
    group["lr"] = 5.0
    group["params"].pop()
    parameters[0].requires_grad_(False)
    optimizer.state.clear()
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    parameters[1].grad = None
    snapshot.restore()
    assert model[0] is layer
    assert all(module.training for module in model.modules())
    assert optimizer.param_groups == [group]
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert all(parameter.requires_grad for parameter in parameters)
    now = (model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()])
    torch.testing.assert_close(now, kept, rtol=0, atol=0)


def test_generators_and_odd_tensors():
    generator, python = torch.Generator().manual_seed(1), random.Random(1)
    wide, resized = torch.zeros(1).expand(4), torch.ones(3)
    snapshot = ObjectSnapshot([generator, python, wide, resized])
    drawn = torch.rand(2, generator=generator).tolist(), python.random()
    resized.resize_(7)
    snapshot.restore()
    assert (torch.rand(2, generator=generator).tolist(), python.random()) == drawn
    assert resized.tolist() == [1, 1, 1]


@pytest.mark.parametrize("make", [lambda: State(model=nn.Linear(1, 1)), Callback])
def test_unowned_objects_are_left_alone(make):
    other = make()
    box = Box(other=other)
    snapshot = ObjectSnapshot([box])
    other.mark = 1
    box.other = None
    snapshot.restore()
    assert box.other is other
    assert other.mark == 1
