"""The weights of replicas: synchronized ones for evaluations, local ones for training, in the same tensors."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.core.replicas import Replicas


def apart() -> tuple[nn.Linear, Replicas]:
    model = nn.Linear(2, 1)
    return model, Replicas(synchronized=[(one, torch.full_like(one, 7.0)) for one in model.parameters()])


def test_evaluation_swaps_values_and_not_tensors() -> None:
    model, replicas = apart()
    weight, before = model.weight, model.weight.detach().clone()
    with replicas.evaluation_weights():
        assert model.weight is weight
        assert model.weight.eq(7).all()
        assert torch.equal(replicas.local_state(model)["weight"], before)
        with replicas.evaluation_weights():  # an evaluation within a prediction
            assert model.weight.eq(7).all()
        assert model.weight.eq(7).all()
    assert torch.equal(model.weight, before)
    assert torch.equal(replicas.local_state(model)["weight"], before)


def test_weights_are_restored_after_an_exception() -> None:
    model, replicas = apart()
    before = model.bias.detach().clone()
    with pytest.raises(KeyError), replicas.evaluation_weights():
        raise KeyError("of an evaluation")
    assert torch.equal(model.bias, before)


def test_other_swaps_are_undone_first() -> None:
    model, replicas = apart()
    before = model.bias.detach().clone()
    assert not replicas.before_restoring(lambda: pytest.fail("there is no evaluation"))
    with pytest.raises(KeyError), replicas.evaluation_weights():
        assert replicas.before_restoring(lambda: nn.init.constant_(model.bias, 7.0))
        raise KeyError("of an evaluation")
    assert torch.equal(model.bias, before)


def test_nothing_is_swapped_at_a_synchronization() -> None:
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    with Replicas().evaluation_weights():
        assert torch.equal(model.weight, before)
    assert torch.equal(Replicas().synchronized_state(model)["weight"], before)


def test_values_have_the_dtype_of_the_weights() -> None:
    model = nn.Linear(2, 1, bias=False, dtype=torch.bfloat16)
    replicas = Replicas(synchronized=[(model.weight, torch.full((1, 2), 1.001))])
    assert replicas.synchronized_state(model)["weight"].dtype is torch.bfloat16


def test_ranks() -> None:
    assert Replicas(count=2, size=3, index=1).ranks == range(3, 6)
