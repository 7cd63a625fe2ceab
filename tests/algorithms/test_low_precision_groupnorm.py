from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.algorithms import LowPrecisionGroupNorm, apply_low_precision_groupnorm
from composer.core.event import Event
from composer.core.model import ComposerModel
from composer.nn import LPGroupNorm
from composer.precision import Precision
from composer.warnings import NoEffectWarning
from tests import loop
from tests.algorithms.cases import Case, by_surgery
from tests.on_device import place


class Net(ComposerModel):
    """Classifies images, with a norm in the middle."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, 8, 3, stride=2),
            nn.GroupNorm(2, 8),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        )

    def forward(self, batch):
        return self.net(batch[0])

    def loss(self, outputs, batch):
        return nn.functional.cross_entropy(outputs, batch[1])


def make_net():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return place(Net())


CASE = Case(
    make=LowPrecisionGroupNorm,
    by_hand=by_surgery(
        lambda model, optimizer: apply_low_precision_groupnorm(model, "amp_bf16", optimizer),
        make_net,
        precision="amp_bf16",
    ),
    neutral=None,
    why_not_neutral="it has no setting",
    model=make_net,
    precision="amp_bf16",
)


def test_norms_are_lowered_and_weights_stay():
    class Own(nn.GroupNorm):
        def forward(self, input):
            return input

    net = nn.Sequential(nn.GroupNorm(2, 8), nn.GroupNorm(4, 8), Own(2, 8), nn.BatchNorm1d(8))
    parameters, names = [id(p) for p in net.parameters()], list(net.state_dict())
    assert apply_low_precision_groupnorm(net) is net
    assert [type(layer).__name__ for layer in net] == ["LPGroupNorm", "LPGroupNorm", "Own", "BatchNorm1d"]
    assert [id(p) for p in net.parameters()] == parameters
    assert list(net.state_dict()) == names
    with pytest.warns(NoEffectWarning, match="no GroupNorm of torch that is not replaced already"):
        apply_low_precision_groupnorm(net)


@pytest.mark.parametrize("precision", ["amp_bf16", "amp_fp16", Precision.AMP_FP8, None])
def test_precisions_that_have_a_short_format(precision):
    net = apply_low_precision_groupnorm(nn.Sequential(nn.GroupNorm(2, 8)), precision)
    assert isinstance(net[0], LPGroupNorm)


def test_fp32_changes_nothing_and_says_so():
    with pytest.warns(NoEffectWarning, match="precision is fp32"):
        net = apply_low_precision_groupnorm(nn.Sequential(nn.GroupNorm(2, 8)), "fp32")
    assert type(net[0]) is nn.GroupNorm
    with pytest.warns(NoEffectWarning, match="precision is fp32"):
        loop.start(make_net(), [LowPrecisionGroupNorm()])


@pytest.mark.parametrize("event", ["init", "before_load", "after_load"])
def test_event(event):
    for apply_at in (event, Event(event), event.upper()):
        algorithm = LowPrecisionGroupNorm(apply_at=apply_at)
        assert [e.value for e in Event if algorithm.__listens__(e)] == [event]
        assert repr(algorithm) == f"LowPrecisionGroupNorm(apply_at={event!r})"
    engine = loop.start(make_net(), [algorithm], precision="amp_bf16")
    assert sum(isinstance(module, LPGroupNorm) for module in engine.state.model.modules()) == 1


def test_wrong_event():
    with pytest.raises(ValueError, match="apply_at must be one of"):
        LowPrecisionGroupNorm(apply_at=Event.FIT_START)
    with pytest.raises(ValueError, match="Did you mean 'init'"):
        LowPrecisionGroupNorm(apply_at="innit")
    assert LowPrecisionGroupNorm.required_on_load()
