from __future__ import annotations

import pytest
import torch
from torch import nn

from composer.algorithms import BlurPool, apply_blurpool
from composer.algorithms.blurpool import BlurConv2d, BlurMaxPool2d
from composer.core.engine import Engine
from composer.core.logger import LoggerDestination
from composer.core.state import State
from composer.warnings import NoEffectWarning
from tests.algorithms.cases import Case, make_model, weights


def _by_hand(batches):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    apply_blurpool(model, optimizers=optimizer)
    for batch in batches:
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
    return weights(model)


CASE = Case(
    make=BlurPool,
    by_hand=_by_hand,
    neutral=lambda: BlurPool(replace_maxpools=False, min_channels=10**6),
)


def model():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2),  # too few channels
        nn.Conv2d(16, 16, 3, padding=1),  # no stride
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.MaxPool2d(3, stride=1, padding=1),  # leaves out no pixel
        nn.MaxPool2d(2),
        nn.MaxPool2d(2, return_indices=True),  # indices of a blurred maximum would mean nothing
        nn.Conv2d(32, 32, 1, stride=(1, 2)),
    )


def classes(module):
    return [type(layer).__name__ for layer in module]


def test_layers_that_leave_out_pixels_are_replaced():
    net = model()
    parameters = {id(p) for p in net.parameters()}
    assert apply_blurpool(net) is net
    assert classes(net) == [
        "Conv2d",
        "Conv2d",
        "BlurConv2d",
        "MaxPool2d",
        "BlurMaxPool2d",
        "MaxPool2d",
        "BlurConv2d",
    ]
    assert {id(p) for p in net.parameters()} == parameters


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"replace_convs": False}, (0, 1)),
        ({"replace_maxpools": False}, (2, 0)),
        ({"min_channels": 3}, (3, 1)),
        ({"min_channels": 17}, (1, 1)),
        ({"blur_first": False}, (2, 1)),
    ],
)
def test_choice_of_layers(arguments, expected):
    net = apply_blurpool(model(), **arguments)
    assert (classes(net).count("BlurConv2d"), classes(net).count("BlurMaxPool2d")) == expected
    assert all(layer.blur_first == arguments.get("blur_first", True) for layer in net if isinstance(layer, BlurConv2d))


def test_shapes_stay():
    net = model()
    net[5] = nn.Identity()
    x = torch.randn(2, 3, 32, 32)
    shape = net(x).shape
    assert apply_blurpool(net)(x).shape == shape


def test_second_time_changes_nothing_and_says_so():
    net = apply_blurpool(model())
    layers = list(net)
    with pytest.warns(NoEffectWarning, match="at least 16 input channels, and no MaxPool2d"):
        apply_blurpool(net)
    assert all(new is old for new, old in zip(net, layers, strict=True))
    assert isinstance(net[2].conv, nn.Conv2d)


def test_optimizers_go_on():
    net = model()[:4]
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.randn(2, 3, 16, 16)).sum().backward()
    optimizer.step()
    held = [id(p) for p in optimizer.param_groups[0]["params"]]
    states = {p: optimizer.state[p] for p in net.parameters()}
    apply_blurpool(net, optimizers=optimizer)
    assert [id(p) for p in optimizer.param_groups[0]["params"]] == held
    assert all(optimizer.state[p] is states[p] for p in net.parameters())


def test_wrong_arguments():
    with pytest.raises(ValueError, match="both False"):
        BlurPool(replace_convs=False, replace_maxpools=False)
    with pytest.raises(ValueError, match="both False"):
        apply_blurpool(model(), replace_convs=False, replace_maxpools=False)
    with pytest.raises(ValueError, match="min_channels"):
        BlurPool(min_channels=-1)


def test_logs_how_many_layers_there_are():
    class Notes(LoggerDestination):
        def __init__(self):
            self.hparams = {}

        def log_hyperparameters(self, hyperparameters):
            self.hparams.update(hyperparameters)

    notes = Notes()
    Engine(State(model=model()), algorithms=[BlurPool()], callbacks=[notes]).run_event("init")
    assert notes.hparams == {"blurpool/num_blurpool_layers": 1, "blurpool/num_blurconv_layers": 2}
    assert BlurPool.required_on_load()


def test_less_aliasing():
    """The purpose of the method: the output changes less when the image moves by a pixel."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, 2, 1))
    x = torch.randn(8, 1, 32, 32)

    def change():
        with torch.no_grad():
            out, moved = net(x), net(x.roll(1, -1))
        inner = (slice(None), slice(None), slice(2, -2), slice(2, -2))
        return ((out - moved)[inner].norm() / out[inner].norm()).item()

    before = change()
    apply_blurpool(net)
    assert change() < 0.8 * before


def test_names_are_also_in_the_module_of_the_method():
    assert BlurMaxPool2d.__module__ == BlurConv2d.__module__ == "composer.nn.blurpool"
