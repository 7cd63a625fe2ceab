from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW

from composer.algorithms import LayerFreezing, freeze_layers
from composer.warnings import NoEffectWarning
from tests import loop
from tests.algorithms.cases import Case, make_batches, make_model, same, weights
from tests.common import TwoLayers, trainer_of


def _make():
    return LayerFreezing(freeze_start=0.25, freeze_level=0.8, update_interval="2ba")


def _by_hand(batches):
    model = make_model()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number, batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
        if number % 2 == 0:
            freeze_layers(model, optimizer, number / len(batches), 0.25, 0.8)
    return weights(model)


CASE = Case(make=_make, by_hand=_by_hand, neutral=lambda: LayerFreezing(freeze_level=0.0), graphs=2)


def chain(layers=5):
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))


def trains(model):
    return [layer.weight.requires_grad for layer in model]


def test_closed_form():
    model = chain(5)
    optimizer = SGD(model.parameters(), lr=0.1)
    assert freeze_layers(model, optimizer, 0.5) == (0, 0.0)
    assert freeze_layers(model, optimizer, 0.75) == (2, 0.5)
    assert trains(model) == [False, False, True, True, True]
    assert freeze_layers(model, optimizer, 1.0, freeze_level=0.8) == (3, 0.8)
    assert freeze_layers(model, optimizer, 1.0) == (4, 1.0)
    assert trains(model) == [False, False, False, False, True]  # never the last
    assert freeze_layers(model, optimizer, 1.0, freeze_start=1.0) == (0, 0.0)


@given(
    number=st.integers(1, 12),
    elapsed=st.floats(0, 1),
    start=st.floats(0, 1),
    level=st.floats(0, 1),
)
def test_frozen_share_equals_the_schedule(number, elapsed, start, level):
    model = nn.Sequential(*(nn.PReLU() for _ in range(number)))
    depth, fraction = freeze_layers(model, SGD(model.parameters(), lr=0.1), elapsed, start, level)
    expected = level * (elapsed - start) / (1 - start) if elapsed > start else 0.0
    assert fraction == pytest.approx(expected)
    assert sum(not trained for trained in trains(model)) == depth < max(number, 1)
    assert depth <= fraction * (number - 1) + 1e-6 < depth + 1 + 1e-6


def test_share_of_a_hundred_layers_is_exact():
    model = nn.Sequential(*(nn.PReLU() for _ in range(101)))
    assert freeze_layers(model, [], 1.0, 0.0, 0.29)[0] == 29


def test_backward_stops_at_the_frozen_layers():
    model = chain(4)
    optimizer = SGD(model.parameters(), lr=0.1)
    freeze_layers(model, optimizer, 0.75, freeze_start=0.0)
    kept, x = [], torch.randn(2, 4)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        hidden = model[:2](x)
        assert not hidden.requires_grad
        assert not kept  # no activation is held for a backward pass
        model[2:](hidden).sum().backward()
    assert [layer.weight.grad is None for layer in model] == [True, True, False, False]


def test_memory_of_gradients_and_moments_is_freed():
    model = chain(3)
    optimizer = AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    freeze_layers(model, [optimizer], 0.75)
    assert model[0].weight.grad is None
    assert set(map(id, optimizer.state)) == {id(p) for layer in model[1:] for p in layer.parameters()}
    before = weights(model[0])
    optimizer.zero_grad()
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    assert same(weights(model[0]), before)  # no decay either
    other = chain(3)
    fresh = AdamW(other.parameters(), lr=0.1)
    fresh.load_state_dict(optimizer.state_dict())
    assert len(fresh.state) == 4


def test_modules_with_parameters_beside_their_children_are_layers_in_order():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.token = nn.Parameter(torch.zeros(4))
            self.linear = nn.Linear(4, 4)
            self.head = nn.Linear(4, 1)

    model = Block()
    freeze_layers(model, [], 0.5, freeze_start=0.0)
    assert not model.token.requires_grad
    assert model.linear.weight.requires_grad
    freeze_layers(model, [], 1.0)
    assert [p.requires_grad for p in (model.token, model.linear.weight, model.head.weight)] == [False, False, True]


def test_weights_that_the_head_shares_stay():
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    freeze_layers(model, [], 1.0)
    assert model[0].weight.requires_grad
    assert not model[1].weight.requires_grad


def test_epochs():
    model, algorithm = make_model(), LayerFreezing(freeze_start=0.25)
    engine = loop.start(model, [algorithm], max_duration="2ep")
    loop.fit(engine, make_batches(2))
    assert algorithm.state_dict()["layers_frozen"] == 3  # a third of ten layers but the last
    assert not model.net[0].weight.requires_grad
    assert model.net[8].weight.requires_grad


def test_frozen_again_after_loading():
    algorithm = _make()
    loop.fit(loop.start(make_model(), [algorithm]), make_batches())
    fresh = _make()
    fresh.load_state_dict(algorithm.state_dict())
    engine = loop.start(make_model(), [fresh])
    assert engine.state.model.net[0].weight.requires_grad
    engine.run_event("fit_start")
    assert not engine.state.model.net[0].weight.requires_grad


def test_model_of_one_layer():
    with pytest.warns(NoEffectWarning, match="one layer"):
        loop.start(nn.Linear(1, 1), [LayerFreezing()]).run_event("fit_start")


def test_needs_a_maximum():
    engine = loop.start(make_model(), [LayerFreezing()], max_duration=None)
    with pytest.raises(ValueError, match="max_duration"):
        engine.run_event("epoch_end")


@pytest.mark.parametrize(
    "argument", [{"freeze_start": 1.5}, {"freeze_level": -0.1}, {"update_interval": "0ba"}, {"update_interval": "3sp"}]
)
def test_wrong_arguments(argument):
    with pytest.raises(ValueError, match=next(iter(argument))):
        LayerFreezing(**argument)


def test_wrong_duration():
    with pytest.raises(ValueError, match="current_duration"):
        freeze_layers(chain(), [], 1.5)


def test_lbfgs_is_refused():
    model = TwoLayers()
    optimizer = torch.optim.LBFGS(model.parameters())
    trainer = trainer_of(model, optimizers=optimizer, algorithms=LayerFreezing())
    with pytest.raises(ValueError, match="LayerFreezing cannot freeze weights of LBFGS"):
        trainer.fit()


@pytest.mark.parametrize(
    "arguments", [{"freeze_level": 0}, {"freeze_start": 1}, {"freeze_level": 0.5}], ids=["off", "never", "too few"]
)
def test_lbfgs_trains_if_no_layer_will_be_frozen(arguments):
    def trained(**more):
        model = TwoLayers()
        trainer = trainer_of(model, optimizers=torch.optim.LBFGS(model.parameters()), max_duration="2ep", **more)
        trainer.fit()
        return nn.utils.parameters_to_vector(model.parameters())

    torch.manual_seed(0)
    expected = trained()
    torch.manual_seed(0)
    assert torch.equal(trained(algorithms=LayerFreezing(**arguments)), expected)
