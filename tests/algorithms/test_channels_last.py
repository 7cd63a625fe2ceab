from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.algorithms import ChannelsLast, apply_channels_last
from composer.warnings import NoEffectWarning
from tests import loop
from tests.algorithms.cases import Case, make_batches, make_model, weights


def _by_hand(batches):
    model = apply_channels_last(make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
    return weights(model)


CASE = Case(
    make=ChannelsLast,
    by_hand=_by_hand,
    neutral=None,
    why_not_neutral="It has no setting; other kernels give the same up to rounding, which is tested separately.",
)


def test_weights_change_their_order_and_nothing_else():
    model = make_model()
    parameters, before = list(model.parameters()), weights(model)
    assert apply_channels_last(model) is model
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert all(torch.equal(value, before[name]) for name, value in weights(model).items())
    assert model.net[3].weight.is_contiguous(memory_format=torch.channels_last)
    assert model.net[0](torch.zeros(2, 2, 8, 8)).is_contiguous(memory_format=torch.channels_last)


def test_training_is_the_same_up_to_rounding():
    outcomes = [
        weights(loop.fit(loop.start(make_model(), a), make_batches()).state.model) for a in ([ChannelsLast()], [])
    ]
    for name, value in outcomes[0].items():
        torch.testing.assert_close(value, outcomes[1][name], rtol=1e-4, atol=1e-5)


def test_model_without_convolutions_is_warned_about():
    with pytest.warns(NoEffectWarning, match="4-dimensional"):
        apply_channels_last(nn.Linear(2, 2))
