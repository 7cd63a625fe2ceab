"""Infinite data that must end: raises, or warns if its length is unknown."""

from __future__ import annotations

import functools
import itertools

import pytest
from torch.utils.data import DataLoader, IterableDataset

from composer import DataSpec, Evaluator
from composer.trainer import batch_loading, evaluation_pass
from composer.warnings import ComposerWarning
from tests.common import At, Unsized, regression_data, trainer_of

BATCHES = regression_data(3)


class Samples(IterableDataset):
    def __iter__(self):
        while True:
            for x, y in BATCHES:
                yield x[0], y[0]


class Cycles:
    """Of which no one can know before it is iterated."""

    def __iter__(self):
        return itertools.cycle(BATCHES)


class Unknown(Unsized):
    """Which ends, after many batches."""

    def __init__(self, number):
        super().__init__(BATCHES)
        self.number = number

    def __iter__(self):
        return iter([BATCHES[0]] * self.number)


def forever():
    while True:
        yield from BATCHES


MADE = {
    "cycle": lambda: itertools.cycle(BATCHES),
    "generator": forever,
    "loader": lambda: DataLoader(Samples(), batch_size=2),
    "spec": lambda: DataSpec(itertools.cycle(BATCHES)),
    "known when iterated": Cycles,
}
of_every_kind = pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in MADE.items()])


def is_known(make):
    return make is not Cycles


@of_every_kind
def test_evaluation(make):
    if is_known(make):
        remedy = r"'eval' never ends: .* Set eval_subset_num_batches, or Evaluator\(subset_num_batches="
        with pytest.raises(ValueError, match=f"^eval_dataloader: iterating over {remedy}"):
            trainer_of(eval_dataloader=make())
        with pytest.raises(ValueError, match="'mine' never ends"):
            trainer_of(eval_dataloader=Evaluator(label="mine", dataloader=make()))
    trainer = trainer_of()
    with pytest.raises(ValueError, match=r"'eval' never ends: .* Set"):
        trainer.eval(make())
    trainer.eval(make(), subset_num_batches=2)
    assert trainer.state.eval_timestamp.batch == 2
    trainer = trainer_of(eval_dataloader=make(), eval_subset_num_batches=2, max_duration="2ep")
    trainer.fit()
    assert trainer.state.eval_timestamp.batch == 2


@of_every_kind
def test_evaluator_assigned_to_the_state(make):
    trainer = trainer_of(eval_dataloader=Evaluator(label="mine", dataloader=make(), subset_num_batches=2))
    trainer.state.evaluators[0].subset_num_batches = -1
    with pytest.raises(ValueError, match=r"'mine' never ends: .* Set subset_num_batches"):
        trainer.eval()


@of_every_kind
def test_prediction(make):
    trainer = trainer_of()
    with pytest.raises(ValueError, match=r"'predict' never ends: .* Set subset_num_batches"):
        trainer.predict(make())
    assert len(trainer.predict(make(), subset_num_batches=3)) == 3


@of_every_kind
def test_training_in_epochs(make):
    trainer = trainer_of(data=make(), max_duration="2ep")
    began = At("batch_start", lambda state: 1)
    trainer.state.callbacks.append(began)
    with pytest.raises(
        ValueError, match=r"an epoch of train_dataloader never ends: .* Set train_subset_num_batches, or"
    ):
        trainer.fit()
    assert began.found == []


@of_every_kind
def test_training_stopped_by_a_callback(make):
    for arguments, number in (
        ({"max_duration": "5ba"}, 5),
        ({"max_duration": "6sp"}, 3),
        ({"max_duration": "2ep", "train_subset_num_batches": 2}, 4),
        ({"max_duration": "2ep", "overfit_batches": 2}, 4),
    ):
        trainer = trainer_of(data=make(), **arguments)
        trainer.fit()
        assert trainer.state.timestamp.batch == number
    trainer_of(data=make(), max_duration="2ep", train_subset_num_batches=2, dry_run=True).fit()


@pytest.mark.parametrize("limit", [{"batches": 3}, {"seconds": 0.0}])
def test_long_epoch_over_data_of_unknown_length(limit, monkeypatch):
    for room in (batch_loading, evaluation_pass):
        watch = functools.partial(room.LongEpochWatch, **limit)
        monkeypatch.setattr(room, "LongEpochWatch", lambda message, watch=watch, **_: watch(message))
    with pytest.warns(ComposerWarning, match="first epoch of train_dataloader takes very long") as caught:
        trainer_of(data=Unknown(6), max_duration="2ep").fit()
    assert len(caught) == 1
    with pytest.warns(ComposerWarning, match=r"the data 'eval' takes very long.* Set subset_num_batches") as caught:
        trainer_of().eval(Unknown(6))
    assert len(caught) == 1
    trainer_of(data=Unknown(6), max_duration="6ba", eval_dataloader=BATCHES).fit()
    trainer_of().eval(BATCHES * 3)


def test_finite_data_of_unknown_length_does_not_warn():
    trainer = trainer_of(data=Unknown(6), max_duration="2ep", eval_dataloader=Unknown(5))
    trainer.fit()
    assert trainer.state.timestamp.batch == 12
