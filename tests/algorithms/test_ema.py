from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer.algorithms import EMA, compute_ema
from composer.algorithms._weight_averaging import weights_of
from composer.core.replicas import Replicas
from composer.core.time import Time
from composer.core.traits import Traits
from tests import loop
from tests.algorithms.cases import Case, make_batches, make_model, same, weights


def _make(**arguments):
    return EMA(**{"half_life": "2ba", **arguments})


def _by_hand(batches):
    model = make_model()
    ema_model = None
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
        if ema_model is None:
            ema_model = copy.deepcopy(model)
        else:
            compute_ema(model, ema_model, smoothing=2**-0.5)
    return weights(ema_model)


def _averages(model, algorithm):
    return weights(algorithm.get_ema_model(copy.deepcopy(model)))


CASE = Case(make=_make, by_hand=_by_hand, neutral=_make, outcome=_averages)


def linear(value, **kwargs):
    return nn.init.constant_((layer := nn.Linear(1, 1, bias=False, **kwargs)).weight, value) is None or layer


def test_closed_form():
    model, ema_model = linear(1.0), linear(0.0)
    for n in range(1, 6):
        compute_ema(model, ema_model, smoothing=0.75)
        assert ema_model.weight.item() == pytest.approx(1 - 0.75**n)
    compute_ema(model, ema_model, smoothing=1.0)
    assert ema_model.weight.item() == pytest.approx(1 - 0.75**5)
    compute_ema(model, ema_model, smoothing=0.0)
    assert ema_model.weight.item() == 1.0


@given(half_life=st.integers(1, 40), interval=st.integers(1, 4))
def test_distance_halves_in_a_half_life(half_life, interval):
    half_life *= interval
    decay = EMA(half_life=Time(half_life, "ba"), update_interval=Time(interval, "ba")).decay
    model, ema_model = linear(3.0, dtype=torch.float64), linear(1.0, dtype=torch.float64)
    for _ in range(half_life // interval):
        compute_ema(model, ema_model, decay)
    assert ema_model.weight.item() == pytest.approx(2.0)


def test_buffers_and_counters():
    model, ema_model = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    model.running_mean.fill_(4.0)
    model.num_batches_tracked.fill_(7)
    compute_ema(model, ema_model, smoothing=0.5)
    assert torch.equal(ema_model.running_mean, torch.full((3,), 2.0))
    assert ema_model.num_batches_tracked.item() == 7


def test_average_of_half_precision_weights_does_not_stall():
    model, ema_model = linear(1.0, dtype=torch.bfloat16), linear(0.0)
    for _ in range(1000):
        compute_ema(model, ema_model, smoothing=0.999)
    assert ema_model.weight.item() == pytest.approx(1 - math.exp(-1), abs=1e-3)
    # The class does so automatically.
    algorithm = EMA(half_life=None, smoothing=0.999)
    engine = loop.start(model, [algorithm], max_duration="5ba")
    for _ in range(2):
        tick(engine)
    assert algorithm._averages["weight"].dtype == torch.float32
    assert algorithm.get_ema_model(model).weight.dtype == torch.bfloat16


def test_models_that_do_not_fit():
    with pytest.raises(ValueError, match=r"1 name missing in one of them.*bias"):
        compute_ema(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    with pytest.raises(ValueError, match="different shape, such as 'weight'"):
        compute_ema(nn.Linear(2, 2, bias=False), nn.Linear(3, 2, bias=False))
    with pytest.raises(ValueError, match="smoothing"):
        compute_ema(nn.Linear(2, 2), nn.Linear(2, 2), smoothing=2)


def tick(engine):
    """One batch without effect."""
    engine.run_event("batch_start")
    engine.state.timestamp = engine.state.timestamp.to_next_batch(samples=1)
    engine.run_event("batch_end")


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        # Weights 1, 2, 3 ... at the end of batches 1, 2, 3 ...; the average starts as a copy.
        ({"half_life": "1ba"}, [1, 1.5, 2.25, 3.125, 4.0625, 5.03125]),
        ({"half_life": "2ba", "update_interval": "2ba"}, [1, 1.5, 1.5, 2.75, 2.75, 4.375]),
        ({"half_life": None, "smoothing": 0.5}, [1, 1.5, 2.25, 3.125, 4.0625, 5.03125]),
        ({"half_life": None, "smoothing": 0.5, "update_interval": "3ba"}, [1, 1, 2, 2, 2, 4]),
        ({"half_life": "1ba", "ema_start": "3ba"}, [None, None, 3, 3.5, 4.25, 5.125]),
        ({"half_life": "1ba", "ema_start": "0.5dur"}, [None, None, 3, 3.5, 4.25, 5.125]),
        ({"half_life": "1ba", "ema_start": "1dur"}, [None, None, None, None, None, 6]),
    ],
)
def test_updates_come_when_they_are_due(arguments, values):
    model, algorithm = linear(0.0), EMA(**arguments)
    engine = loop.start(model, [algorithm], max_duration="6ba")
    engine.run_event("fit_start")
    engine.run_event("epoch_start")
    for number, value in enumerate(values, start=1):
        nn.init.constant_(model.weight, number)
        tick(engine)
        assert algorithm.ema_started == (value is not None)
        if value is not None:
            assert algorithm._averages["weight"].item() == pytest.approx(value)
    assert model.weight.item() == 6


def test_epochs():
    model, algorithm = linear(1.0), EMA(half_life="1ep")
    engine = loop.start(model, [algorithm], max_duration="3ep")
    for number in (1, 2):
        nn.init.constant_(model.weight, number)
        tick(engine)
        engine.state.timestamp = engine.state.timestamp.to_next_epoch()
        engine.run_event("epoch_end")
    assert algorithm._averages["weight"].item() == 1.5


def test_evaluation_sees_the_average_in_the_same_parameters():
    seen = []

    class Watch(loop.Algorithm):
        __traits__ = Traits(slot=4)

        def eval_start(self, state, logger):
            seen.append(weights(state.model))

    model, algorithm = make_model(), _make()
    parameters = list(model.parameters())
    engine = loop.start(model, [algorithm, Watch()])
    batches = make_batches()
    loop.fit(engine, batches, evaluate=batches[:1])
    plain = loop.fit(loop.start(make_model()), batches)
    assert same(weights(model), weights(plain.state.model))  # training does not notice
    assert all(new is old for new, old in zip(model.parameters(), parameters, strict=True))
    assert same(seen[-1], algorithm._averages | {})
    assert not same(seen[-1], weights(model))
    assert not algorithm.ema_weights_active


@pytest.mark.parametrize("end", ["batch_start", "fit_start", "eval_end", "predict_end"])
@pytest.mark.parametrize("begin", ["eval_start", "predict_start"])
def test_weights_of_training_come_back_even_after_a_failed_evaluation(begin, end):
    algorithm = _make()
    engine = loop.fit(loop.start(make_model(), [algorithm]), make_batches())
    before = weights(engine.state.model)
    engine.run_event(begin)
    engine.run_event(begin)  # a second beginning, since the first evaluation failed
    assert algorithm.ema_weights_active
    assert not same(weights(engine.state.model), before)
    engine.run_event(end)
    assert same(weights(engine.state.model), before)
    assert not algorithm.ema_weights_active


def test_models_by_request():
    algorithm = _make()
    engine = loop.start(make_model(), [algorithm])
    model = engine.state.model
    with pytest.raises(ValueError, match="no averages yet"):
        algorithm.get_ema_model(model)
    with pytest.raises(ValueError, match="not in the trained model"):
        algorithm.get_training_model(model)
    loop.fit(engine, make_batches())
    trained, averages = weights(model), dict(algorithm._averages)
    other = algorithm.get_ema_model(make_model())
    assert same(weights(other), averages)
    assert same(weights(model), trained)
    assert algorithm.get_ema_model(model) is model
    assert same(weights(model), averages)
    with pytest.raises(ValueError, match="already"):
        algorithm.get_ema_model(model)
    assert same(weights(algorithm.get_training_model(make_model())), trained)
    assert algorithm.get_training_model(model) is model
    assert same(weights(model), trained)


def test_saved_while_the_averages_are_in_the_model():
    algorithm = _make()
    engine = loop.fit(loop.start(make_model(), [algorithm]), make_batches())
    trained = weights(engine.state.model)
    engine.run_event("eval_start")
    saved, model = copy.deepcopy(algorithm.state_dict()), copy.deepcopy(engine.state.model.state_dict())
    resumed = _make()
    other = loop.start(make_model(), [resumed])
    other.state.model.load_state_dict(model)
    resumed.load_state_dict(saved)
    other.run_event("after_load")
    other.run_event("fit_start")
    assert same(weights(other.state.model), trained)
    assert same(dict(resumed._averages), dict(algorithm._averages))


def test_weights_that_replicas_share_are_not_saved_as_those_of_training():
    algorithm = _make()
    engine = loop.fit(loop.start(make_model(), [algorithm]), make_batches())
    model, trained = engine.state.model, weights(engine.state.model)
    shared = [(weight, torch.zeros_like(weight)) for weight in weights_of(model).values()]
    engine.state.replicas = replicas = Replicas(synchronized=shared)
    with pytest.raises(KeyError), replicas.evaluation_weights():
        engine.run_event("eval_start")
        assert same(weights(model), dict(algorithm._averages))
        assert algorithm.state_dict()["training"] is None
        raise KeyError("of an evaluation")
    assert not algorithm.ema_weights_active
    engine.run_event("batch_start")
    assert same(weights(model), trained)


def test_layers_replaced_later_start_anew():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2, bias=False))
    algorithm = EMA(half_life="1ba")
    engine = loop.start(model, [algorithm], max_duration="9ba")
    engine.run_event("epoch_start")
    tick(engine)
    model[1] = nn.Linear(2, 3)
    engine.run_event("epoch_start")
    tick(engine)
    assert set(algorithm._averages) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert torch.equal(algorithm._averages["1.weight"], model[1].weight)


def test_shared_weights_are_averaged_once():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    other = copy.deepcopy(model)
    nn.init.zeros_(other[0].weight)
    nn.init.ones_(model[0].weight)
    compute_ema(model, other, 0.5)
    assert torch.equal(other[1].weight, torch.full((2, 2), 0.5))


def test_compiled_model_has_the_same_names():
    model = linear(1.0)
    algorithm = EMA(half_life="1ba")
    engine = loop.start(torch.compile(model, backend="eager"), [algorithm])
    tick(engine)
    assert list(algorithm._averages) == ["weight"]


def test_no_python_loop_over_weights_in_a_step(monkeypatch):
    calls = []
    algorithm = _make()
    engine = loop.start(make_model(), [algorithm])
    tick(engine)
    original = torch._foreach_lerp_
    monkeypatch.setattr(torch, "_foreach_lerp_", lambda *a: (calls.append(len(a[0])), original(*a)))
    monkeypatch.setattr(nn.Module, "state_dict", None)  # nothing is collected again
    tick(engine)
    assert calls == [9]  # seven parameters and two running statistics, in one call


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"smoothing": 0.9}, "half_life=None"),
        ({"half_life": None}, "either half_life or smoothing"),
        ({"half_life": "1000sp"}, "half_life must be in batches or epochs"),
        ({"half_life": "0ba"}, "half_life"),
        ({"update_interval": "0ba"}, "update_interval"),
        ({"half_life": "10ep", "update_interval": "10ba"}, "same unit"),
        ({"half_life": None, "smoothing": 1.5}, "smoothing"),
        ({"half_life": "10 bananas"}, "bananas"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        EMA(**arguments)


def test_start_as_a_share_needs_a_maximum():
    engine = loop.start(linear(1.0), [EMA(ema_start="0.5dur")], max_duration=None)
    with pytest.raises(ValueError, match="max_duration"):
        tick(engine)
    tick(loop.start(linear(1.0), [EMA()], max_duration=None))
