from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import composer.optim
from composer.algorithms import SAM
from composer.dist.simulation import simulated_ranks
from composer.parallel.optimizer_params import (
    ParameterNames,
    check_optimizer_supports_sharding,
    shard_optimizers,
    swap_parameters,
)
from tests.parallel.sharded import PLAN, assert_same, full_tensor, result


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


@pytest.mark.parametrize("mixed", [False, True])
def test_foreach_kernels_get_tensors_of_one_kind(mixed):
    with simulated_ranks(2):
        mesh = init_device_mesh("cpu", (2,))
        plain = [nn.Parameter(torch.ones(4)) for _ in range(2)]
        sharded = {id(each): nn.Parameter(distribute_tensor(each, mesh, [Shard(0)])) for each in plain[mixed:]}
        optimizer = torch.optim.AdamW(plain)
        shard_optimizers([optimizer], sharded)
        assert optimizer.param_groups[0]["foreach"] is (False if mixed else None)
        optimizer = torch.optim.AdamW(plain, foreach=True)
        shard_optimizers([optimizer], sharded)
        assert optimizer.param_groups[0]["foreach"]  # as the user says


def test_flat_vector_optimizers_are_rejected():
    parameters = [nn.Parameter(torch.ones(1))]
    wrapped = torch.optim.SGD(parameters)
    wrapped.base_optimizer = torch.optim.LBFGS(parameters)  # type: ignore[attr-defined]
    for optimizer in (torch.optim.LBFGS(parameters), wrapped):
        with pytest.raises(ValueError, match="LBFGS needs all parameters as one vector"):
            check_optimizer_supports_sharding(optimizer)


# ------------------------------------------------------------------------------- optimizers in the wrapper of SAM

OPTIMIZERS = {
    "DecoupledAdamW": lambda model: composer.optim.DecoupledAdamW(model.parameters(), lr=0.01, weight_decay=1e-4),
    "DecoupledSGDW": lambda model: composer.optim.DecoupledSGDW(model.parameters(), lr=0.01, momentum=0.9),
    "MuonAdamW": lambda model: composer.optim.MuonAdamW(model, lr=0.02),
    "muon_and_adamw": lambda model: composer.optim.muon_and_adamw(model, lr=0.02),
}
SAM_SETTINGS = [{"rho": 0.1}, {"rho": 0.1, "interval": 2, "adaptive": True, "reuse": 0.5}]


def _with_sam(name, config):
    return [result(config, optimizers=OPTIMIZERS[name], algorithms=SAM(**settings)) for settings in SAM_SETTINGS]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_wrapped_optimizers_step_as_in_one_process(name, two_ranks):
    alone = _with_sam(name, None)
    for config in ({"fsdp": {}}, {"tp": {"tensor_parallel_degree": 2, "layer_plan": PLAN}}):
        for found in two_ranks.run(_with_sam, name, config):
            for one, other in zip(found, alone, strict=True):
                assert_same(one, other, atol=1e-9)


def test_every_optimizer_is_compared():
    found = [
        value for value in (getattr(composer.optim, name) for name in composer.optim.__all__) if inspect.isclass(value)
    ]
    classes = {one.__name__ for one in found if issubclass(one, torch.optim.Optimizer)}
    assert classes <= OPTIMIZERS.keys()
    assert "MuonAdamW" in classes
