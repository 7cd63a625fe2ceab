"""Dry run."""

from __future__ import annotations

import contextlib
import copy
import io
import re

import pytest
import torch
from torch.optim.lr_scheduler import StepLR

from composer import Evaluator
from composer.trainer.dry_run import dry_run
from tests.common import At, Received, Recorder, Regression, Unsized, regression_data, trainer_of


def test_the_report(capsys) -> None:
    trainer = trainer_of(
        Regression(metrics=True),
        regression_data(5, 3),
        max_duration="100ep",
        dry_run=True,
        eval_dataloader=[Evaluator(label=label, dataloader=regression_data(3, 7)) for label in ("a", "b")],
    )
    trainer.fit()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Dry run of Regression: 5 trainable parameters, on cpu in fp32; algorithms none."
    expected = [
        rf"  {label} batch {number}: \(float32\[{size}, 4\], float32\[{size}, 1\]\) -> float32\[{size}, 1\], "
        rf"[\d.]+ ms{loss}"
        for label, size, loss in (("train", 3, r" loss [\d.]+"), ("a", 7, ""), ("b", 7, ""))
        for number in (1, 2)
    ]
    assert len(lines) == 8
    for line, pattern in zip(lines[1:7], expected, strict=True):
        assert re.fullmatch(pattern, line), line
    assert (memory := re.fullmatch(r"Peak memory ([\d,]+) MiB\.", lines[7]))
    assert 50 < int(memory[1].replace(",", "")) < 100_000


def test_the_report_of_other_batches(capsys) -> None:
    class ByName(Regression):
        def forward(self, batch):
            return {"y": self.linear(batch["x"]), "n": 3}

        def loss(self, outputs, batch):
            return outputs["y"].mean()

    trainer_of(ByName(), [{"x": torch.ones(2, 4), "names": ["a", "b"]}], dry_run=True).fit()
    lines = capsys.readouterr().err.splitlines()
    assert "{'x': float32[2, 4], 'names': ['str', 'str']} -> {'y': float32[2, 1], 'n': 'int'}" in lines[1]
    assert lines[2].startswith("  train batch 2")  # in a second epoch, where one has a single batch


@pytest.mark.parametrize("data", [regression_data(5), Unsized(regression_data(5)), regression_data(1)])
def test_training_starts_over_afterwards(data) -> None:
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder, log = Recorder(), Received()
    schedule = StepLR(optimizer, 1, gamma=0.5)
    trainer = trainer_of(
        model,
        data,
        optimizers=optimizer,
        schedulers=schedule,
        step_schedulers_every_batch=True,
        dry_run=True,
        max_duration="3ep",
        eval_dataloader=regression_data(3),
        callbacks=recorder,
        loggers=log,
    )
    state = trainer.state
    callbacks, evaluators, length = list(state.callbacks), state.evaluators, state.dataloader_len
    before = copy.deepcopy(model.state_dict())
    trainer.fit()
    assert recorder.events.count("batch_end") == 2
    assert recorder.events.count("eval_batch_end") == 2
    assert (state.timestamp.batch, state.timestamp.epoch) == (0, 0)
    assert state.max_duration == "3ep"
    assert (state.callbacks, state.evaluators, state.dataloader_len) == (callbacks, evaluators, length)
    assert any(not torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert schedule.last_epoch == 0
    trainer.fit()
    assert recorder.events.count("batch_end") == 4


def test_error_is_raised_and_leaves_the_trainer_unchanged() -> None:
    fail = At("eval_after_forward", lambda state: 1 / 0)
    trainer = trainer_of(dry_run=True, eval_dataloader=regression_data(1), callbacks=fail)
    with pytest.raises(ZeroDivisionError):
        trainer.fit()
    assert trainer.state.timestamp.batch == 0
    assert trainer.state.callbacks == [fail]
    assert len(trainer.state.evaluators) == 1


def test_report_is_returned_and_printed(capsys) -> None:
    trainer = trainer_of()
    report = dry_run(trainer._run)
    assert capsys.readouterr().err == report
    assert report.endswith("MiB.\n")


def _reported() -> str:
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        trainer_of(dry_run=True).fit()
    return told.getvalue()


def test_only_rank_zero_reports(two_ranks) -> None:
    first, second = two_ranks.run(_reported)
    assert first.startswith("Dry run of Regression")
    assert not second
