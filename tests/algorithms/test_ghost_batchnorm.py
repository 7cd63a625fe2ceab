from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.algorithms import GhostBatchNorm, apply_ghost_batchnorm
from composer.warnings import NoEffectWarning
from tests import loop
from tests.algorithms.cases import Case, by_surgery

CASE = Case(
    make=lambda: GhostBatchNorm(ghost_batch_size=2),
    by_hand=by_surgery(lambda model, optimizer: apply_ghost_batchnorm(model, 2, optimizer)),
    neutral=lambda: GhostBatchNorm(ghost_batch_size=6),  # a batch
)


def test_layers_are_replaced_and_weights_stay():
    class Own(nn.BatchNorm2d):
        def forward(self, input):
            return input

    net = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm2d(3), nn.BatchNorm3d(3), nn.SyncBatchNorm(3), Own(3))
    state, parameters = list(net.state_dict()), [id(p) for p in net.parameters()]
    assert apply_ghost_batchnorm(net, 8) is net
    assert [type(layer).__name__ for layer in net] == [
        "GhostBatchNorm1d",
        "GhostBatchNorm2d",
        "GhostBatchNorm3d",
        "SyncBatchNorm",
        "Own",
    ]
    assert list(net.state_dict()) == state
    assert [id(p) for p in net.parameters()] == parameters
    with pytest.warns(NoEffectWarning, match="BatchNorm2d"):
        apply_ghost_batchnorm(net, 8)


def test_small_batches_in_evaluation():
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(3))
    loop.start(model, [GhostBatchNorm(ghost_batch_size=32)])
    assert model.eval()(torch.randn(1, 3)).shape == (1, 3)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="ghost_batch_size"):
        GhostBatchNorm(0)
    with pytest.raises(ValueError, match="ghost_batch_size"):
        apply_ghost_batchnorm(nn.BatchNorm1d(3), -1)
    assert GhostBatchNorm.required_on_load()
