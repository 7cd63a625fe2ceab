"""FreeOutputs: outputs are released before the backward pass, and metrics are still correct."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch import nn

from composer import Callback
from composer.callbacks import FreeOutputs
from tests.callbacks.cases import Case, run_with
from tests.common import classifier, labeled_data, weights

CASE = Case(make=lambda folder: FreeOutputs())


class Watch(Callback):
    """Records whether the outputs are alive when the backward pass begins."""

    def __init__(self) -> None:
        self.outputs: Any = None
        self.alive: list[bool] = []

    def after_forward(self, state, logger):
        self.outputs = weakref.ref(state.outputs)

    def before_backward(self, state, logger):
        self.alive.append(self.outputs() is not None)


class Shifted(nn.Module):
    """A linear layer with outputs that the loss does not keep."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        return self.linear(x) + 1


@pytest.mark.parametrize("callbacks", [[], [FreeOutputs()]], ids=["without", "with"])
@pytest.mark.parametrize("more", [{}, {"device_train_microbatch_size": 1}])
def test_outputs_do_not_live_through_the_backward_pass(callbacks, more) -> None:
    model = classifier()
    model.module = Shifted()
    run = run_with(*callbacks, watch := Watch(), model=model, **more)
    run.trainer.fit()
    assert watch.alive == [not callbacks] * (8 if more else 4)


@pytest.mark.parametrize("more", [{}, {"device_train_microbatch_size": 1}, {"precision": "amp_bf16"}])
def test_metrics_and_training_stay_the_same(more) -> None:
    data = labeled_data(6, 8)
    plain, freed = run_with(data=data, **more), run_with(FreeOutputs(), data=data, **more)
    for run in (plain, freed):
        run.trainer.fit()
    name = "metrics/train/MulticlassAccuracy"
    assert freed.values(name) == plain.values(name)
    assert 0 < freed.values(name)[-1] < 1
    assert torch.equal(weights(freed.trainer), weights(plain.trainer))


def test_the_second_forward_pass_runs_at_the_precision_of_the_first() -> None:
    seen: list[torch.dtype] = []
    model = classifier()
    model.module.register_forward_hook(lambda module, inputs, outputs: seen.append(outputs.dtype))
    run_with(FreeOutputs(), model=model, precision="amp_bf16").trainer.fit()
    assert seen == [torch.bfloat16] * 8
