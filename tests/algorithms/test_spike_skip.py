from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import SGD, AdamW

from composer.algorithms import EMA, GradientClipping, SpikeSkip, is_spike
from tests import loop
from tests.algorithms.cases import Case, make_batches, make_model, same, weights
from tests.on_device import place

INF, NAN = float("inf"), float("nan")


def _by_hand(batches):
    """With a bound so low that half of all norms are spikes."""
    model, history = make_model(), place(torch.full((4, 2), NAN))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        loss = model.loss(model(batch), batch)
        loss.backward()
        norm = torch.nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
        latest = torch.stack([loss.detach(), norm])
        skip = is_spike(latest, history, num_std=1e-3).any()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        if skip:
            for parameter in model.parameters():
                parameter.grad.zero_()
        optimizer.step()
        if skip:
            for parameter, old in zip(model.parameters(), before, strict=True):
                parameter.data.copy_(old)
        history = torch.cat([history[1:], latest.unsqueeze(0)])
    return weights(model)


CASE = Case(make=lambda: SpikeSkip(num_std=1e-3, window=4), by_hand=_by_hand, neutral=lambda: SpikeSkip(num_std=INF))


def test_closed_form():
    history = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])  # mean 3, deviation sqrt(2.5)
    bound = 3 + 2 * 2.5**0.5
    values = torch.tensor([bound - 0.01, bound + 0.01, -100.0, NAN, INF, -INF])
    assert [bool(is_spike(value, history, 2.0)) for value in values] == [False, True, False, True, True, True]


@given(missing=st.integers(0, 8), bad=st.sampled_from([NAN, INF]))
def test_missing_values_do_not_count(missing, bad):
    there = torch.arange(1.0, 9.0)[missing:]
    history = torch.cat([torch.full((missing,), bad), there])
    expected = len(there) >= 4 and there.mean() + 3 * there.std() < 20.0
    assert bool(is_spike(torch.tensor(20.0), history, 3.0)) == bool(expected)
    assert is_spike(torch.tensor(NAN), history, 3.0)


def test_several_values_at_once():
    history = torch.stack([torch.arange(4.0), 10 * torch.arange(4.0)], 1)
    assert is_spike(torch.tensor([10.0, 10.0]), history, 2.0).tolist() == [True, False]


def fit(algorithms, make_optimizer, batches):
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    return loop.fit(loop.start(model, algorithms, optimizer, max_duration="9ba"), batches)


def poisoned(batch, value):
    return (torch.full_like(batch[0], value), batch[1])


def parameters(engine):
    return {name: p.detach().clone() for name, p in engine.state.model.named_parameters()}


OPTIMIZERS = {
    "sgd": (lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1), False),
    "adamw": (lambda p: AdamW(p, lr=0.1), False),
    "fused sgd": (lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, fused=True), True),
    "fused adamw": (lambda p: AdamW(p, lr=0.1, fused=True), True),
}


@pytest.mark.parametrize("optimizer_name", OPTIMIZERS)
@pytest.mark.parametrize("others", [[], [GradientClipping("norm", 1.0)]], ids=["alone", "clipping"])
def test_a_broken_batch_does_not_move_the_weights(optimizer_name, others):
    make, fused = OPTIMIZERS[optimizer_name]
    first, second, third = make_batches(3)
    before = fit([SpikeSkip(), *others], make, [first])
    after = fit([SpikeSkip(), *others], make, [first, poisoned(second, NAN)])
    assert same(parameters(before), parameters(after))
    assert not vars(after.state.optimizers[0]).get("found_inf")
    if fused:  # nothing at all has happened, the moments included
        states = [engine.state.optimizers[0].state_dict()["state"] for engine in (before, after)]
        for place in states[0]:
            for name, value in states[0][place].items():
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(states[1][place][name])), name
    plain = fit(others, make, [first, poisoned(second, NAN)])
    assert any(p.isnan().any() for p in parameters(plain).values())
    going_on = fit([SpikeSkip(), *others], make, [first, poisoned(second, NAN), third])
    assert not same(parameters(after), parameters(going_on))
    assert all(p.isfinite().all() for p in parameters(going_on).values())


def test_other_methods_see_the_weights_that_stay():
    first, second = make_batches(2)
    average = EMA(half_life="1ba")
    engine = fit([SpikeSkip(), average], OPTIMIZERS["sgd"][0], [first, poisoned(second, INF)])
    averages = weights(average.get_ema_model(copy.deepcopy(engine.state.model)))
    assert all(torch.equal(averages[name], value) for name, value in parameters(engine).items())


def test_spike_of_the_norm_is_seen_before_clipping():
    algorithm = SpikeSkip(window=4)
    engine = fit([GradientClipping("norm", 1e-3), algorithm], OPTIMIZERS["sgd"][0], make_batches(2))
    assert (algorithm._history[-2:, 1] > 0.01).all()
    assert engine.state.timestamp.batch == 2


@pytest.mark.parametrize(("watch", "skips"), [("loss", False), ("norm", True), ("both", True)])
def test_watch(watch, skips):
    algorithm = SpikeSkip(window=4, watch=watch)
    algorithm._history = torch.stack([torch.linspace(5.0, 50.0, 4), torch.linspace(1e-5, 2e-5, 4)], 1)
    before = weights(make_model())
    engine = fit([algorithm], OPTIMIZERS["sgd"][0], make_batches(1))
    assert all(torch.equal(before[name], value) for name, value in parameters(engine).items()) == skips


def test_a_level_that_stays_is_accepted():
    algorithm = SpikeSkip(window=8, num_std=2.0)
    levels = [*(1 + 0.01 * torch.randn(8)).tolist(), *[3.0] * 8]
    history, skipped = algorithm._history[:, 0], []
    for level in levels:
        value = torch.tensor(level)
        skipped.append(bool(is_spike(value, history, 2.0)))
        history = torch.cat([history[1:], value.unsqueeze(0)])
    assert skipped[8]
    assert not skipped[-1]


def test_another_window_on_load():
    one, two = SpikeSkip(window=6), SpikeSkip(window=4)
    one._history = torch.arange(12.0).view(6, 2)
    two.load_state_dict(one.state_dict())
    assert torch.equal(two._history, torch.arange(4.0, 12.0).view(4, 2))
    one.load_state_dict(two.state_dict())
    assert one._history[:2].isnan().all()
    assert torch.equal(one._history[2:], two._history)


@pytest.mark.parametrize("argument", [{"num_std": 0.0}, {"window": 3}, {"watch": "lose"}], ids=str)
def test_wrong_arguments(argument):
    with pytest.raises(ValueError, match=next(iter(argument))):
        SpikeSkip(**argument)
