from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer.algorithms import EMASnapshot, PostHocEMA, load_ema_snapshots, reconstruct_ema
from composer.algorithms._power_averages import LONGEST, combination, exponent_of, step_of
from tests import loop
from tests.algorithms.cases import Case, make_batches, make_model, same, weights

LENGTHS = (0.05, 0.1)


def _make(**arguments):
    return PostHocEMA(**{"snapshot_interval": "1ba", **arguments})


def _averaged(model, algorithm):
    return weights(algorithm.get_ema_model(copy.deepcopy(model), length=0.08))


def _profile(length, number):
    """The weight of each of so many values in the average of a length, by its definition."""
    ends = torch.arange(number + 1, dtype=torch.float64) / number
    return (ends ** (exponent_of(length) + 1)).diff()


def _snapshots(values, times, lengths=LENGTHS):
    return [
        EMASnapshot(length, time, {"w": (_profile(length, time) @ values[:time]).float()})
        for length in lengths
        for time in times
    ]


def _by_hand(batches):
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    path = []
    for batch in batches:
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
        path.append(weights(model))
    snapshots = []
    for number in range(1, len(path) + 1):
        for length in LENGTHS:
            coefficients = _profile(length, number).tolist()
            made = {
                name: sum(coefficient * one[name] for coefficient, one in zip(coefficients, path, strict=False))
                if last.is_floating_point()
                else path[number - 1][name]
                for name, last in path[-1].items()
            }
            snapshots.append(EMASnapshot(length, number, made))
    return reconstruct_ema(snapshots, length=0.08)


CASE = Case(make=_make, by_hand=_by_hand, neutral=_make, outcome=_averaged)


def walk(number, features=50):
    """Weights as in training: a slow drift with noise."""
    generator = torch.Generator().manual_seed(5)
    steps = torch.randn(2, number, features, generator=generator, dtype=torch.float64)
    return 0.1 * steps[0].cumsum(0) + steps[1]


@pytest.mark.parametrize("length", [0.02, 0.03, 0.04, 0.06, 0.075, 0.09, 0.12, 0.15, 0.2, 0.25])
def test_any_length_follows_within_two_percent(length):
    values = walk(2000)
    snapshots = _snapshots(values, range(100, 2001, 100))
    made = reconstruct_ema(snapshots, length)["w"]
    direct = (_profile(length, 2000) @ values).float()
    assert (made - direct).norm() < 0.02 * direct.norm()
    # The last weights themselves are far off: there is something to reconstruct.
    assert (values[-1].float() - direct).norm() > 0.2 * direct.norm()


def test_an_earlier_time_is_had_too():
    values = walk(1000)
    snapshots = _snapshots(values, range(50, 1001, 50))
    made = reconstruct_ema(snapshots, 0.08, updates=500)["w"]
    direct = (_profile(0.08, 500) @ values[:500]).float()
    assert (made - direct).norm() < 0.02 * direct.norm()


@pytest.mark.parametrize("length", LENGTHS)
def test_a_tracked_length_is_its_snapshot(length):
    values = walk(200)
    made = reconstruct_ema(_snapshots(values, [100, 150, 200]), length)["w"]
    torch.testing.assert_close(made, (_profile(length, 200) @ values).float(), rtol=1e-4, atol=1e-4)


@given(st.floats(0.005, 0.28))
def test_the_length_is_the_deviation_of_the_profile(length):
    number = 100_000
    times = (torch.arange(number, dtype=torch.float64) + 0.5) / number
    coefficients = _profile(length, number)
    mean = coefficients @ times
    assert math.sqrt(coefficients @ (times - mean).square()) == pytest.approx(length, rel=1e-3)


@given(length=st.floats(0.01, 0.28), number=st.integers(1, 60))
def test_steps_give_the_profile(length, number):
    average = torch.zeros(number, dtype=torch.float64)
    for index in range(number):
        unit = torch.zeros(number, dtype=torch.float64)
        unit[index] = 1.0
        average.lerp_(unit, step_of(exponent_of(length), index + 1))
    torch.testing.assert_close(average, _profile(length, number))


def test_shares_sum_to_one():
    profiles = [(exponent_of(length), time) for length in LENGTHS for time in range(10, 101, 10)]
    assert sum(combination(profiles, (exponent_of(0.15), 100))) == pytest.approx(1.0)


def test_training_is_as_without_it():
    one, other = (
        loop.fit(loop.start(make_model(), algorithms), make_batches())
        for algorithms in ([], [_make(lengths=(0.1, 0.2))])
    )
    assert same(weights(one.state.model), weights(other.state.model))


@pytest.mark.parametrize(
    ("interval", "update", "times"),
    [
        ("1ba", "1ba", [1, 2, 3, 4]),
        ("2ba", "1ba", [2, 4]),
        ("0.5dur", "1ba", [2, 4]),
        ("3ba", "1ba", [3, 4]),
        ("2ba", "2ba", [1, 2]),
    ],
)
def test_snapshots_are_taken_when_due_and_at_the_end(interval, update, times):
    algorithm = PostHocEMA(snapshot_interval=interval, update_interval=update)
    loop.fit(loop.start(make_model(), [algorithm]), make_batches())
    assert [(s.length, s.updates) for s in algorithm.snapshots] == [(length, t) for t in times for length in LENGTHS]


def test_files_hold_what_memory_would(tmp_path):
    runs = [_make(), _make(folder=tmp_path / "ema")]
    for algorithm in runs:
        loop.fit(loop.start(make_model(), [algorithm]), make_batches())
    in_memory, read = runs[0].snapshots, load_ema_snapshots(tmp_path / "ema")
    assert [(s.length, s.updates) for s in read] == [(s.length, s.updates) for s in in_memory]
    assert all(same(one.weights, other.weights) for one, other in zip(read, in_memory, strict=True))
    assert all(same(one.weights, other.weights) for one, other in zip(runs[1].snapshots, in_memory, strict=True))
    assert not list((tmp_path / "ema").glob("*.part"))
    assert runs[1].state_dict()["snapshots"] == []


def test_half_precision_weights_are_averaged_in_single():
    model = nn.Linear(2, 1).to(torch.bfloat16)
    algorithm = _make()
    engine = loop.start(model, [algorithm])
    for event in ("fit_start", "epoch_start"):
        engine.run_event(event)
    engine.state.timestamp = engine.state.timestamp.to_next_batch(samples=1)
    engine.run_event("batch_end")
    assert algorithm.snapshots[0].weights["weight"].dtype == torch.float32
    assert algorithm.get_ema_model(model, 0.1).weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lengths": (0.05,)}, "two or more"),
        ({"lengths": (0.05, 0.05)}, "two or more"),
        ({"lengths": (0.0, 0.1)}, "above 0 and below 0.2887"),
        ({"lengths": (0.1, LONGEST)}, "above 0 and below 0.2887"),
        ({"snapshot_interval": "0ba"}, "snapshot_interval must be positive"),
        ({"update_interval": "1ep"}, "update_interval must be in batches"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        PostHocEMA(**arguments)


@pytest.mark.parametrize(
    ("length", "error"), [("0.1", TypeError), (True, TypeError), (-0.1, ValueError), (float("nan"), ValueError)]
)
def test_lengths_that_are_none_have_a_name(length, error):
    with pytest.raises(error, match=r"^length must be "):
        EMASnapshot(length, 1, {})
    with pytest.raises(error, match=r"^Each of lengths must be "):
        PostHocEMA(lengths=(0.05, length))


def test_bad_use():
    algorithm = _make()
    with pytest.raises(ValueError, match="first 0 updates, among the 0 given"):
        algorithm.get_ema_model(make_model(), 0.1)
    with pytest.raises(ValueError, match="first 5 updates, among the 2 given"):
        reconstruct_ema(_snapshots(walk(10), [10]), 0.1, updates=5)
    with pytest.raises(ValueError, match=r"lengths=.*3 lengths"):
        algorithm.load_state_dict(PostHocEMA(lengths=(0.05, 0.1, 0.2)).state_dict())
    endless = PostHocEMA()
    engine = loop.start(make_model(), [endless], max_duration=None)
    with pytest.raises(ValueError, match="max_duration must be set"):
        loop.fit(engine, make_batches())
