"""Iterations of several epochs: schedules, evaluations and checkpoints where one ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Callback, Evaluator, Event, Trainer
from composer.checkpoint import save_checkpoint
from composer.optim import LinearScheduler
from tests.common import At, Regression, regression_data, trainer_of, weights


class SaveAt(Callback):
    """Saves at an event, with the number of epochs in the name."""

    def __init__(self, event: str, folder: Path) -> None:
        self.event, self.folder = Event(event), folder

    def run_event(self, event, state, logger) -> None:
        if event is self.event:
            save_checkpoint(state, self.folder / "{epoch}.pt")


def trained(*callbacks: Callback, length: str = "2ep", **arguments: Any) -> Trainer:
    torch.manual_seed(0)
    arguments = {"max_duration": "6ep", "seed": 1, **arguments}
    trainer = trainer_of(Regression(metrics=True), regression_data(2), callbacks=list(callbacks), **arguments)
    trainer.state._iteration_length = length
    trainer.fit()
    trainer.close()
    return trainer


def counts(trainer: Trainer) -> dict[str, int]:
    now = trainer.state.timestamp
    return {
        name: int(getattr(now, name)) for name in ("iteration", "epoch_in_iteration", "token_in_iteration", "epoch")
    }


@pytest.mark.parametrize("event", ["epoch_end", "epoch_checkpoint", "iteration_end", "iteration_checkpoint"])
def test_resumes_where_an_iteration_ends(event: str, tmp_path: Path) -> None:
    straight = trained(SaveAt(event, tmp_path))
    assert counts(straight)["iteration"] == 3
    for epoch in (2, 4):
        seen = At("iteration_start", lambda state: int(state.timestamp.epoch))
        resumed = trained(seen, load_path=str(tmp_path / f"{epoch}.pt"))
        assert counts(resumed) == counts(straight)
        assert seen.found == [2, 4][epoch // 2 - 1 :]


def test_the_last_iteration_ends_if_the_run_is_saved_before(tmp_path: Path) -> None:
    straight = trained(SaveAt("epoch_checkpoint", tmp_path), max_duration="2iter")
    resumed = trained(load_path=str(tmp_path / "4.pt"), max_duration="2iter")
    assert counts(resumed) == counts(straight)
    assert torch.equal(weights(resumed), weights(straight))


def test_schedules_of_iterations_do_not_lag(tmp_path: Path) -> None:
    """Nor does a run that was resumed between two iterations have other rates."""
    arguments: dict[str, Any] = {"max_duration": "3iter", "schedulers": LinearScheduler()}

    def rate(state: Any) -> float:
        return round(state.optimizers[0].param_groups[0]["lr"], 6)

    rates = At("batch_start", rate)
    straight = trained(rates, SaveAt("iteration_checkpoint", tmp_path), **arguments)
    assert rates.found == [0.1] * 4 + [0.066667] * 4 + [0.033333] * 4
    again = At("batch_start", rate)
    resumed = trained(again, load_path=str(tmp_path / "2.pt"), **arguments)
    assert again.found == rates.found[4:]
    assert torch.equal(weights(resumed), weights(straight))
    by_epoch = At("batch_start", rate)
    trained(by_epoch, step_schedulers_every_batch=False, **arguments)
    assert by_epoch.found == rates.found


@pytest.mark.parametrize("duration", ["6ep", "3iter", "11ba"])
def test_evaluates_at_the_end_of_each_iteration(duration: str) -> None:
    evaluator = Evaluator(label="test", dataloader=regression_data(1), eval_interval="1iter")
    seen = At("eval_end", lambda state: int(state.timestamp.batch))
    trained(seen, max_duration=duration, eval_dataloader=evaluator)
    assert seen.found == [4, 8, 11 if duration == "11ba" else 12]


def test_resumes_within_the_evaluation_of_an_iteration(tmp_path: Path) -> None:
    def run(*callbacks: Callback, **arguments: Any) -> list[Any]:
        data = [Evaluator(label=name, dataloader=regression_data(1), eval_interval="1iter") for name in "ab"]
        seen = At("eval_start", lambda state: (int(state.timestamp.batch), state.dataloader_label))
        trained(seen, *callbacks, eval_dataloader=data, **arguments)
        return seen.found

    class SaveInSecond(Callback):
        def eval_start(self, state, logger) -> None:
            if state.dataloader_label == "b" and int(state.timestamp.batch) == 8:
                save_checkpoint(state, tmp_path / "second.pt")

    straight = run(SaveInSecond())
    assert straight == [(batch, label) for batch in (4, 8, 12) for label in "ab"]
    # The values of the first are in the checkpoint.
    assert run(load_path=str(tmp_path / "second.pt")) == straight[3:]
