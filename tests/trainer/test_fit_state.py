"""Logs, metrics, state and model after training."""

from __future__ import annotations

import pytest
import torch

from composer import DataSpec
from composer.warnings import ComposerWarning
from tests.common import At, Received, Regression, regression_data, trainer_of


def test_counters_and_losses_are_logged_at_the_step_of_the_batch() -> None:
    log = Received()
    trainer_of(
        data=DataSpec(regression_data(2, 3), get_num_tokens_in_batch=lambda b: 7), max_duration="2ep", loggers=log
    ).fit()
    assert [step for step, _ in log.series("loss/train/total")] == [0, 1, 2, 3]
    for name, values in {
        "time/batch": [0, 1, 2, 3, 4],
        "time/sample": [0, 3, 6, 9, 12],
        "time/batch_in_epoch": [0, 1, 0, 1, 0],
        "time/sample_in_epoch": [0, 3, 0, 3, 0],
        "time/token": [7, 14, 21, 28],  # not before there are tokens
        "time/epoch": [0, 1, 2],
    }.items():
        assert [value for _, value in log.series(name)] == values
    assert log.series("time/epoch") == [(0, 0), (2, 1), (4, 2)]


@pytest.mark.parametrize("size", [None, 1])
def test_train_metrics_accumulate_over_the_epoch(size) -> None:
    """Exact at every step at which somebody looks, and at the end of an epoch where no one has; each starts over."""
    model, log = Regression(metrics=True), Received(flush_interval=2)
    data = regression_data(3, 2)
    trainer_of(model, data, lr=0.0, max_duration="2ep", loggers=log, device_train_microbatch_size=size).fit()
    errors = [(model(batch) - batch[1]).square().mean().item() for batch in data]
    upto = [sum(errors[: i + 1]) / (i + 1) for i in range(3)]
    expected = [(1, upto[1]), (3, upto[2]), (3, upto[0]), (5, upto[2])]
    found = log.series("metrics/train/MeanSquaredError")
    assert [step for step, _ in found] == [step for step, _ in expected]
    assert [value for _, value in found] == pytest.approx([value for _, value in expected], rel=1e-5)


def test_train_metrics_are_logged_where_training_ends_within_an_epoch() -> None:
    """Loggers that look rarely, and short runs: the values of the last batch are there, once."""
    seldom, often = Received(flush_interval=100), Received()
    for log, batches in ((seldom, 2), (often, 2)):
        trainer = trainer_of(Regression(metrics=True), regression_data(3, 2), max_duration=f"{batches}ba", loggers=log)
        trainer.fit()
        trainer.fit(duration="1ba")
    assert [step for step, _ in seldom.series("metrics/train/MeanSquaredError")] == [2, 3]
    assert [step for step, _ in often.series("metrics/train/MeanSquaredError")] == [0, 1, 2]


def test_train_metrics_are_not_computed_without_loggers(monkeypatch) -> None:
    model = Regression(metrics=True)
    trainer = trainer_of(model)
    monkeypatch.setattr(
        trainer.state.train_metrics["MeanSquaredError"], "compute", lambda: pytest.fail("nobody looks at it")
    )
    trainer.fit(duration="3ba")
    assert trainer.state.train_metrics["MeanSquaredError"].total == 6


def test_state_is_kept_after_the_last_batch() -> None:
    trainer = trainer_of(data=regression_data(3))
    trainer.fit()
    assert torch.equal(trainer.state.batch[0], regression_data(3)[-1][0])
    assert trainer.state.outputs is None  # see test_outputs.py
    assert trainer.state.loss.ndim == 0
    assert not trainer.state.loss.requires_grad
    assert list(trainer.state.total_loss_dict) == ["loss/train/total"]


def test_model_is_set_to_training_mode() -> None:
    modes = At("before_forward", lambda state: state.model.training)
    model = Regression().eval()
    trainer_of(model, max_duration="1ba", callbacks=modes).fit()
    assert modes.found == [True]


def test_each_fit_sets_every_submodule_to_training_mode() -> None:
    """So that a part in evaluation mode trains, and one that refuses to, as frozen layers do, stays as it is."""

    class Frozen(torch.nn.BatchNorm1d):
        def train(self, mode: bool = True):
            return super().train(False)

    model = Regression()
    model.frozen, model.other = Frozen(2), torch.nn.BatchNorm1d(2).eval()
    modes = At("before_forward", lambda state: (state.model.frozen.training, state.model.other.training))
    trainer = trainer_of(model, max_duration="1ba", callbacks=modes)
    trainer.fit()
    model.other.eval()
    trainer.fit(duration="1ba")
    assert modes.found == [(False, True)] * 2


def test_subset_longer_than_the_data_warns() -> None:
    with pytest.warns(
        ComposerWarning, match="The data has 4 batches per epoch, fewer than dataloader_len=9; 4 are used"
    ):
        trainer = trainer_of(train_subset_num_batches=9)
    trainer.fit()
    assert trainer.state.timestamp.batch == 4
