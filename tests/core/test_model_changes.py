"""Describe what algorithms change in a model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from composer import Algorithm, Engine, Event, State
from composer.algorithms import BlurPool, ChannelsLast, LabelSmoothing, NoOpModel, SqueezeExcite, WeightStandardization
from composer.core.model_changes import ModelOutline, describe_changes


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.MaxPool2d(2), nn.Sequential(nn.Conv2d(32, 64, 3, 2), nn.Conv2d(64, 64, 3)), nn.ReLU()
    )


def freeze(model: nn.Sequential) -> None:
    model[0].requires_grad_(False)


def replace(model: nn.Sequential) -> None:
    model[3] = nn.GELU()


def swap(model: nn.Sequential) -> None:
    model[2] = nn.Sequential(*(nn.Conv2d(32, 64, 3, 2), nn.Conv2d(64, 64, 3)))


def grow(model: nn.Sequential) -> None:
    model.append(nn.Linear(10, 10))


def shrink(model: nn.Sequential) -> None:
    del model[3]


def override(model: nn.Sequential) -> None:
    model[3].forward = lambda x: x  # type: ignore[method-assign]


CASES: list[tuple[Callable[[nn.Sequential], object], str]] = [
    (lambda model: None, ""),
    (lambda model: model.train(False), ""),
    (replace, "replaced 1 ReLU by GELU"),
    (swap, "replaced 1 Sequential"),
    (grow, "added 1 Linear, +110 parameters"),
    (shrink, "removed 1 ReLU"),
    (freeze, "froze 896 parameters"),
    (override, "changed the forward of 1 ReLU"),
    (lambda model: model[3].register_forward_hook(lambda *_: None), "put hooks on 1 ReLU"),
    (lambda model: model.to(torch.bfloat16), "cast 56.3K parameters to bfloat16"),
    (lambda model: model.to(memory_format=torch.channels_last), "stored 3 weights as channels_last"),
]


@pytest.mark.parametrize(("change", "told"), CASES)
def test_changes(change, told: str) -> None:
    model = net()
    before = ModelOutline(model)
    change(model)
    assert describe_changes(before, ModelOutline(model)) == told


@pytest.mark.parametrize("fit_start", [False, True])
def test_engine_records_changes_of_each_algorithm(fit_start: bool) -> None:
    class Mine(Algorithm):
        def match(self, event, state) -> bool:
            return event is (Event.FIT_START if fit_start else Event.INIT)

        def apply(self, event, state, logger) -> None:
            state.model.append(nn.Dropout())

    algorithms = [BlurPool(), SqueezeExcite(min_channels=64), Mine(), LabelSmoothing(0.1)]
    engine = Engine(State(model=net()), algorithms=algorithms)
    engine.run_event(Event.INIT)
    engine.run_event(Event.FIT_START)
    found = dict(engine.model_changes)
    assert found == {
        "BlurPool": "replaced 1 MaxPool2d by BlurMaxPool2d, 1 Conv2d by BlurConv2d",
        "SqueezeExcite": "replaced 1 Conv2d by SqueezeExciteConv2d, +8.2K parameters",
        "Mine": "added 1 Dropout",
    }
    engine.run_event(Event.FIT_START)  # of a second fit; what was done before it is still so
    assert set(found) <= set(dict(engine.model_changes))


def test_replaced_model_and_classes_changed_in_place() -> None:
    from tests.common import classifier

    state = State(model=classifier(), optimizers=[])
    engine = Engine(state, algorithms=[NoOpModel()])
    engine.run_event(Event.INIT)
    (change,) = engine.model_changes
    assert change[1].startswith("replaced 1 ComposerClassifier by NoOpModelClass")
    engine = Engine(State(model=net()), algorithms=[WeightStandardization(), ChannelsLast()])
    engine.run_event(Event.INIT)
    assert dict(engine.model_changes)["WeightStandardization"] == "turned 3 Conv2d into ParametrizedConv2d"
