"""Schedules that follow evaluation metrics, and resuming with schedules."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ChainedScheduler, ExponentialLR
from torchmetrics import MeanSquaredError

from composer import Evaluator
from composer.optim.scheduler import LinearScheduler, ReduceOnPlateauScheduler, WarmupStableDecayScheduler
from composer.warnings import ComposerWarning
from tests.common import At, Regression, TwoLayers, regression_data, trainer_of, weights


def rates(state) -> list[float]:
    """The learning rate of each optimizer's first group."""
    return [optimizer.param_groups[0]["lr"] for optimizer in state.optimizers]


# ---------------------------------------------------------------------------------------------------- evaluation


class Stuck(Regression):
    """A model whose evaluation gives what it is reported to."""

    def __init__(self) -> None:
        super().__init__(metrics=True)
        self.values = [0.0]

    def eval_forward(self, batch, outputs=None):
        return batch[1] + self.values[0]


class StuckTwo(TwoLayers):
    """A model for two optimizers whose evaluation gives 1."""

    def get_metrics(self, is_train):
        return {} if is_train else {"Loss": MeanSquaredError()}

    def update_metric(self, batch, outputs, metric):
        metric.update(batch[1], batch[1] + 1)


def test_reduce_on_plateau() -> None:
    model, used = Stuck(), At("after_train_batch", rates)

    def script(state):
        model.values = [[3.0, 2.0, 2.0, 2.0, 1.0, 1.0, 1.0, 1.0][state.timestamp.batch.value - 1]]

    schedule = ReduceOnPlateauScheduler("eval/MeanSquaredError", mode="min", factor=0.5, patience=1)
    trainer = trainer_of(
        model,
        lr=1e-3,
        schedulers=schedule,
        max_duration="2ep",
        eval_dataloader=regression_data(1),
        eval_interval="1ba",
        callbacks=[used, At("eval_before_all", script)],
    )
    trainer.fit()
    # Losses 9 4 4 4 1 1 1 1: the second of the bad ones in a row comes after batches 4 and 7.
    assert [rate / 1e-3 for (rate,) in used.found] == pytest.approx([1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25])


def test_one_plateau_for_two_optimizers_counts_once() -> None:
    model, used = StuckTwo(), At("after_train_batch", rates)
    schedule = ReduceOnPlateauScheduler("Loss", mode="min", factor=0.5, patience=1).with_warmup("0ba")
    trainer_of(
        model,
        optimizers=model.optimizers(),
        schedulers=schedule,
        max_duration="4ba",
        eval_dataloader=regression_data(1),
        eval_interval="1ba",
        callbacks=used,
    ).fit()
    assert used.found == [pytest.approx([0.02, 0.01])] * 3 + [pytest.approx([0.01, 0.005])]


def test_a_plateau_needs_its_metric() -> None:
    schedule = ReduceOnPlateauScheduler("eval/Acc", mode="max")
    trainer = trainer_of(schedulers=schedule, eval_dataloader=Evaluator(label="eval", dataloader=regression_data(1)))
    with pytest.raises(ValueError, match="monitor='eval/Acc': this run has no metrics"):
        trainer.fit()


# ---------------------------------------------------------------------------------------------------- continuing


def settings(state) -> list[float]:
    groups = [group for optimizer in state.optimizers for group in optimizer.param_groups]
    return [group.get(name, 0.0) for group in groups for name in ("lr", "weight_decay")]


def schedules():
    """One for each of two rates, and one for the weight decay."""
    plateau = ReduceOnPlateauScheduler("Loss", "min", factor=0.5, patience=0)
    return [WarmupStableDecayScheduler("2ba", "4ba"), plateau, LinearScheduler(1, 0.5).assign("weight_decay")]


def scheduled(every_batch: bool, in_fit: bool = False, **arguments):
    """Twelve batches with schedules, those of the trainer unless fit gets them; and what each batch used."""
    torch.manual_seed(0)
    model, used = StuckTwo(), At("after_train_batch", settings)
    trainer = trainer_of(
        model,
        optimizers=model.optimizers(),
        schedulers=None if in_fit else schedules(),
        step_schedulers_every_batch=every_batch,
        max_duration="3ep",
        eval_dataloader=regression_data(1),
        eval_interval="2ba",
        callbacks=used,
        **arguments,
    )
    return trainer, used


@pytest.mark.parametrize("every_batch", [True, False])
@pytest.mark.parametrize("batch", [1, 4, 6, 11])
def test_continuing_from_a_checkpoint_is_exact(tmp_path, every_batch, batch) -> None:
    straight, expected = scheduled(every_batch)
    path = str(tmp_path / "checkpoint.pt")
    save = At("batch_checkpoint", lambda state: state.timestamp.batch == batch and straight.save_checkpoint(path))
    straight.state.callbacks.append(save)
    straight.fit()
    assert len({tuple(values) for values in expected.found}) > 2
    resumed, found = scheduled(every_batch, load_path=path)
    resumed.fit()
    assert found.found == expected.found[batch:]
    assert torch.equal(weights(resumed), weights(straight))


@pytest.mark.parametrize("batch", [4, 11])
def test_schedules_passed_to_fit_resume_from_a_checkpoint(tmp_path, batch) -> None:
    straight, expected = scheduled(True, in_fit=True)
    path = str(tmp_path / "checkpoint.pt")
    save = At("batch_checkpoint", lambda state: state.timestamp.batch == batch and straight.save_checkpoint(path))
    straight.state.callbacks.append(save)
    straight.fit(schedulers=schedules())
    assert len({tuple(values) for values in expected.found}) > 2
    resumed, found = scheduled(True, in_fit=True, load_path=path)
    resumed.fit(schedulers=schedules())
    assert found.found == expected.found[batch:]
    assert torch.equal(weights(resumed), weights(straight))


def test_torch_schedulers_passed_to_fit_resume(tmp_path) -> None:
    def made(trainer):
        return torch.optim.lr_scheduler.StepLR(trainer.state.optimizers[0], 1, 0.5)

    straight, used = trainer_of(max_duration="4ep"), At("after_train_batch", settings)
    path = str(tmp_path / "checkpoint.pt")
    save = At("epoch_checkpoint", lambda state: state.timestamp.epoch == 2 and straight.save_checkpoint(path))
    straight.state.callbacks += [used, save]
    straight.fit(schedulers=made(straight))
    found = At("after_train_batch", settings)
    resumed = trainer_of(max_duration="4ep", load_path=path, callbacks=found)
    resumed.fit(schedulers=made(resumed))
    assert found.found == used.found[8:]


@pytest.mark.parametrize("make", [lambda o: ExponentialLR(o, 0.5), lambda o: ChainedScheduler([ExponentialLR(o, 0.5)])])
def test_torch_schedulers_resume_at_the_last_batch_of_an_epoch_without_a_warning(tmp_path, make) -> None:
    def train(**more: Any) -> list[float]:
        optimizer = torch.optim.SGD((model := TwoLayers()).parameters(), lr=0.1)
        used = At("before_train_batch", lambda state: optimizer.param_groups[0]["lr"])
        run = {"max_duration": "3ep", "run_name": "run", "callbacks": used, "schedulers": make(optimizer), **more}
        trainer_of(model, optimizers=optimizer, **run).fit()
        return used.found

    full = train(save_folder=str(tmp_path), save_filename="{batch}.pt", save_interval="1ba")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert train(load_path=str(tmp_path / "4.pt")) == full[4:] == [0.05] * 4 + [0.025] * 4


def test_missing_schedules_on_resume_are_reported(tmp_path) -> None:
    trainer = trainer_of()
    trainer.fit(schedulers=torch.optim.lr_scheduler.ConstantLR(trainer.state.optimizers[0]))
    path = trainer.save_checkpoint(str(tmp_path / "checkpoint.pt"))
    resumed = trainer_of(load_path=path)
    with pytest.warns(ComposerWarning, match="the state of ConstantLR, which is not among the schedulers"):
        resumed.fit(duration="1ep")
