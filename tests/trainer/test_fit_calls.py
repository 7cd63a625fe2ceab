"""A program with several calls of fit, killed anywhere and started again, trains what it would have trained at once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from composer import Callback, Trainer
from composer.checkpoint.file_format import write
from composer.checkpoint.load import open_checkpoint
from composer.optim import ConstantScheduler, LinearScheduler
from composer.trainer.fit_calls import FitCalls
from composer.warnings import ComposerWarning
from tests.common import weights
from tests.trainer.resuming import build, shuffled


class Kill(Callback):
    """Raises after a batch, of any call or of one."""

    def __init__(self, batch: int, call: int | None = None) -> None:
        self.batch, self.call = batch, call
        self.first: int | None = None  # number of batches after the first that this process trained

    def batch_end(self, state, logger) -> None:
        batch = int(state.timestamp.batch)
        self.first = batch if self.first is None else self.first
        if batch == self.batch and self.call in (None, len(state.fit_calls)):
            raise KeyboardInterrupt


def program(folder: Path, calls: list[dict[str, Any]], *callbacks: Callback, **arguments: Any) -> Trainer:
    given = {"max_duration": None, "schedulers": None, "save_interval": "2ba", **arguments}
    trainer = build(shuffled(), save_folder=str(folder), autoresume=True, callbacks=list(callbacks), **given)
    for call in calls:
        trainer.fit(**call)
    return trainer


def restarted(
    folder: Path, calls: list[dict[str, Any]], batch: int, *, call: int | None = None, **arguments: Any
) -> Trainer:
    """The program, killed once after a batch, of any call or of one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "autoresume: this call of fit is already complete", ComposerWarning)
        with pytest.raises(KeyboardInterrupt):
            program(folder, calls, Kill(batch, call), **arguments)
        return program(folder, calls, **arguments)


def began(trainer: Trainer) -> list[tuple[int, str]]:
    return [(call["began"]["ba"], call["end"]) for call in trainer.state.fit_calls]


def durations(*texts: str | None) -> list[dict[str, Any]]:
    return [{"duration": text} for text in texts]


@pytest.mark.parametrize("interval", ["2ba", "1ep"])
@pytest.mark.parametrize(
    ("calls", "arguments"),
    [
        (durations("2ep", "1ep"), {}),
        (durations("5ba", "4ba", "1ep"), {}),
        (durations(None, "1ep"), {"max_duration": "1ep"}),
        (
            [
                {"duration": "1ep", "schedulers": LinearScheduler(1.0, 0.5)},
                {"duration": "4ba"},
                {"duration": "3ba", "schedulers": ConstantScheduler(0.1)},
            ],
            {},
        ),
    ],
    ids=["epochs", "batches", "max_duration", "schedulers"],
)
def test_a_program_killed_in_any_call_trains_the_same(calls, arguments, interval, tmp_path) -> None:
    straight = program(tmp_path / "straight", calls, save_interval=interval, **arguments)
    end = int(straight.state.timestamp.batch)
    for batch in (1, 4, 5, 6, 7, 9, end - 1, end):
        again = restarted(tmp_path / str(batch), calls, batch, save_interval=interval, **arguments)
        assert int(again.state.timestamp.batch) == end, batch
        assert torch.equal(weights(again), weights(straight)), batch
        assert began(again) == began(straight), batch


def test_a_program_killed_repeatedly(tmp_path) -> None:
    calls = durations("2ep", "1ep")
    straight = program(tmp_path / "straight", calls)
    for batch in (3, 12, 13, 15, 17):
        with pytest.raises(KeyboardInterrupt):
            program(tmp_path / "run", calls, Kill(batch))
    assert torch.equal(weights(program(tmp_path / "run", calls)), weights(straight))
    complete = program(tmp_path / "run", calls)
    assert int(complete.state.timestamp.batch) == 18
    assert torch.equal(weights(complete), weights(straight))


def test_a_call_that_was_stopped_early_is_not_continued(tmp_path) -> None:
    class Stop(Callback):
        def batch_end(self, state, logger) -> None:
            if int(state.timestamp.batch) == 4:
                state.stop_training(reason="it is enough")

    def command(*callbacks: Callback) -> Trainer:
        return program(tmp_path, durations("2ep", "6ba"), Stop(), *callbacks, save_interval="1ba")

    with pytest.raises(KeyboardInterrupt):
        command(Kill(8))
    assert int(command().state.timestamp.batch) == 10


def test_a_call_with_another_duration_trains_until_its_new_end(tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt):
        program(tmp_path, durations("1ep", "1ep"), Kill(9))
    changed = program(tmp_path, durations("2ep", "3ba"))
    assert int(changed.state.timestamp.batch) == 15
    assert [call["end"] for call in changed.state.fit_calls] == ["2ep", "15ba"]
    with pytest.warns(ComposerWarning, match="already complete"):
        program(tmp_path, durations("2ep", "3ba"))
    assert int(program(tmp_path, durations("2ep", "5ba")).state.timestamp.batch) == 17


RESETS = [{"duration": "5ba"}, {"duration": "7ba", "reset_time": True}, {"duration": "3ba", "reset_time": True}]


def test_calls_that_reset_the_time_are_not_repeated(tmp_path) -> None:
    straight = program(tmp_path / "straight", RESETS)
    for call, batch in ((1, 5), (2, 3), (2, 7), (3, 3)):
        again = restarted(tmp_path / f"{call}-{batch}", RESETS, batch, call=call)
        assert torch.equal(weights(again), weights(straight)), (call, batch)
        assert began(again) == began(straight) == [(0, "5ba"), (0, "7ba"), (0, "3ba")]
    with pytest.warns(ComposerWarning, match="already complete"):
        assert torch.equal(weights(program(tmp_path / "straight", RESETS)), weights(straight))


def test_a_call_that_failed_here_resets_the_time_again(tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt):
        program(tmp_path, RESETS[:2], Kill(4, call=2))
    trainer = program(tmp_path, RESETS[:1])
    kill = Kill(6, call=2)
    trainer.state.callbacks.append(kill)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(**RESETS[1])
    assert kill.first == 3
    trainer.state.callbacks.remove(kill)
    trainer.state.callbacks.append(again := Kill(8, call=2))
    trainer.fit(**RESETS[1])
    assert (again.first, int(trainer.state.timestamp.batch)) == (1, 7)


def test_a_call_that_fails_is_tried_again(tmp_path) -> None:
    trainer = build(shuffled(), save_folder=str(tmp_path), max_duration="2ep", callbacks=Kill(5), save_interval="1ba")
    with pytest.raises(KeyboardInterrupt):
        trainer.fit()
    trainer.fit()
    assert [call["end"] for call in trainer.state.fit_calls] == ["2ep"]


def test_checkpoints_without_calls(tmp_path) -> None:
    with pytest.raises(KeyboardInterrupt):
        program(tmp_path, durations("2ep"), Kill(8))
    path = (tmp_path / "latest-rank0.pt").resolve()
    content = open_checkpoint(path)
    assert content["state"]["ending"].pop("fit_calls")[0]["began"]["ba"] == 0
    write(content, path)
    assert int(program(tmp_path, durations("2ep", "2ba")).state.timestamp.batch) == 14


def test_loading_for_another_run_begins_its_own_calls(tmp_path) -> None:
    path = program(tmp_path / "first", durations("4ba")).saved_checkpoints[-1]
    calls = durations("2ba", "3ba")
    with pytest.raises(KeyboardInterrupt):
        program(tmp_path / "second", calls, Kill(7), load_path=path, save_interval="1ba")
    with pytest.warns(ComposerWarning, match="already complete"):
        again = program(tmp_path / "second", calls, load_path=path, save_interval="1ba")
    assert [call["end"] for call in again.state.fit_calls] == ["6ba", "9ba"]
    assert FitCalls().is_resumed is False
