from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.algorithms import LowPrecisionLayerNorm, apply_low_precision_layernorm
from composer.core.event import Event
from composer.core.model import ComposerModel
from composer.nn import LPLayerNorm
from composer.precision import Precision
from composer.surgery import count_module_instances
from composer.warnings import NoEffectWarning
from tests import loop
from tests.algorithms.cases import Case, by_surgery
from tests.common import trainer_of
from tests.on_device import place


class Net(ComposerModel):
    """Classifies images, with a norm in the middle."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(2, 8, 3, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.LayerNorm(8),
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
    make=LowPrecisionLayerNorm,
    by_hand=by_surgery(
        lambda model, optimizer: apply_low_precision_layernorm(model, "amp_bf16", optimizer),
        make_net,
        precision="amp_bf16",
    ),
    neutral=None,
    why_not_neutral="it has no setting",
    model=make_net,
    precision="amp_bf16",
)


def test_norms_are_lowered_and_weights_stay():
    class Own(nn.LayerNorm):
        def forward(self, input):
            return input

    net = nn.Sequential(nn.LayerNorm(8), nn.RMSNorm(8), Own(8), nn.BatchNorm1d(8))
    parameters, names = [id(p) for p in net.parameters()], list(net.state_dict())
    assert apply_low_precision_layernorm(net) is net
    assert [type(layer).__name__ for layer in net] == ["LPLayerNorm", "LPRMSNorm", "Own", "BatchNorm1d"]
    assert [id(p) for p in net.parameters()] == parameters
    assert list(net.state_dict()) == names
    with pytest.warns(NoEffectWarning, match="no LayerNorm or RMSNorm of torch that is not replaced already"):
        apply_low_precision_layernorm(net)


@pytest.mark.parametrize("precision", ["amp_bf16", "amp_fp16", Precision.AMP_FP8, None])
def test_precisions_that_have_a_short_format(precision):
    net = apply_low_precision_layernorm(nn.Sequential(nn.LayerNorm(8)), precision)
    assert isinstance(net[0], LPLayerNorm)


def test_fp32_changes_nothing_and_says_so():
    with pytest.warns(NoEffectWarning, match="precision is fp32"):
        net = apply_low_precision_layernorm(nn.Sequential(nn.LayerNorm(8)), "fp32")
    assert type(net[0]) is nn.LayerNorm
    with pytest.warns(NoEffectWarning, match="precision is fp32"):
        loop.start(make_net(), [LowPrecisionLayerNorm()])


@pytest.mark.parametrize("event", ["init", "before_load", "after_load"])
def test_event(event):
    for apply_at in (event, Event(event), event.upper()):
        algorithm = LowPrecisionLayerNorm(apply_at=apply_at)
        assert [e.value for e in Event if algorithm.__listens__(e)] == [event]
        assert repr(algorithm) == f"LowPrecisionLayerNorm(apply_at={event!r})"
    engine = loop.start(make_net(), [algorithm], precision="amp_bf16")
    assert sum(isinstance(module, LPLayerNorm) for module in engine.state.model.modules()) == 1


def test_wrong_event():
    with pytest.raises(ValueError, match="apply_at must be one of"):
        LowPrecisionLayerNorm(apply_at=Event.FIT_START)
    with pytest.raises(ValueError, match="Did you mean 'init'"):
        LowPrecisionLayerNorm(apply_at="innit")
    assert LowPrecisionLayerNorm.required_on_load()


def test_the_trainer_tells_the_precision_before_layers_are_replaced():
    model = make_net()
    batches = [(torch.randn(4, 2, 16, 16), torch.randint(4, (4,)))]
    trainer = trainer_of(model, batches, algorithms=LowPrecisionLayerNorm(), precision="amp_bf16")
    assert count_module_instances(trainer.state.model, LPLayerNorm) == 1
