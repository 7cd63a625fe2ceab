"""Evaluation during training and on request; the state afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics import MeanAbsoluteError, MeanSquaredError

from composer import Callback, ComposerModel, DataSpec, Evaluator, Event, Time
from composer.checkpoint import save_checkpoint
from composer.core import TrainerMode
from composer.warnings import ComposerWarning
from tests.common import (
    At,
    Received,
    Recorder,
    Regression,
    Unsized,
    classifier,
    labeled_data,
    regression_data,
    trainer_of,
)
from tests.on_device import place


class TwoMetrics(Regression):
    def get_metrics(self, is_train):
        return {} if is_train else {"Squared": MeanSquaredError(), "Absolute": MeanAbsoluteError()}


def squared_error(model, data) -> float:
    with torch.no_grad():
        return torch.cat([model(batch) - batch[1] for batch in place(data)]).square().mean().item()


# ---------------------------------------------------------------------------------------------------- when


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        (1, [4, 8, 10]),
        ("2ep", [8, 10]),
        ("3ba", [3, 6, 9, 10]),
        ("5ba", [5, 10]),
        (Time(5, "sp"), [3, 5, 8, 10]),
        ("0.5dur", [5, 10]),
        (0, []),
        ("100ba", [10]),
        (lambda state, event: event is Event.BATCH_END and state.timestamp.batch == 7, [7]),
    ],
)
def test_evaluation_is_due(interval, expected) -> None:
    when = At("eval_start", lambda state: state.timestamp.batch.value)
    trainer_of(max_duration="10ba", eval_dataloader=regression_data(1), eval_interval=interval, callbacks=when).fit()
    assert when.found == expected


def test_each_evaluator_has_its_own_interval_and_subset() -> None:
    when = At(
        "eval_end",
        lambda state: (state.dataloader_label, state.timestamp.batch.value, state.eval_timestamp.batch.value),
    )
    evaluators = [
        Evaluator(label="often", dataloader=regression_data(3), eval_interval="2ba", subset_num_batches=1),
        Evaluator(label="plain", dataloader=regression_data(3)),
        Evaluator(label="whole", dataloader=Unsized(regression_data(3)), subset_num_batches=-1),
    ]
    trainer_of(eval_dataloader=evaluators, eval_interval="3ba", eval_subset_num_batches=2, callbacks=when).fit()
    assert when.found == [
        ("often", 2, 1),
        ("plain", 3, 2),
        ("whole", 3, 3),
        ("often", 4, 1),
        ("plain", 4, 2),
        ("whole", 4, 3),
    ]


def test_the_last_evaluation_comes_before_fit_end() -> None:
    recorder = Recorder()
    trainer_of(max_duration="3ba", eval_dataloader=regression_data(1), callbacks=recorder).fit()
    assert recorder.events[-2:] == ["eval_after_all", "fit_end"]


def test_eval_batches_before_fit_are_not_logged() -> None:
    log, when = Received(), At("eval_end", lambda s: (s.timestamp.batch.value, s.eval_timestamp.batch.value))
    trainer = trainer_of(
        TwoMetrics(), eval_dataloader=regression_data(3), eval_batches_before_fit=1, loggers=log, callbacks=when
    )
    trainer.fit()
    assert when.found == [(0, 1), (4, 3)]
    assert [step for step, _ in log.series("metrics/eval/Squared")] == [4]


def test_evaluation_errors_are_found_before_training() -> None:
    class Mistaken(TwoMetrics):
        def eval_forward(self, batch, outputs=None):
            raise KeyError("typo")

    trainer = trainer_of(Mistaken(), eval_dataloader=regression_data(3), eval_batches_before_fit=1)
    with pytest.raises(KeyError, match="typo"):
        trainer.fit()
    assert trainer.state.timestamp.batch == 0


# ---------------------------------------------------------------------------------------------------- what


def test_metrics_are_independent_of_batch_sizes() -> None:
    data = [*regression_data(2, 5), *regression_data(1, 2, seed=4)]
    for microbatch in (None, 2):
        model, log = TwoMetrics(), Received()
        evaluator = Evaluator(label="test", dataloader=data, device_eval_microbatch_size=microbatch)
        trainer = trainer_of(model, eval_dataloader=evaluator, loggers=log)
        trainer.eval()
        expected = squared_error(model, data)
        assert log.series("metrics/test/Squared") == [(0, pytest.approx(expected))]
        assert trainer.state.eval_metrics["test"]["Squared"].compute().item() == pytest.approx(expected)
        assert trainer.state.eval_metric_values["test/Squared"].item() == pytest.approx(expected)


def test_each_evaluation_starts_over() -> None:
    log = Received()
    trainer = trainer_of(TwoMetrics(), lr=0.0, max_duration="2ep", eval_dataloader=regression_data(3), loggers=log)
    trainer.eval(subset_num_batches=1)
    trainer.fit()
    first, *whole = [value for _, value in log.series("metrics/eval/Squared")]
    model = trainer.state.model
    assert first == pytest.approx(squared_error(model, regression_data(1)))
    assert whole == pytest.approx([squared_error(model, regression_data(3))] * 2)


def test_metric_names_select() -> None:
    log = Received()
    evaluators = [
        Evaluator(label="a", dataloader=regression_data(1), metric_names=["Squared"]),
        Evaluator(label="b", dataloader=regression_data(1), metric_names=["Abs"]),
    ]
    trainer_of(TwoMetrics(), eval_dataloader=evaluators, loggers=log).eval()
    assert {n for _, m in log.metrics for n in m} == {"metrics/a/Squared", "metrics/b/Absolute"}
    with pytest.raises(ValueError, match=r"Evaluator 'c': metric_names has 'Sqared', .* Did you mean 'Squared'\?"):
        trainer_of(
            TwoMetrics(), eval_dataloader=Evaluator(label="c", dataloader=regression_data(1), metric_names=["Sqared"])
        )


def test_a_metric_that_computes_multiple_values() -> None:
    class Errors(MeanSquaredError):  # noqa: N818 - a metric
        def compute(self):
            value = super().compute()
            return {"mse": value, "rmse": value.sqrt()}

    class Model(Regression):
        def get_metrics(self, is_train):
            return {"Error": Errors()}

    log = Received()
    trainer_of(Model(), loggers=log, eval_dataloader=regression_data(2)).fit()
    for label in ("train", "eval"):
        (_, mse), (_, rmse) = (
            log.series(f"metrics/{label}/Error/mse")[-1],
            log.series(f"metrics/{label}/Error/rmse")[-1],
        )
        assert rmse == pytest.approx(mse**0.5)


def test_the_samples_of_an_evaluation_are_counted() -> None:
    counts = At("eval_end", lambda s: (s.eval_timestamp.batch.value, s.eval_timestamp.sample.value, s.dataloader_len))
    trainer_of(eval_dataloader=regression_data(3, 5), callbacks=counts).eval()
    assert counts.found == [(3, 15, Time(3, "ba"))]


def test_transforms_of_evaluation_data() -> None:
    spec = DataSpec(
        regression_data(1, 4),
        batch_transforms=lambda batch: (batch[0] * 0, batch[1]),
        microbatch_transforms=lambda batch: (batch[0] + len(batch[0]), batch[1]),
    )
    seen = At("eval_before_forward", lambda state: state.batch[0].clone())
    trainer_of(
        eval_dataloader=Evaluator(label="e", dataloader=spec, device_eval_microbatch_size=3), callbacks=seen
    ).eval()
    assert [x.unique().tolist() for x in seen.found] == [[3.0], [1.0]]


def test_fit_takes_other_evaluation_data() -> None:
    log = Received()
    trainer = trainer_of(TwoMetrics(), eval_dataloader=regression_data(1), loggers=log)
    trainer.fit()
    trainer.fit(
        duration="4ba",
        eval_dataloader=Evaluator(label="new", dataloader=regression_data(4)),
        eval_interval="2ba",
        eval_subset_num_batches=3,
    )
    assert [step for step, _ in log.series("metrics/new/Squared")] == [6, 8]
    assert len(log.series("metrics/eval/Squared")) == 1


def test_eval_of_other_data_leaves_the_evaluators_alone() -> None:
    log = Received()
    trainer = trainer_of(TwoMetrics(), eval_dataloader=regression_data(1), loggers=log)
    own = trainer.state.evaluators
    trainer.eval(Evaluator(label="other", dataloader=regression_data(3)), subset_num_batches=2)
    assert trainer.state.evaluators is own
    assert trainer.state.eval_metrics["other"]["Squared"].total == 4
    assert trainer.state.eval_timestamp.batch == 2
    assert len(log.metrics) == 1


def test_eval_without_data_raises() -> None:
    with pytest.raises(ValueError, match="eval_dataloader must be given"):
        trainer_of().eval()
    trainer_of(eval_dataloader=[]).fit()  # no evaluators, rather than one of no batches


def test_no_batch_to_evaluate_on_warns() -> None:
    trainer = trainer_of(TwoMetrics(), eval_dataloader=DataSpec([]))
    with pytest.warns(ComposerWarning, match="The data 'eval' yielded no batches"):
        trainer.eval()


@pytest.mark.parametrize("subset", [0, -2])
def test_impossible_numbers_of_evaluation_batches(subset) -> None:
    with pytest.raises(ValueError, match=f"subset_num_batches must be positive, or -1 for all batches; got {subset}"):
        trainer_of(eval_dataloader=regression_data(2), eval_subset_num_batches=subset)
    trainer = trainer_of(eval_dataloader=regression_data(2))
    with pytest.raises(ValueError, match=f"subset_num_batches must be positive, or -1 for all batches; got {subset}"):
        trainer.eval(subset_num_batches=subset)
    with pytest.raises(ValueError, match=f"subset_num_batches must be positive, or -1 for all batches; got {subset}"):
        trainer.predict(regression_data(2), subset)


# ---------------------------------------------------------------------------------------------------- afterwards


def picture(trainer) -> dict:
    state = trainer.state
    return {
        "phase": state.phase.mode,
        "label": state.dataloader_label,
        "length": state.dataloader_len,
        "batch": state.batch,
        "outputs": state.outputs,
        "modes": {name: module.training for name, module in state.model.named_modules()},
        "grad": torch.is_grad_enabled(),
        "evaluators": state.evaluators,
    }


class Frozen(ComposerModel):
    """A part of the model stays in evaluation mode, as frozen batch norm does."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.dropout, self.linear = nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1)

    def train(self, mode: bool = True):
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, batch):
        return self.linear(self.dropout(self.frozen(batch[0])))

    def loss(self, outputs, batch):
        return nn.functional.mse_loss(outputs, batch[1])


@pytest.mark.parametrize("fails", [None, KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("what", ["eval", "predict"])
def test_state_is_restored_even_after_an_exception(what, fails) -> None:
    def maybe_fail(state) -> None:
        assert state.phase.mode is TrainerMode(what)
        assert not state.model.dropout.training
        assert not torch.is_grad_enabled()
        if fails is not None:
            raise fails("in the middle")

    model = Frozen()
    at = At(f"{what}_after_forward", maybe_fail)
    trainer = trainer_of(model, max_duration="2ba", callbacks=at)
    trainer.fit()
    trainer.state.model.linear.eval()  # whatever mode a module is in
    before = picture(trainer)
    call = {"eval": trainer.eval, "predict": trainer.predict}[what]
    if fails is None:
        call(regression_data(2))
    else:
        with pytest.raises(fails, match="in the middle"):
            call(regression_data(2))
    assert picture(trainer) == before
    at.function = lambda state: None
    call(regression_data(2))
    trainer.fit(duration="1ba")


def test_evaluation_does_not_change_training() -> None:
    def train(**evaluation):
        torch.manual_seed(0)
        model = Frozen()
        batches = At("batch_checkpoint", lambda s: (s.batch, s.loss.clone(), s.phase.mode, s.model.dropout.training))
        trainer = trainer_of(model, max_duration="2ep", callbacks=batches, seed=3, **evaluation)
        trainer.fit()
        return batches.found, model

    plain, model = train()
    evaluated, twin = train(eval_dataloader=regression_data(2, seed=7), eval_interval="1ba")
    for (batch, loss, mode, training), (other_batch, other_loss, other_mode, other_training) in zip(
        plain, evaluated, strict=True
    ):
        assert torch.equal(batch[0], other_batch[0])
        assert torch.equal(loss, other_loss)
        assert (mode, training) == (other_mode, other_training) == (TrainerMode.TRAIN, True)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_eval_from_a_callback_while_training() -> None:
    """Metrics of later steps are delivered when due, as before."""
    log = Received(flush_interval=10)
    holder = []
    callback = At("batch_end", lambda state: holder[0].eval() if state.timestamp.batch == 2 else None)
    trainer = trainer_of(
        classifier(),
        labeled_data(8),
        eval_dataloader=labeled_data(1),
        eval_interval=0,
        loggers=log,
        callbacks=callback,
    )
    holder.append(trainer)
    delivered = At("batch_checkpoint", lambda state: len(log.series("loss/train/total")))
    trainer.state.callbacks.append(delivered)
    trainer.fit()
    assert delivered.found == [0, 2, 2, 2, 2, 2, 2, 2]
    assert len(log.series("loss/train/total")) == 8
    assert trainer.state.phase.mode is TrainerMode.TRAIN


def test_metrics_may_compute_sparse_tensors() -> None:
    class PairError(MeanSquaredError):
        def compute(self):
            pair = super().compute().repeat(2)
            return {"dense": pair, "sparse": pair.to_sparse()}

    class Model(Regression):
        def get_metrics(self, is_train):
            return {"Pair": PairError()}

    log = Received()
    trainer_of(Model(), eval_dataloader=regression_data(2, seed=7), loggers=log).fit()
    for label in ("train", "eval"):
        dense, sparse = (log.series(f"metrics/{label}/Pair/{kind}") for kind in ("dense", "sparse"))
        assert dense == sparse != []


@pytest.mark.parametrize("event", ["batch_checkpoint", "epoch_end"])
def test_an_evaluation_after_the_last_batch_is_not_repeated_in_a_resumed_run(event: str, tmp_path) -> None:
    """Training ends with the epoch, without another batch."""

    def evaluated(*callbacks: Callback, **arguments: Any) -> list[int]:
        seen = At("eval_end", lambda state: int(state.timestamp.batch))
        data = {"eval_dataloader": regression_data(1), "eval_interval": "2ba"}
        trainer_of(max_duration="2ep", callbacks=[seen, *callbacks], **data, **arguments).fit()
        return seen.found

    save = At(event, lambda state: save_checkpoint(state, tmp_path / "{batch}.pt"))
    assert evaluated(save) == [2, 4, 6, 8]
    assert evaluated(load_path=str(tmp_path / "4.pt")) == [6, 8]
    assert evaluated(load_path=str(tmp_path / "8.pt")) == []
