"""Default behavior of a strategy."""

from __future__ import annotations

import pytest
import torch

from composer import State
from composer.devices import DeviceCPU
from composer.parallel import SingleProcess


def test_single_process_matches_a_plain_loop() -> None:
    strategy, model = SingleProcess(), torch.nn.Linear(2, 1)
    strategy.setup_device(model, DeviceCPU())
    strategy.prepare(State(model=model))
    assert strategy.module is None
    assert not strategy.has_collectives_per_microbatch
    with strategy.accumulate(is_last=False):
        loss = model(torch.ones(3, 2)).sum()
    strategy.backward(loss)
    strategy.reduce()
    assert model.weight.grad is not None
    assert model.weight.grad.tolist() == [[3.0, 3.0]]
    strategy.close()


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")  # torch warns once in a process
def test_gradients_can_be_differentiable() -> None:
    weight = torch.tensor(3.0, requires_grad=True)
    SingleProcess().backward(weight**3, create_graph=True)
    assert weight.grad is not None
    assert weight.grad.requires_grad
    weight.grad = None  # or the graph and the gradient hold each other
