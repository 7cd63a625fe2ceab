from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.swa_utils import SWALR, AveragedModel

from composer import Trainer
from composer.algorithms import SWA
from composer.models import ComposerClassifier
from tests import loop
from tests.algorithms.cases import Case, make_model, weights


def _make(**arguments):
    return SWA(**{"swa_start": "0.5dur", "swa_end": "0.75dur", "update_interval": "1ba", **arguments})


def _by_hand(batches):
    """By torch's average: of the weights after batches 2 and 3, loaded before batch 4."""
    model = make_model()
    average = AveragedModel(model)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number, batch in enumerate(batches, start=1):
        optimizer.zero_grad()
        model.loss(model(batch), batch).backward()
        optimizer.step()
        if number in (2, 3):
            average.update_parameters(model)
        if number == 3:
            for parameter, averaged in zip(model.parameters(), average.module.parameters(), strict=True):
                parameter.data.copy_(averaged)
    return weights(model)


CASE = Case(
    make=_make,
    by_hand=_by_hand,
    # The average of one, put in when training is over.
    neutral=lambda: SWA(swa_start="0.99dur", swa_end="1dur", update_interval="1ba"),
    why_no_function="torch.optim.swa_utils provides it for custom loops",
)


def linear(value=0.0):
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, value)
    return layer


def run(algorithm, epochs, batches, duration=None):
    """Weights 1, 2, 3 ... after batches 1, 2, 3 ... until the average is loaded; returns those after each batch."""
    model = linear()
    engine = loop.start(model, [algorithm], SGD(model.parameters(), lr=1.0), max_duration=duration or f"{epochs}ep")
    engine.state.train_phase.length = batches
    engine.run_event("fit_start")
    seen, number = [], 0
    for _ in range(epochs):
        for _ in range(batches):
            number += 1
            if not algorithm.swa_completed:
                nn.init.constant_(model.weight, number)
            engine.state.timestamp = engine.state.timestamp.to_next_batch(samples=1)
            engine.run_event("batch_end")
            seen.append((model.weight.item(), algorithm.num_averaged))
        engine.state.timestamp = engine.state.timestamp.to_next_epoch()
        engine.run_event("epoch_end")
    return model.weight.item(), seen, engine


@pytest.mark.parametrize(
    ("arguments", "epochs", "batches", "expected"),
    [
        # Ten epochs of ten batches: averaged after epochs 7, 8 and 9, loaded in the middle of the tenth.
        ({}, 10, 10, (70 + 80 + 90) / 3),
        ({"swa_end": "1dur"}, 10, 10, (70 + 80 + 90 + 100) / 4),
        ({"swa_start": "1ep", "swa_end": "3ep"}, 4, 5, (5 + 10 + 15) / 3),
        ({"swa_start": 1, "swa_end": 3, "update_interval": "2ep"}, 4, 5, (5 + 15) / 2),
        ({"swa_start": "0.5dur", "swa_end": "0.8dur", "update_interval": "1ba"}, 2, 5, (5 + 6 + 7 + 8) / 4),
        ({"swa_start": "0dur", "swa_end": "1dur", "update_interval": "3ba"}, 2, 4, (1 + 4 + 7) / 3),
    ],
)
def test_what_is_averaged_and_when_it_is_loaded(arguments, epochs, batches, expected):
    algorithm = SWA(**arguments)
    value, _, _ = run(algorithm, epochs, batches)
    assert value == pytest.approx(expected)
    assert algorithm.swa_completed


def test_loaded_in_the_middle_of_an_epoch():
    _, seen, _ = run(SWA(), 10, 10)
    assert [value for value, _ in seen[96:98]] == pytest.approx([80.0, 80.0])  # after batch 97 of 100
    assert seen[95][0] == 96.0
    assert [count for _, count in seen][-1] == 3


def test_max_duration_in_batches_and_unknown_length():
    value, _, _ = run(SWA("0.5dur", "0.9dur", "1ba"), 1, 10, duration="10ba")
    assert value == pytest.approx((5 + 6 + 7 + 8 + 9) / 5)
    model, algorithm = linear(), SWA("0.5dur", "1dur", "1ep")
    engine = loop.start(model, [algorithm], max_duration="2ep")
    for number in (1, 2):
        nn.init.constant_(model.weight, number)
        engine.state.timestamp = engine.state.timestamp.to_next_batch(samples=1)
        engine.run_event("batch_end")
        engine.state.timestamp = engine.state.timestamp.to_next_epoch()
        engine.run_event("epoch_end")
    assert model.weight.item() == 1.5


@pytest.mark.parametrize("strategy", ["linear", "cos"])
@pytest.mark.parametrize("swa_lr", [0.05, 2.0])
def test_rates_equal_those_of_torch(strategy, swa_lr):
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = SWALR(optimizer, swa_lr, anneal_epochs=10, anneal_strategy=strategy)
    algorithm = SWA(schedule_swa_lr=True, anneal_strategy=strategy, anneal_steps=10, swa_lr=swa_lr)
    for updates in range(1, 14):
        optimizer.step()
        theirs.step()
        assert algorithm.rate_at(1.0, updates) == pytest.approx(optimizer.param_groups[0]["lr"])


def test_rate_of_the_user_is_used_and_given_back():
    rates = []

    class Watch(loop.Algorithm):
        def batch_end(self, state, logger):
            rates.append(state.optimizers[0].param_groups[0]["lr"])

    model = linear()
    algorithm = SWA("1ep", "3ep", "1ba", schedule_swa_lr=True, anneal_steps=2, swa_lr=0.5)
    engine = loop.start(model, [algorithm, Watch()], SGD(model.parameters(), lr=1.0), max_duration="4ep")
    engine.state.train_phase.length = 2
    for _ in range(4):
        for _ in range(2):
            engine.state.timestamp = engine.state.timestamp.to_next_batch(samples=1)
            engine.run_event("batch_end")
        engine.state.timestamp = engine.state.timestamp.to_next_epoch()
        engine.run_event("epoch_end")
    assert rates == pytest.approx([1.0, 0.75, 0.5, 0.5, 0.5, 1.0, 1.0, 1.0])


def test_constant_rate_against_a_schedule_in_the_trainer():
    from torch.optim.lr_scheduler import LambdaLR

    seen = []

    class Watch(loop.Algorithm):
        def batch_start(self, state, logger):
            seen.append(state.optimizers[0].param_groups[0]["lr"])

    model = ComposerClassifier(nn.Linear(4, 3), num_classes=3)
    optimizer = SGD(model.parameters(), lr=1.0)
    trainer = Trainer(
        model=model,
        train_dataloader=[(torch.randn(2, 4), torch.randint(3, (2,))) for _ in range(10)],
        max_duration="1ep",
        optimizers=optimizer,
        schedulers=LambdaLR(optimizer, lambda step: 1 - step / 10),
        step_schedulers_every_batch=True,
        algorithms=[SWA("0.3dur", "0.8dur", "1ba", schedule_swa_lr=True), Watch()],
        device="cpu",
        progress_bar=False,
    )
    trainer.fit()
    assert seen == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.7, 0.2, 0.1])


def test_half_precision_is_averaged_in_full():
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    algorithm = SWA("0dur", "1dur", "1ba")
    engine = loop.start(model, [algorithm], max_duration="1000ba")
    total = 0.0
    for number in range(1, 200):
        nn.init.constant_(model.weight, 1 + number / 128)
        total += model.weight.item()
        engine.state.timestamp = engine.state.timestamp.to_next_batch(samples=1)
        engine.run_event("batch_end")
    assert algorithm._averages["weight"].dtype == torch.float32
    assert algorithm._averages["weight"].item() == pytest.approx(total / 199, rel=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"swa_start": "0.7dur", "swa_end": "5ep"}, "both"),
        ({"swa_start": "10ba", "swa_end": "20ba"}, "swa_start must be in fractions of the run or epochs"),
        ({"swa_start": "0.7dur", "swa_end": "0.7dur"}, "later"),
        ({"swa_start": "0.7dur", "swa_end": "1.2dur"}, "at most"),
        ({"update_interval": "100sp"}, "update_interval"),
        ({"update_interval": "0ep"}, "update_interval"),
        ({"anneal_strategy": "cosine"}, "anneal_strategy"),
        ({"anneal_steps": 0}, "anneal_steps"),
        ({"swa_lr": -1.0}, "swa_lr"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        SWA(**arguments)


def test_share_needs_a_maximum():
    engine = loop.start(linear(), [SWA()], max_duration=None)
    with pytest.raises(ValueError, match="max_duration"):
        engine.run_event("batch_end")
    assert math.isclose(SWA().rate_at(0.3, 5), 0.3)
