from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from composer.parallel.optimizer_params import ParameterNames, check_optimizer_supports_sharding, swap_parameters
from tests.parallel.sharded import full_tensor


def _replace(model: nn.Module) -> None:
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, nn.Parameter(parameter.detach().clone()))


def test_groups_settings_and_lists_stay():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    extra = nn.Parameter(torch.zeros(1))
    groups = [{"params": list(model[1].parameters()), "lr": 0.5}, {"params": [extra, *model[0].parameters()]}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    lists = [group["params"] for group in optimizer.param_groups]
    names = ParameterNames(model)
    _replace(model)
    swap_parameters([optimizer], names.replacements(model))
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]
    assert all(one is group["params"] for one, group in zip(lists, optimizer.param_groups, strict=True))
    expected = [*model[1].parameters(), extra, *model[0].parameters()]
    assert [id(p) for one in lists for p in one] == [id(p) for p in expected]


def test_states_keep_their_order():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    extra = nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.Adam([model[0].weight, extra, model[1].weight])
    for parameter in (model[0].weight, extra, model[1].weight):
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    before = [dict(state) for state in optimizer.state.values()]
    names = ParameterNames(model)
    _replace(model)
    swap_parameters([optimizer], names.replacements(model))
    assert [id(p) for p in optimizer.state] == [id(model[0].weight), id(extra), id(model[1].weight)]
    assert [list(state) for state in optimizer.state.values()] == [list(state) for state in before]
    assert optimizer.state["new"] == {}  # the mapping makes states as before


def _shard_state():
    """States follow weights over two dimensions of a mesh."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("parts", "layers"))
    torch.manual_seed(0)
    for places in ([Shard(0), Shard(1)], [Shard(0), Replicate()], [Replicate(), Shard(0)], [Shard(0), Shard(0)]):
        model = nn.Linear(3, 5)
        optimizer = torch.optim.Adam(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.randn(5, 3) if parameter.ndim == 2 else torch.randn(5)
        optimizer.step()
        expected = optimizer.state[model.weight]["exp_avg"].clone()
        names = ParameterNames(model)
        model.weight = nn.Parameter(distribute_tensor(model.weight.detach(), mesh, places))
        swap_parameters([optimizer], names.replacements(model))
        state = optimizer.state[model.weight]
        assert state["step"] == 1
        assert state["exp_avg"].placements == tuple(places)
        torch.testing.assert_close(full_tensor(state["exp_avg"]), expected, rtol=0, atol=0)


def test_states_are_sharded_like_weights(four_ranks):
    four_ranks.run(_shard_state)


def test_flat_vector_optimizers_are_rejected():
    parameters = [nn.Parameter(torch.ones(1))]
    wrapped = torch.optim.SGD(parameters)
    wrapped.base_optimizer = torch.optim.LBFGS(parameters)  # type: ignore[attr-defined]
    for optimizer in (torch.optim.LBFGS(parameters), wrapped):
        with pytest.raises(ValueError, match="LBFGS needs all parameters as one vector"):
            check_optimizer_supports_sharding(optimizer)
