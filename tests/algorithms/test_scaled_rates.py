"""Rates that BatchSizeWarmup(lr_scaling=) scales, of several optimizers that get parameter groups within a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim import Adam

from composer import State
from composer.algorithms import BatchSizeWarmup
from composer.algorithms._scaled_rates import ScaledRates
from composer.optim import ConstantScheduler
from tests.common import At, TwoLayers, regression_data, trainer_of


def rate_of(value: float, tensor: bool) -> Any:
    return torch.tensor(value) if tensor else value


def optimizers_of(model: TwoLayers, *, tensor: bool = False) -> list[Adam]:
    return [
        Adam([model.first.weight], lr=rate_of(0.1, tensor)),
        Adam(model.second.parameters(), lr=rate_of(0.2, tensor)),
    ]


def rates(optimizers: Any) -> list[list[Any]]:
    return [[pytest.approx(float(group["lr"])) for group in optimizer.param_groups] for optimizer in optimizers]


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("event", ["after_dataloader", "batch_start", "before_forward", "after_train_batch"])
def test_a_group_that_is_added_in_a_step(event: str, scheduled: bool, tensor: bool) -> None:
    def add(state: State) -> None:
        if state.timestamp.batch == 2:
            optimizers[0].add_param_group({"params": [model.first.bias], "lr": rate_of(0.5, tensor)})

    model, used = TwoLayers(), list[Any]()
    optimizers = optimizers_of(model, tensor=tensor)
    optimizers[1].register_step_pre_hook(lambda *_: used.append(rates(optimizers)))
    trainer_of(
        model,
        regression_data(12),
        optimizers=optimizers,
        algorithms=BatchSizeWarmup({"0ba": 2}, lr_scaling="linear"),
        callbacks=At(event, add),
        schedulers=ConstantScheduler() if scheduled else None,
        max_duration="4ba",
    ).fit()
    first = 0.5 if event == "after_train_batch" else 1.0  # added after the algorithm's last event before the step
    assert used[1:] == [[[0.2], [0.4]], [[0.2, first], [0.4]], [[0.2, 1.0], [0.4]]]
    assert rates(optimizers) == [[0.1, 0.5], [0.2]]


@pytest.mark.parametrize("tensor", [False, True])
def test_a_checkpoint_that_is_saved_in_a_step_in_which_a_group_was_added(tensor: bool) -> None:
    def state_in_step() -> tuple[State, ScaledRates]:
        model, scaled = TwoLayers(), ScaledRates()
        state = State(model=model, optimizers=optimizers_of(model, tensor=tensor))
        scaled.scale(state, 2.0)
        state.optimizers[0].add_param_group({"params": [model.first.bias], "lr": rate_of(0.5, tensor)})
        return state, scaled

    saved = state_in_step()[1].state_dict()
    assert len(saved) == 3
    state, loaded = state_in_step()[0], ScaledRates()
    loaded.load_state_dict(saved)
    assert loaded.state_dict() == saved  # of a checkpoint that is saved before training starts
    loaded.restore(state)
    assert rates(state.optimizers) == [[0.1, 0.5], [0.2]]
    assert loaded.state_dict() == []
