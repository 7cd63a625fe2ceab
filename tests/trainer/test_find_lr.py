"""The learning rate finder finds a good rate, and restores everything."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from schedulefree import AdamWScheduleFree
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from composer.algorithms import EMA, SAM, CutOut, GradientClipping, GyroDropout, MixUp, ScheduleFree
from composer.models import ComposerClassifier
from composer.optim import CosineAnnealingWithWarmupScheduler, DecoupledAdamW, DecoupledSGDW, MuonAdamW
from tests.common import At, Received, Recorder, Regression, labeled_data, regression_data, trainer_of


class Pictures(ComposerClassifier):
    """With batch normalization and dropout."""

    def __init__(self):
        torch.manual_seed(3)
        layers = (
            nn.Conv2d(1, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(64, 16),
            nn.Dropout(0.2),
            nn.ReLU(),
            nn.Linear(16, 3),
        )
        super().__init__(nn.Sequential(*layers), num_classes=3)


class OwnLoader(DataLoader):
    """Of a class custom, whose batches are known by fetching them only."""


def pictures(kind=DataLoader, **arguments):
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(24, 1, 4, 4, generator=generator), torch.randint(3, (24,), generator=generator))
    return kind(data, batch_size=4, **{"shuffle": True, **arguments})


def build(make, algorithms=(), data=None, **arguments):
    model = Pictures()
    optimizer = make(model)
    return trainer_of(
        model,
        pictures() if data is None else data,
        optimizers=optimizer,
        algorithms=list(algorithms),
        seed=7,
        max_duration="2ep",
        **arguments,
    )


def everything(trainer):
    """All that must not change, copied."""
    state = trainer.state
    return copy.deepcopy(
        {
            "model": state.model.state_dict(),
            "gradients": [param.grad for param in state.model.parameters()],
            "modes": [module.training for module in state.model.modules()],
            "optimizers": [optimizer.state_dict() for optimizer in state.optimizers],
            "schedules": [schedule.state_dict() for schedule in state.schedulers],
            "algorithms": [algorithm.state_dict() for algorithm in state.algorithms],
            "timestamp": [state.timestamp.batch, state.timestamp.epoch, state.timestamp.sample],
            "metrics": {name: metric.metric_state for name, metric in state.train_metrics.items()},
            "rng": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()),
            "batch": state.batch,
        }
    )


def assert_same(one, other, where=""):
    """Equal bit for bit."""
    assert type(one) is type(other), where
    if isinstance(one, dict):
        assert one.keys() == other.keys(), where
        for name, value in one.items():
            assert_same(value, other[name], f"{where}/{name}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for place, value in enumerate(one):
            assert_same(value, other[place], f"{where}/{place}")
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    else:
        assert one == other, where


CASES = {
    "sgd": (lambda m: DecoupledSGDW(m.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4), ()),
    "adamw": (lambda m: DecoupledAdamW(m.parameters(), lr=0.01), [lambda: MixUp(0.2), lambda: CutOut()]),
    "muon": (lambda m: MuonAdamW(m, lr=0.01), [lambda: GradientClipping("norm", 1.0)]),
    "several": (
        lambda m: [torch.optim.SGD(m.module[:2].parameters(), lr=0.1), torch.optim.Adam(m.module[4:].parameters())],
        [lambda: EMA(half_life="2ba")],
    ),
    "sam": (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9), [lambda: SAM(interval=2)]),
    "schedule-free": (lambda m: AdamWScheduleFree(m.parameters(), lr=0.01), [ScheduleFree]),
    "gyro": (lambda m: torch.optim.SGD(m.parameters(), lr=0.1), [lambda: GyroDropout(p=0.3, sigma=4, tau=2)]),
}


def steps(trainer, number):
    trainer.fit(duration=f"{number}ba")
    return everything(trainer)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("done", [0, 4, 6], ids=["before", "in the middle", "between epochs"])
def test_find_lr_leaves_training_unchanged_bit_for_bit(name, done):
    make, algorithms = CASES[name]

    def make_trainer():
        trainer = build(make, [algorithm() for algorithm in algorithms])
        if done:
            steps(trainer, done)
        return trainer

    expected = steps(make_trainer(), 5)
    trainer = make_trainer()
    before, group = everything(trainer), trainer.state.optimizers[0].param_groups[0]
    found = trainer.find_lr(1e-6, 1.0, num_batches=15)
    assert len(found.losses) >= 8
    assert len(set(found.losses)) > 1
    assert trainer.state.optimizers[0].param_groups[0] is group
    assert_same(everything(trainer), before)
    assert_same(steps(trainer, 5), expected)


def with_and_without(make, done, then):
    """What training comes to, with a range test in the middle and without."""
    found = []
    for is_with in (True, False):
        trainer = make()
        if done:
            steps(trainer, done)
        if is_with:
            trainer.find_lr(num_batches=9)
        found.append(steps(trainer, then))
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        {"shuffle": False},
        {"num_workers": 1, "persistent_workers": True},
        {"num_workers": 1, "persistent_workers": True, "kind": OwnLoader},
    ],
)
def test_position_in_the_data_is_restored(arguments):
    def make():
        return build(lambda m: torch.optim.SGD(m.parameters(), lr=0.1), data=pictures(**arguments))

    for done in (0, 2):
        assert_same(*with_and_without(make, done, 7))


def test_with_schedules_of_a_run():
    def make():
        schedule = CosineAnnealingWithWarmupScheduler("1ba")
        return build(lambda m: DecoupledAdamW(m.parameters(), lr=0.01), schedulers=schedule)

    assert_same(*with_and_without(make, 2, 7))


class Stateful:
    """A loader that keeps its own place, and continues there when it is iterated."""

    def __init__(self):
        self.place = 0

    def __iter__(self):
        data = labeled_data(6)
        for place in range(self.place % 6, 6):
            self.place = place + 1
            yield data[place]

    def __len__(self):
        return 6

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


@pytest.mark.parametrize("done", [0, 2])
def test_stateful_loaders(done):
    def make():
        torch.manual_seed(1)
        return trainer_of(ComposerClassifier(nn.Linear(4, 3), num_classes=3), Stateful(), seed=1, max_duration="1ep")

    assert_same(*with_and_without(make, done, 6))


def test_callbacks_see_nothing():
    recorder, log = Recorder(), Received()
    trainer = trainer_of(Regression(metrics=True), callbacks=recorder, loggers=log)
    events, metrics = len(recorder.events), len(log.metrics)
    listening = trainer.state.model.logger
    trainer.find_lr(num_batches=6)
    assert (len(recorder.events), len(log.metrics)) == (events, metrics)
    assert trainer.state.model.logger is listening
    trainer.fit()
    assert "fit_end" in recorder.events
    assert log.series("loss/train/total")


def test_learning_rates_of_other_groups_keep_their_ratio():
    model = Regression()
    weight, bias = model.parameters()
    optimizer = torch.optim.SGD([{"params": [weight], "lr": 0.1}, {"params": [bias], "lr": 0.4}])
    schedule = LambdaLR(optimizer, lambda step: 0.0)  # a warm-up that begins at nothing

    class Watch(EMA):
        def batch_end(self, state, logger):
            seen.append([group["lr"] for group in state.optimizers[0].param_groups])

    seen = []
    trainer = trainer_of(model, optimizers=optimizer, schedulers=schedule, algorithms=Watch())
    found = trainer.find_lr(1e-4, 1e-2, num_batches=3, stop_factor=1e9)
    assert found.learning_rates == pytest.approx([1e-4, 1e-3, 1e-2])
    assert [pair[0] for pair in seen] == pytest.approx(found.learning_rates)
    assert [pair[1] for pair in seen] == pytest.approx([4 * rate for rate in found.learning_rates])
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.0]


def test_losses_match_a_custom_loop():
    model = Regression()
    twin = copy.deepcopy(model)
    data = regression_data(3)
    found = trainer_of(model, data).find_lr(1e-3, 1e-1, num_batches=5)
    losses = []
    for rate, batch in zip(found.learning_rates, [*data, *data], strict=False):
        loss = twin.loss(twin(batch), batch)
        losses.append(loss.item())
        for param, gradient in zip(twin.parameters(), torch.autograd.grad(loss, list(twin.parameters())), strict=True):
            param.data -= rate * gradient
    assert found.losses == pytest.approx(losses)


def test_suggestion_trains_and_search_stops_when_loss_diverges():
    """On a quadratic loss, gradient descent diverges from a known rate on."""
    x = torch.randn(64, 4, generator=torch.Generator().manual_seed(0))
    data = [(x, x.sum(1, keepdim=True))]
    model = Regression()
    nn.init.zeros_(model.linear.weight)
    inputs = torch.cat([x, torch.ones(64, 1)], 1)
    limit = 2 / torch.linalg.eigvalsh(2 * inputs.T @ inputs / 64).max().item()
    found = trainer_of(model, data).find_lr(1e-5, 1e3, num_batches=120)
    assert found.learning_rates[-1] < 100
    assert len(found.learning_rates) == len(found.losses) < 120
    assert limit / 300 < found.suggestion < limit


@pytest.mark.parametrize("number", [30, 100])
@pytest.mark.parametrize("name", ["sgd", "adamw", "muon"])
def test_suggestion_is_where_the_loss_falls(name, number):
    """Each of these optimizers learns at the rates between, and explodes or learns next to nothing outside."""
    x = torch.randn(1024, 8, generator=torch.Generator().manual_seed(0))
    data = DataLoader(TensorDataset(x, (x @ x[:8].T)[:, :3].argmax(1)), batch_size=64)
    torch.manual_seed(0)
    model = ComposerClassifier(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3)), num_classes=3)
    make = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), lr=1e-3),
        "muon": lambda: MuonAdamW(model, lr=0.01),
    }[name]
    trainer = trainer_of(model, data, optimizers=make(), seed=1)
    assert 2e-3 < trainer.find_lr(num_batches=number).suggestion < 0.5


def test_weight_decay_matches_a_new_optimizer_with_that_rate():
    """Relative decay would otherwise grow with the rate that is tried, a thousandfold."""
    model = Regression()
    twin = copy.deepcopy(model)
    optimizer = DecoupledSGDW(model.parameters(), lr=1e-6, weight_decay=9e-4)
    data = regression_data(2)
    found = trainer_of(model, data, optimizers=optimizer).find_lr(1e-3, 1e-2, num_batches=2)
    other = DecoupledSGDW(twin.parameters(), lr=1e-3, weight_decay=9e-4)
    twin.loss(twin(data[0]), data[0]).backward()
    other.step()
    assert found.losses[1] == pytest.approx(twin.loss(twin(data[1]), data[1]).item())
    assert optimizer.param_groups[0]["initial_lr"] == 1e-6


def test_error_restores_everything():
    class Fails(EMA):
        def batch_end(self, state, logger):
            if state.timestamp.batch.value == 3:
                raise RuntimeError("no more")

    trainer = trainer_of(algorithms=Fails(), callbacks=At("fit_end", lambda state: 1))
    before, callbacks = everything(trainer), list(trainer.state.callbacks)
    with pytest.raises(RuntimeError, match="no more"):
        trainer.find_lr()
    assert_same(everything(trainer), before)
    assert list(trainer.state.callbacks) == callbacks


def test_wrong_arguments():
    trainer = trainer_of()
    for arguments, message in (
        ({"min_lr": 0.0}, "min_lr must be above 0"),
        ({"num_batches": 1}, "num_batches must be 2"),
        ({"stop_factor": 1.0}, "stop_factor must be greater than 1"),
        ({"stop_factor": -1.0}, "stop_factor must be greater than 0"),
    ):
        with pytest.raises(ValueError, match=message):
            trainer.find_lr(**arguments)
    with pytest.raises(ValueError, match="can be read once"):
        trainer_of(data=iter(regression_data())).find_lr()
    with pytest.raises(ValueError, match="find_lr requires optimizers"):
        trainer_of(optimizers=None).find_lr()
    with pytest.raises(ValueError, match="the first parameter group has a learning rate of 0"):
        trainer_of(lr=0.0).find_lr()
    trainer.close()
    with pytest.raises(RuntimeError, match="closed"):
        trainer.find_lr()
