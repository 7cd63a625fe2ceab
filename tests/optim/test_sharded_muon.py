from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.optim import Muon

from composer.optim.sharded_muon import step_sharded

SHAPES = [(6, 4), (3, 8), (1, 5), (5, 1), (4, 4)]


def _stepped(divide, **settings):
    torch.manual_seed(0)
    matrices = [nn.Parameter(divide(torch.randn(shape))) for shape in SHAPES]
    optimizer = Muon(matrices, lr=0.1, weight_decay=0.3, **settings)
    step_sharded(optimizer)
    for _ in range(3):
        for matrix in matrices:
            matrix.grad = divide(torch.randn(matrix.shape))
        gradients = [matrix.grad for matrix in matrices]
        optimizer.step()
        assert all(matrix.grad is gradient for matrix, gradient in zip(matrices, gradients, strict=True))
    values = [*matrices, *(optimizer.state[matrix]["momentum_buffer"] for matrix in matrices)]
    return [(v.full_tensor() if hasattr(v, "full_tensor") else v).detach() for v in values]


def _on_meshes(settings):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("one", "other"))
    found = []
    for part, places in (
        (mesh, [Replicate(), Shard(0)]),
        (mesh, [Shard(0), Shard(1)]),
        (mesh["one"], [Shard(0)]),
        (mesh["other"], [Replicate()]),
    ):

        def divide(whole, part=part, places=places):
            return distribute_tensor(whole, part, places)

        found.append(_stepped(divide, **settings))
    return found


@pytest.mark.parametrize("settings", [{}, {"nesterov": False, "adjust_lr_fn": "match_rms_adamw", "momentum": 0.5}])
def test_steps_are_those_of_whole_matrices(four_ranks, settings):
    expected = _stepped(lambda whole: whole, **settings)
    for meshes in four_ranks.run(_on_meshes, settings):
        for found in meshes:
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_what_is_whole_is_left_to_the_optimizer():
    matrix = nn.Parameter(torch.eye(2))
    optimizer = Muon([matrix], lr=0.1)
    step_sharded(optimizer)
    matrix.grad = torch.eye(2)
    optimizer.step()
    assert (matrix != torch.eye(2)).any()


def test_other_optimizers_are_left_alone():
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    step_sharded(optimizer)
    assert not optimizer._optimizer_step_pre_hooks
