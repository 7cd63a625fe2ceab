"""The same command does not train a complete run further; a longer duration does."""

from __future__ import annotations

import os
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Callback, Evaluator, Trainer, dist
from composer.callbacks import CheckpointSaver, EarlyStopper, MLPerfCallback, ThresholdStopper
from composer.checkpoint.load import open_checkpoint
from composer.warnings import ComposerWarning
from tests.common import Regression, regression_data, trainer_of, weights
from tests.ranks import Ranks
from tests.trainer.resuming import Augmented, build, shuffled

COMPLETE = "autoresume: this call of fit is already complete"


class StopAt(Callback):
    """Ends the run at an event, as soon as so many batches are done."""

    def __init__(self, event: str, batch: int, how: str = "stop", rank: int | None = None) -> None:
        self.event, self.batch, self.how, self.rank = event, batch, how, rank

    def run_event(self, event, state, logger):
        mine = self.rank in (None, dist.get_global_rank())
        if event != self.event or int(state.timestamp.batch) < self.batch or state.stop is not None or not mine:
            return
        if self.how == "stop":
            state.stop_training(reason="it is enough")
        elif self.how == "kill":
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            state.max_duration = self.how


def command(folder: Path, *callbacks: Callback, **arguments: Any) -> Trainer:
    """The same command each time: it is made, and not yet run."""
    evaluation = {"eval_dataloader": DataLoader(Augmented(), 11), "eval_interval": "3ba"}
    arguments = {"max_duration": "4ep", "save_interval": "4ba", "schedulers": None, **evaluation, **arguments}
    return build(shuffled(), save_folder=str(folder), autoresume=True, callbacks=list(callbacks), **arguments)


def outcome(trainer: Trainer) -> tuple[Any, ...]:
    """Everything that the end of a run leaves."""
    state = trainer.state
    values = {name: float(value) for name, value in state.eval_metric_values.items()}
    train = {name: float(metric.compute()) for name, metric in state.train_metrics.items() if metric.update_called}
    direct = {name: float(metric.compute()) for name, metric in state.eval_metrics["eval"].items()}
    return int(state.timestamp.batch), int(state.timestamp.epoch), weights(trainer).tolist(), values, train, direct


def again(folder: Path, *callbacks: Callback, match: str = COMPLETE, **arguments: Any) -> Trainer:
    """Run the same command; it has nothing to do."""
    trainer = command(folder, *callbacks, **arguments)
    with pytest.warns(ComposerWarning, match=match):
        trainer.fit()
    return trainer


@pytest.mark.parametrize("interval", ["1ba", "2ba", "1ep", "100ba", lambda state, event: False])
@pytest.mark.parametrize(
    "event",
    [
        "fit_start", "epoch_start", "batch_start", "before_forward", "after_train_batch", "batch_end", "eval_start",
        "eval_batch_end", "eval_end", "batch_checkpoint", "epoch_end", "epoch_checkpoint",
    ],
)  # fmt: skip
def test_RestartIdempotent_wherever_a_callback_ends_the_run(event, interval, tmp_path) -> None:
    batch = 0 if event == "fit_start" else 6 if event.startswith("epoch_") else 3
    first = command(tmp_path, save_interval=interval)
    # After the saver, so that what is saved at the same event lacks the end.
    first.state.callbacks.append(StopAt(event, batch))
    first.fit()
    assert str(first.state.stop) == "stopped by StopAt: it is enough"
    assert int(first.state.timestamp.batch) < 24
    if event == "fit_start":  # nothing was trained, nor evaluated
        assert int(first.state.timestamp.batch) == 0
    expected = outcome(first) if event != "fit_start" else None
    for _ in range(2):
        trainer = again(tmp_path, match=f"{COMPLETE}, stopped by StopAt: it is enough", save_interval=interval)
        assert expected is None or outcome(trainer) == expected
        assert torch.equal(weights(trainer), weights(first))


@pytest.mark.parametrize("how", ["7ba", "1ep", "3ep", "0ba"])
def test_RestartIdempotent_where_a_callback_sets_the_duration(how, tmp_path) -> None:
    first = command(tmp_path, StopAt("batch_end", 4, how))
    first.fit()
    assert int(first.state.timestamp.batch) == {"7ba": 7, "1ep": 6, "3ep": 18, "0ba": 4}[how]
    assert outcome(again(tmp_path, StopAt("batch_end", 4, how))) == outcome(first)


def test_a_run_that_is_killed_after_its_duration_was_set_continues_to_the_end_set(tmp_path) -> None:
    straight = command(tmp_path / "straight", StopAt("batch_end", 2, "9ba"))
    straight.fit()
    with pytest.raises(SystemExit):
        command(tmp_path, StopAt("batch_end", 2, "9ba"), StopAt("batch_start", 5, "kill")).fit()
    # The callback has done its work; that it does not do it again changes nothing.
    resumed = command(tmp_path)
    assert int(resumed.state.timestamp.batch) == 6
    resumed.fit()
    assert outcome(resumed) == outcome(straight)


STOPPERS = {
    "early": lambda: EarlyStopper("CrossEntropy", "eval", min_delta=0.5, patience="5ba"),
    "early on train": lambda: EarlyStopper("MulticlassAccuracy", "train", min_delta=1.0, patience=1),
    "early on batches": lambda: EarlyStopper("MulticlassAccuracy", "train", min_delta=1.0, patience="3ba"),
    "threshold": lambda: ThresholdStopper("CrossEntropy", "eval", 100.0),
    "threshold on batches": lambda: ThresholdStopper("MulticlassAccuracy", "train", -1.0, stop_on_batch=True),
}


@pytest.mark.parametrize("interval", ["1ba", "1ep", "5ba"])
@pytest.mark.parametrize("kind", STOPPERS)
def test_RestartIdempotent_of_each_stopper(kind, interval, tmp_path) -> None:
    first = command(tmp_path, STOPPERS[kind](), save_interval=interval)
    first.fit()
    assert first.state.stop is not None
    assert int(first.state.timestamp.batch) < 24
    for _ in range(2):
        restarted = again(tmp_path, STOPPERS[kind](), match=str(first.state.stop)[:30], save_interval=interval)
        assert outcome(restarted) == outcome(first)
        assert restarted.state.stop == first.state.stop


def test_RestartIdempotent_of_a_target_of_MLPerf(tmp_path) -> None:
    def target(number: int) -> MLPerfCallback:
        root = tmp_path / f"logs{number}"
        return MLPerfCallback(
            str(root), 0, target=100.0, metric_name="CrossEntropy", metric_label="eval", exit_at_target=True
        )

    pytest.importorskip("cpuinfo", reason="MLPerfCallback describes the processor")
    first = command(tmp_path / "run", target(0))
    first.fit()
    assert "below the target 100" in str(first.state.stop)
    assert outcome(again(tmp_path / "run", target(1), match="stopped by MLPerfCallback")) == outcome(first)


@pytest.mark.parametrize("duration", ["2ep", "9ba"])
@pytest.mark.parametrize("interval", ["3ba", "5ba", "1ep"])
@pytest.mark.parametrize("saved", ["1ba", "4ba", "1ep"])
def test_RestartIdempotent_at_the_duration(duration, interval, saved, tmp_path) -> None:
    """The evaluation at the end, where none is due at the last batch, comes after the last checkpoint."""
    arguments: dict[str, Any] = {"max_duration": duration, "eval_interval": interval, "save_interval": saved}
    first = command(tmp_path, **arguments)
    first.fit()
    assert first.state.stop is None
    if duration == "2ep" and saved != "1ep" and interval == "3ba":
        # The last checkpoint is of before the epoch was closed, which is done again, without a step.
        closed = command(tmp_path, NoStep(), **arguments)
        closed.fit()
        assert outcome(closed)[:4] == outcome(first)[:4]
        first = closed
    assert outcome(again(tmp_path, NoStep(), **arguments)) == outcome(first)


class NoStep(Callback):
    def batch_start(self, state, logger):
        pytest.fail("a step is made")


@pytest.mark.parametrize("event", ["eval_start", "eval_batch_start", "eval_batch_end"])
def test_interrupted_last_evaluation_is_repeated(event, tmp_path) -> None:
    arguments: dict[str, Any] = {"max_duration": "12ba", "eval_interval": "12ba"}
    straight = command(tmp_path / "straight", **arguments)
    straight.fit()
    with pytest.raises(SystemExit):
        command(tmp_path, StopAt(event, 12, "kill"), **arguments).fit()
    resumed = command(tmp_path, **arguments)
    resumed.fit()
    assert outcome(resumed)[:2] == (12, 2)
    assert torch.equal(weights(resumed), weights(straight))
    assert resumed.state.eval_metric_values.keys() == straight.state.eval_metric_values.keys()
    last = again(tmp_path, **arguments)
    assert torch.equal(weights(last), weights(straight))
    assert outcome(last)[3:] == outcome(resumed)[3:]


class Evaluations(Callback):
    """Counts completed evaluations by label, and fails in, or interrupts, that of a label after the last batch."""

    def __init__(self, batch: int = -1, label: str = "eval", how: str = "raise") -> None:
        self.batch, self.label, self.how, self.done = batch, label, how, list[str]()

    def eval_batch_end(self, state, logger):
        if int(state.timestamp.batch) == self.batch and state.dataloader_label == self.label:
            if self.how == "raise":
                raise RuntimeError("killed")
            os.kill(os.getpid(), signal.SIGTERM)

    def eval_end(self, state, logger):
        self.done.append(str(state.dataloader_label))


@pytest.mark.parametrize("how", ["raise", "signal"])
@pytest.mark.parametrize("saved", ["1ba", "1ep", "100ba"])
# At the end of training in and after an epoch, and at the end of the last epoch.
@pytest.mark.parametrize(("duration", "interval"), [("9ba", "1ep"), ("9ba", "5ba"), ("12ba", "5ba"), ("12ba", "1ep")])
def test_last_evaluation_that_failed_is_made_up_for_once(duration, interval, saved, how, tmp_path) -> None:
    arguments: dict[str, Any] = {"max_duration": duration, "eval_interval": interval, "save_interval": saved}
    straight = command(tmp_path / "straight", **arguments)
    straight.fit()
    with pytest.raises(RuntimeError if how == "raise" else SystemExit):
        command(tmp_path, Evaluations(int(duration[:-2]), how=how), **arguments).fit()
    evaluations = Evaluations()
    resumed = command(tmp_path, evaluations, NoStep(), **arguments)
    resumed.fit()
    assert evaluations.done == ["eval"]
    assert outcome(resumed)[:3] == outcome(straight)[:3]
    # Augmented samples values anew at each access, and where a signal interrupts it had sampled some.
    assert outcome(resumed)[3].keys() == outcome(straight)[3].keys()
    for _ in range(2):
        assert outcome(again(tmp_path, NoStep(), **arguments)) == outcome(resumed)


def test_only_the_missing_evaluation_of_a_stopped_run_is_made_up_for(tmp_path) -> None:
    def arguments() -> dict[str, Any]:
        loader = DataLoader(Augmented(), 11)
        evaluators = [Evaluator(label="often", dataloader=loader, eval_interval="1ba")]
        evaluators.append(Evaluator(label="late", dataloader=loader, eval_interval="20ba"))
        evaluators.append(Evaluator(label="never", dataloader=loader, eval_interval=0))
        return {"eval_dataloader": evaluators, "save_interval": "1ba"}

    with pytest.raises(RuntimeError, match="killed"):
        command(tmp_path, StopAt("batch_end", 3), Evaluations(3, "late"), **arguments()).fit()
    evaluations = Evaluations()
    resumed = command(tmp_path, evaluations, NoStep(), **arguments())
    resumed.fit()
    assert evaluations.done == ["late"]
    assert str(resumed.state.stop) == "stopped by StopAt: it is enough"
    again(tmp_path, NoStep(), match="stopped by StopAt", **arguments())


def test_run_stopped_in_an_interrupted_evaluation_is_not_trained_further(tmp_path) -> None:
    def evaluators() -> list[Evaluator]:
        return [Evaluator(label=label, dataloader=DataLoader(Augmented(), 11)) for label in ("eval", "second")]

    class Kill(Callback):
        def eval_start(self, state, logger):
            if state.dataloader_label == "second" and int(state.timestamp.batch) == 3:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(SystemExit):
        command(tmp_path, ThresholdStopper("CrossEntropy", "eval", 100.0), Kill(), eval_dataloader=evaluators()).fit()
    resumed = command(tmp_path, eval_dataloader=evaluators())
    resumed.fit()
    assert int(resumed.state.timestamp.batch) == 3
    assert "second/CrossEntropy" in resumed.state.eval_metric_values
    again(tmp_path, eval_dataloader=evaluators(), match="stopped by ThresholdStopper")


def test_signal_does_not_complete_a_run(tmp_path) -> None:
    straight = command(tmp_path / "straight")
    straight.fit()
    with pytest.raises(SystemExit):
        command(tmp_path, StopAt("batch_start", 5, "kill")).fit()
    resumed = command(tmp_path)
    resumed.fit()
    assert outcome(resumed) == outcome(straight)


def test_longer_duration_trains_further(tmp_path) -> None:
    first = command(tmp_path, StopAt("batch_end", 3))
    first.fit()
    with pytest.raises(ValueError, match="nothing left to train: it was stopped by StopAt: it is enough"):
        first.fit()
    first.state.callbacks[:] = [one for one in first.state.callbacks if not isinstance(one, StopAt)]
    first.fit(duration="2ba")
    assert int(first.state.timestamp.batch) == 5
    assert first.state.stop is None  # which the checkpoints from now on say too
    path = first.saved_checkpoints[-1]
    assert "stopped_by" not in open_checkpoint(path)["state"]["ending"]

    longer = command(tmp_path / "other", StopAt("batch_end", 3))
    longer.fit()
    resumed = command(tmp_path / "other", max_duration="8ba")
    resumed.fit()  # another duration than that which was not reached
    assert int(resumed.state.timestamp.batch) == 8

    begun = command(tmp_path / "third", StopAt("batch_end", 3))
    begun.fit()
    anew = command(tmp_path / "third", max_duration="4ep", save_overwrite=True)
    anew.fit(reset_time=True)
    assert int(anew.state.timestamp.batch) == 24


def test_a_duration_of_fit_is_complete_too(tmp_path) -> None:
    def run(*callbacks: Callback) -> Trainer:
        trainer = command(tmp_path, *callbacks, max_duration=None)
        trainer.fit(duration="3ep")
        return trainer

    assert int(run(StopAt("batch_end", 4)).state.timestamp.batch) == 4
    with pytest.warns(ComposerWarning, match=f"{COMPLETE}, stopped by StopAt"):
        assert int(run(StopAt("batch_end", 4)).state.timestamp.batch) == 4


def test_changed_duration_keeps_the_planned_schedules(tmp_path) -> None:
    from composer.optim import LinearScheduler

    def run(folder: Path, *callbacks: Callback) -> Trainer:
        return command(folder, *callbacks, schedulers=LinearScheduler())

    straight = run(tmp_path / "straight", StopAt("batch_end", 2, "9ba"))
    straight.fit()
    with pytest.raises(SystemExit):
        run(tmp_path, StopAt("batch_end", 2, "9ba"), StopAt("batch_start", 5, "kill")).fit()
    resumed = run(tmp_path)
    resumed.fit()
    assert torch.equal(weights(resumed), weights(straight))


def test_run_without_saver_saves_no_final_checkpoint(tmp_path) -> None:
    for number, arguments in enumerate(({"save_interval": 0}, {"save_weights_only": True, "save_interval": "100ba"})):
        folder = tmp_path / str(number)
        trainer = build(shuffled(), save_folder=str(folder), **arguments)
        trainer.state.callbacks.append(StopAt("batch_checkpoint", 3))  # after the saver, which sees it too late
        trainer.fit()
        assert not list(folder.glob("ep*"))


def test_checkpoints_without_completion_state_load(tmp_path) -> None:
    first = build(shuffled(), save_folder=str(tmp_path), callbacks=StopAt("batch_end", 4))
    first.fit()
    path = tmp_path / "ep0-ba4-rank0.pt"
    content = torch.load(path, weights_only=True)
    from composer.checkpoint.file_format import write

    for name in ("ending", "metric_values"):
        del content["state"][name]
    write(content, path)
    resumed = build(shuffled(), save_folder=str(tmp_path), autoresume=True)
    resumed.fit()
    assert int(resumed.state.timestamp.batch) == 12


def on_ranks(folder: str, rank: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(2):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = Regression(metrics=True)
            with trainer_of(
                model, regression_data(6, 2), max_duration="3ep", run_name="r", save_folder=folder, autoresume=True,
                save_interval="100ba", eval_dataloader=regression_data(2, 2),
                callbacks=StopAt("batch_end", 2, rank=rank),
            ) as trainer:  # fmt: skip
                trainer.fit()
                values = {name: float(value) for name, value in trainer.state.eval_metric_values.items()}
                train = {name: float(value) for name, value in trainer.state.train_metric_values.items()}
                found.append((int(trainer.state.timestamp.batch), weights(trainer).tolist(), values, train))
        told = [str(one.message) for one in caught]
    assert any("this call of fit is already complete, stopped by StopAt: it is enough" in text for text in told), told
    return found


@pytest.mark.parametrize("rank", [0, 1])
def test_RestartIdempotent_where_one_rank_asked_to_stop(rank, tmp_path, two_ranks: Ranks) -> None:
    first, second = two_ranks.run(on_ranks, str(tmp_path), rank)
    for found in (first, second):
        assert found[0] == found[1]
        assert found[0][0] == 3  # reduced with the next batch
        assert found[0][2]
        assert found[0][3]
    assert first[0][1:] == second[0][1:]


def test_custom_savers_save_completion_too(tmp_path) -> None:
    savers = [CheckpointSaver(tmp_path / name, save_interval="100ba") for name in ("a", "b")]
    run = build(shuffled(), callbacks=[*savers, StopAt("batch_checkpoint", 3)])
    run.fit()
    for saver in savers:
        (path,) = saver.saved_checkpoints
        assert open_checkpoint(path)["state"]["ending"]["stopped_by"] == "StopAt"
