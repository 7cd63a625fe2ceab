from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD

from composer.algorithms import GyroDropout, apply_gyro_dropout
from composer.nn import GyroDropoutLayer
from composer.warnings import NoEffectWarning
from tests import loop
from tests.algorithms.cases import Case, make_model, weights


def _by_hand(batches):
    model = apply_gyro_dropout(make_model(), len(batches), 1, p=0.3, sigma=4, tau=2)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
    return weights(model)


CASE = Case(
    make=lambda: GyroDropout(p=0.3, sigma=4, tau=2),
    by_hand=_by_hand,
    neutral=None,
    why_not_neutral="it replaces dropout; with p = 0 it still differs in its saved state",
    graphs=2,  # the masks are made in the first pass
)


def test_period_is_that_of_the_paper():
    model = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Dropout(0.2)))
    apply_gyro_dropout(model, iters_per_epoch=196, max_epoch=100, p=0.5, sigma=256, tau=16)
    assert [repr(layer) for layer in (model[0], model[1][0])] == [
        "GyroDropoutLayer(p=0.5, sigma=256, tau=16, period=1216)"  # floor(19600 / 256) * 16
    ] * 2
    assert apply_gyro_dropout(nn.Sequential(nn.Dropout()), 1, 1)[0].period == 1


@pytest.mark.parametrize(
    ("max_duration", "length", "microbatches", "period"),
    [("64ba", None, 1, 32), ("4ep", 16, 1, 32), ("4ep", 16, 2, 64), ("640sp", 16, 1, 32)],
)
def test_max_duration_in_any_unit(max_duration, length, microbatches, period):
    model = make_model()
    engine = loop.start(model, [GyroDropout(sigma=4, tau=2)], max_duration=max_duration)
    state = engine.state
    if length is not None:
        data = torch.utils.data.TensorDataset(torch.zeros(160, 2))
        state.set_dataloader(torch.utils.data.DataLoader(data, batch_size=10), "train")
        state.device_train_microbatch_size = 10 // microbatches
    engine.run_event("fit_start")
    layer = next(module for module in model.modules() if isinstance(module, GyroDropoutLayer))
    assert layer.period == period


def test_unknown_duration():
    engine = loop.start(make_model(), [GyroDropout()], max_duration="1h")
    with pytest.raises(ValueError, match="the number of batches"):
        engine.run_event("fit_start")


def test_model_without_dropout():
    with pytest.warns(NoEffectWarning, match=r"no nn\.Dropout"):
        apply_gyro_dropout(nn.Linear(1, 1), 10, 10)
    with pytest.warns(NoEffectWarning):
        engine = loop.start(nn.Linear(1, 1), [GyroDropout()], max_duration="1h")
    engine.run_event("fit_start")


def test_required_on_load():
    assert GyroDropout.required_on_load()


@pytest.mark.parametrize("argument", [{"p": 1.0}, {"tau": 0}, {"sigma": 8}], ids=str)
def test_wrong_arguments(argument):
    with pytest.raises(ValueError, match=next(iter(argument))):
        GyroDropout(**argument)
    with pytest.raises(ValueError, match="iters_per_epoch"):
        apply_gyro_dropout(make_model(), 0, 1)
