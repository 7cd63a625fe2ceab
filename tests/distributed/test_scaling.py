from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from composer import dist
from composer.distributed.scaling import DividedGradScaler
from tests.distributed.sharded import whole


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


def _steps(overflow: bool):
    """A divided and a whole weight; the overflow is in the part of the last process."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Linear(2, 4)
    full = torch.arange(8.0).reshape(4, 2)
    model.weight = nn.Parameter(distribute_tensor(full, mesh, [Shard(0)]))
    nn.init.zeros_(model.bias)
    optimizer, scaler = _optimizer(model), DividedGradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.zeros(()))
    gradient = torch.full((4, 2), 16.0)
    if overflow:
        gradient[-1] = float("inf")
    model.weight.grad = distribute_tensor(gradient, mesh, [Shard(0)])
    model.bias.grad = torch.full((4,), 8.0)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return whole(model.weight) - full, whole(model.bias), scaler.get_scale()


def test_all_step(two_ranks):
    for weight, bias, scale in two_ranks.run(_steps, False):
        assert (weight == -2).all()
        assert (bias == -1).all()
        assert scale == 8


def test_an_overflow_in_one_part_is_one_for_all(two_ranks):
    for weight, bias, scale in two_ranks.run(_steps, True):
        assert (weight == 0).all()
        assert (bias == 0).all()
        assert scale == 4


def test_one_process_is_as_before():
    model = nn.Linear(2, 1)
    twin = nn.Linear(2, 1)
    twin.load_state_dict(model.state_dict())
    for module, scaler in ((model, DividedGradScaler("cpu")), (twin, torch.amp.GradScaler("cpu"))):
        optimizer = _optimizer(module)
        for value in (1.0, float("nan"), 2.0):
            scaler.scale(module(torch.full((1, 2), value)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scaler.get_scale() == 32768
    torch.testing.assert_close(model.weight, twin.weight, rtol=0, atol=0)
