"""Batch normalization in several processes: all evaluate the model that a checkpoint has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from composer import ComposerModel, dist
from composer.algorithms import EMA
from composer.parallel.buffer_sync import sync_buffers
from tests.common import FEATURES, At, regression_data, trainer_of
from tests.parallel.matrix import STRATEGIES, full_tensors
from tests.ranks import Ranks


class Normalized(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))

    def forward(self, batch: Any) -> Tensor:
        return self.net(batch[0])

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        return nn.functional.mse_loss(outputs, batch[1])


def test_single_process_keeps_its_buffers() -> None:
    layer = nn.BatchNorm1d(2)
    layer(torch.randn(4, 2))
    before = layer.running_mean.clone()
    sync_buffers(layer)
    assert torch.equal(layer.running_mean, before)


def evaluated(strategy: str, averaged: bool) -> tuple[list[float], dict[str, Tensor], list[Any]]:
    """Train on other data in each process; return what one is evaluated by, the model then, and its predictions."""
    torch.manual_seed(0)
    model = Normalized()
    seen = At("eval_batch_end", lambda state: state.outputs.flatten().tolist())
    kept = At("eval_batch_end", lambda state: {n: t.clone() for n, t in full_tensors(state.model.state_dict()).items()})
    same = regression_data(1, 3)
    with trainer_of(
        model,
        regression_data(3, 4, seed=dist.get_global_rank()),
        callbacks=[seen, kept],
        algorithms=EMA(half_life="1ba") if averaged else None,
        eval_dataloader=same,
        **STRATEGIES[strategy],
    ) as trainer:
        trainer.fit()
        predictions = trainer.predict(same)
    return seen.found[-1], kept.found[-1], predictions


@pytest.mark.parametrize("averaged", [False, True], ids=["last", "averaged"])
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_all_ranks_evaluate_the_buffers_of_rank_zero(strategy: str, averaged: bool, two_ranks: Ranks) -> None:
    (outputs, model, predictions), (others, other, others_predicted) = two_ranks.run(evaluated, strategy, averaged)
    assert all(torch.equal(value, other[name]) for name, value in model.items())
    assert model["net.1.num_batches_tracked"] == 3
    # On the same data the same, of which the predictions of both ranks are equal.
    assert outputs == others
    assert len(predictions) == len(others_predicted) == 2
    assert torch.equal(predictions[0], predictions[1])
