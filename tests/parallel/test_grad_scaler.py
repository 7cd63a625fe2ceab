from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from composer import dist
from composer.parallel.grad_scaler import ShardedGradScaler
from composer.trainer.step import step_with_scaler
from tests.parallel.sharded import full_tensor


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1.0)


def _steps(overflow: bool):
    """A sharded and a full weight; the overflow is in the shard of the last rank."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = nn.Linear(2, 4)
    full = torch.arange(8.0).reshape(4, 2)
    model.weight = nn.Parameter(distribute_tensor(full, mesh, [Shard(0)]))
    nn.init.zeros_(model.bias)
    optimizer, scaler = _optimizer(model), ShardedGradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.zeros(()))
    gradient = torch.full((4, 2), 16.0)
    if overflow:
        gradient[-1] = float("inf")
    model.weight.grad = distribute_tensor(gradient, mesh, [Shard(0)])
    model.bias.grad = torch.full((4,), 8.0)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return full_tensor(model.weight) - full, full_tensor(model.bias), scaler.get_scale()


def test_all_optimizers_step(two_ranks):
    for weight, bias, scale in two_ranks.run(_steps, False):
        assert (weight == -2).all()
        assert (bias == -1).all()
        assert scale == 8


def test_overflow_in_one_shard_skips_all(two_ranks):
    for weight, bias, scale in two_ranks.run(_steps, True):
        assert (weight == 0).all()
        assert (bias == 0).all()
        assert scale == 4


def _turns():
    """Two optimizers, of which the second gets a gradient in the first process alone, and in no step but the first."""
    models = nn.Linear(2, 1), nn.Linear(2, 1)
    state = SimpleNamespace(optimizers=[_optimizer(model) for model in models], scaler=ShardedGradScaler("cpu"))
    run = SimpleNamespace(state=state)
    scaler = state.scaler
    for model in models:
        nn.init.zeros_(model.weight)
    for number in range(2):
        for model in models if number == 0 and dist.get_global_rank() == 0 else models[:1]:
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        for optimizer in state.optimizers:
            scaler.unscale_(optimizer)
        step_with_scaler(run)
        for optimizer in state.optimizers:
            optimizer.zero_grad()
    return [model.weight.detach() for model in models]


def test_optimizer_without_gradients_on_one_rank(two_ranks):
    (first, second), (other_first, other_second) = two_ranks.run(_turns)
    assert (first == -2).all()
    assert (other_first == -2).all()
    assert (second == -1).all()
    assert (other_second == 0).all()


def test_single_process_is_unchanged():
    model = nn.Linear(2, 1)
    twin = nn.Linear(2, 1)
    twin.load_state_dict(model.state_dict())
    for module, scaler in ((model, ShardedGradScaler("cpu")), (twin, torch.amp.GradScaler("cpu"))):
        optimizer = _optimizer(module)
        for value in (1.0, float("nan"), 2.0):
            scaler.scale(module(torch.full((1, 2), value)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scaler.get_scale() == 32768
    torch.testing.assert_close(model.weight, twin.weight, rtol=0, atol=0)
