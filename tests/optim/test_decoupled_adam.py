"""What AdamW reports of its parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from composer import dist
from composer.optim import DecoupledAdamW, DecoupledSGDW
from tests.optim.test_decoupled import parameters, set_gradients
from tests.ranks import Ranks


@pytest.mark.parametrize("amsgrad", [False, True])
def test_reported_norms(amsgrad):
    params = parameters()
    optimizer = DecoupledAdamW(params, lr=0.1, weight_decay=9e-4, amsgrad=amsgrad)
    assert optimizer.report_per_parameter_metrics(params[0], "w", {}) == {}
    for step in range(3):
        before = [param.detach().clone() for param in params]
        set_gradients(params, step)
        optimizer.param_groups[0]["lr"] = 0.2
        optimizer.step()
        optimizer.param_groups[0]["lr"] = 0.01  # as a schedule does before anybody asks
    metrics = {}
    for place, param in enumerate(params):
        assert optimizer.report_per_parameter_metrics(param, f"w{place}", metrics) is metrics
    assert len(metrics) == 4 * len(params)
    for place, (param, old) in enumerate(zip(params, before, strict=True)):
        expected = {
            "moment": optimizer.state[param]["exp_avg"],
            "param": param,
            "update": param - old,
            "grad": param.grad,
        }
        for name, tensor in expected.items():
            value = metrics[f"l2_norm/{name}/w{place}"]
            assert isinstance(value, torch.Tensor)
            assert value.shape == ()
            torch.testing.assert_close(value, tensor.detach().norm(), rtol=1e-5, atol=1e-7)
    assert optimizer.report_per_parameter_metrics(nn.Parameter(torch.ones(1)), "other", {}) == {}


def test_reduced_norms_of_one_rank_are_unchanged():
    optimizer = DecoupledAdamW([nn.Parameter(torch.ones(1))])
    metrics = {"l2_norm/grad/w": torch.tensor(3.0), "cosine/w": torch.tensor(0.5)}
    assert optimizer.pre_reduce_metrics(metrics) is metrics
    assert metrics == {"l2_norm/grad/w": torch.tensor(9.0), "cosine/w": torch.tensor(0.5)}
    assert optimizer.dist_reduce_metrics(metrics) is metrics
    assert metrics == {"l2_norm/grad/w": torch.tensor(3.0), "cosine/w": torch.tensor(0.5)}
    assert optimizer.dist_reduce_metrics({}) == {}


def test_norms_of_shards_add_up(monkeypatch):
    """Two ranks, with metrics of different parameters, in one collective."""
    mine, theirs = (
        {"l2_norm/grad/w": torch.tensor(9.0)},
        {"l2_norm/grad/w": 16.0, "l2_norm/grad/v": 4.0, "cosine/w": 1.0},
    )
    calls = []

    def all_reduce(values):
        calls.append(len(values))
        values += torch.tensor([theirs[name] for name in sorted(theirs)])

    monkeypatch.setattr("composer.optim.decoupled_adam.have_same_digest", lambda names: False)
    monkeypatch.setattr(dist, "all_gather_object", lambda names: [names, list(theirs)])
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    metrics = DecoupledAdamW([nn.Parameter(torch.ones(1))]).dist_reduce_metrics(mine)
    assert calls == [3]
    assert {name: value.item() for name, value in metrics.items()} == {
        "l2_norm/grad/w": 5.0,
        "l2_norm/grad/v": 2.0,
        "cosine/w": 0.5,
    }


def sharded() -> None:
    """Compare steps and reports of sharded weights with those of full ones, on each rank."""
    mesh = init_device_mesh("cpu", (2,))
    makes = (
        lambda p: DecoupledAdamW(p, lr=0.1, weight_decay=1e-4, amsgrad=True),
        lambda p: DecoupledSGDW(p, lr=0.1, momentum=0.9, weight_decay=1e-4),
    )
    for make in makes:
        torch.manual_seed(0)
        values = torch.randn(5, 3)
        full = nn.Parameter(values.clone())
        shard = nn.Parameter(distribute_tensor(values, mesh, [Shard(0)]))
        optimizers = [make([full]), make([shard])]
        for _ in range(3):
            gradient = torch.randn(5, 3)
            full.grad, shard.grad = gradient, distribute_tensor(gradient, mesh, [Shard(0)])
            for optimizer in optimizers:
                optimizer.step()
        torch.testing.assert_close(shard.full_tensor(), full)
        if make is makes[0]:
            _compare_reports(*optimizers, full, shard)


def _compare_reports(of_full: Any, of_shard: Any, full: nn.Parameter, shard: nn.Parameter) -> None:
    expected = of_full.report_per_parameter_metrics(full, "w", {})
    found = of_shard.report_per_parameter_metrics(shard, "w", {})
    for name, value in expected.items():
        torch.testing.assert_close(found[name].full_tensor(), value)
    torch.testing.assert_close(of_shard.dist_reduce_metrics(of_shard.pre_reduce_metrics(found)), expected)
    rank = dist.get_global_rank()
    parts = {"l2_norm/grad/w": torch.tensor([3.0, 4.0][rank])}
    if rank == 0:
        parts["l2_norm/grad/v"] = torch.tensor(2.0)
    found = of_full.dist_reduce_metrics(of_full.pre_reduce_metrics(parts))
    assert {name: value.item() for name, value in found.items()} == {"l2_norm/grad/v": 2.0, "l2_norm/grad/w": 5.0}


@pytest.mark.slow
def test_sharded_on_two_ranks(two_ranks: Ranks) -> None:
    two_ranks.run(sharded)
