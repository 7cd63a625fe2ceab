"""The ledgers of trainers, over calls, restarts, copies and failures, with simulated time."""

from __future__ import annotations

import gc
import shutil
import signal
import weakref
from types import SimpleNamespace

import pytest
import torch

from composer import Callback
from composer.callbacks import CheckpointSaver
from composer.ledger import Category, Ledger, clock, compile_time
from composer.ledger.ledger import parse_segments
from composer.loggers import InMemoryLogger
from composer.storage.folder import Folder
from composer.warnings import ComposerWarning
from tests.common import At, Regression, regression_data, trainer_of
from tests.trainer.resuming import build, shuffled
from tests.trainer.test_sharded_resume import trainer as trainer_on_ranks

C = Category
pytestmark = pytest.mark.filterwarnings("ignore:Fetching the first:composer.warnings.ComposerWarning")


class Now:
    """Time that passes where a test says so, and a microsecond with each reading."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        self.time += 1e-6
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


now = Now()


@pytest.fixture(autouse=True)
def _simulated_time(monkeypatch) -> None:
    monkeypatch.setattr(clock, "perf_counter", now)
    monkeypatch.setattr(clock, "time", SimpleNamespace(time=now))
    monkeypatch.setattr(clock, "claim_start", lambda: None)
    monkeypatch.setattr(compile_time, "time", SimpleNamespace(perf_counter=now))


class Slow(Callback):
    """Takes 20 ms at an event."""

    def __init__(self, event: str) -> None:
        setattr(self, event, lambda state, logger: now.sleep(0.02))


def run(folder, duration: str = "4ba", **arguments):
    """Train with a checkpoint every two batches, and close."""
    arguments = {"save_interval": "2ba", "autoresume": True, "schedulers": None, **arguments}
    save_folder = None if folder is None else str(folder)
    with build(shuffled(), max_duration=duration, save_folder=save_folder, **arguments) as trainer:
        trainer.fit()
    return trainer


def fail_at(batch: int, error: BaseException) -> At:
    def check(state) -> None:
        if state.timestamp.batch == batch:
            raise error

    return At("batch_end", check)


def test_a_trainer_without_a_folder_has_its_ledger_in_memory(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    began = now()
    trainer = trainer_of(
        Regression(metrics=True),
        callbacks=[Slow("eval_batch_start"), Slow("before_forward"), Slow("fit_start")],
        loggers=InMemoryLogger(),
        eval_dataloader=regression_data(2),
        max_duration="3ba",
    )
    trainer.fit()
    seconds = trainer.ledger.seconds
    assert seconds[C.EVALUATION] >= 0.04
    assert seconds[C.TRAINING] >= 0.06
    assert seconds[C.START_UP] >= 0.02
    assert 0 < seconds[C.DATA] < seconds[C.TRAINING]
    assert 0 < seconds[C.LOGGING] < seconds[C.TRAINING]
    assert not any(seconds[category] for category in (C.LOST, C.REPEATED, C.NOT_RUNNING, C.COMPILING))
    assert sum(trainer.state.clock._seconds[1:-2]) <= now() - began
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("slow", ["before_dataloader", "after_dataloader"])
def test_callbacks_are_part_of_the_step(slow) -> None:
    trainer = trainer_of(callbacks=Slow(slow), max_duration="3ba")
    trainer.fit()
    assert trainer.ledger.seconds[C.DATA] < 0.02
    assert trainer.ledger.seconds[C.TRAINING] >= 0.04  # the first one is part of the start-up


def test_slow_data_is_waited_for() -> None:
    def batches():
        for batch in regression_data():
            now.sleep(0.02)
            yield batch

    trainer = trainer_of(data=list(regression_data()))
    trainer.fit()
    assert trainer.ledger.seconds[C.DATA] < 0.02
    trainer = trainer_of(data=batches(), max_duration="4ba")
    trainer.fit()
    assert trainer.ledger.seconds[C.DATA] >= 0.08


def test_a_step_reads_the_clock_twice(monkeypatch) -> None:
    trainer = trainer_of(data=regression_data(60), max_duration="5ba")
    trainer.fit()
    readings = []
    monkeypatch.setattr(clock, "perf_counter", lambda: readings.append(0) or now())
    counts = []
    for steps in (10, 30):
        readings.clear()
        trainer.fit(duration=f"{steps}ba")
        counts.append(len(readings))
    assert counts[1] - counts[0] == 2 * 20


def test_compilation_has_a_category() -> None:
    def backend(graph, inputs):
        now.sleep(0.05)
        return graph.forward

    torch._dynamo.reset()
    trainer = trainer_of(compile_config={"backend": backend}, max_duration="2ba")
    trainer.fit()
    assert trainer.ledger.seconds[C.COMPILING] >= 0.05
    assert trainer.ledger.seconds[C.TRAINING] < trainer.ledger.seconds[C.COMPILING]
    torch._dynamo.reset()


def test_evaluation_only(tmp_path) -> None:
    trainer = trainer_of(Regression(metrics=True), callbacks=Slow("eval_batch_start"), save_folder=str(tmp_path))
    trainer.eval(regression_data(2))
    trainer.predict(regression_data(1))
    assert trainer.ledger.seconds[C.EVALUATION] >= 0.04
    assert trainer.ledger.goodput == 0
    trainer.close()
    assert not (tmp_path / "ledger.jsonl").exists()


def test_a_learning_rate_search_is_not_training() -> None:
    trainer = trainer_of(data=regression_data(8))
    began = now()
    trainer.find_lr(num_batches=8)
    seconds, wall = trainer.ledger.seconds, now() - began
    assert 0 < seconds[C.OTHER] <= wall
    assert seconds[C.TRAINING] == seconds[C.DATA] == 0


def test_a_run_that_is_continued(tmp_path) -> None:
    run(tmp_path)
    trainer = run(tmp_path, "8ba")
    ledger = Ledger.read(tmp_path)
    assert [(one.first_batch, one.last_batch, one.state) for one in ledger.segments] == [
        (0, 4, "finished"),
        (4, 8, "finished"),
    ]
    assert ledger.seconds[C.LOST] == ledger.seconds[C.REPEATED] == ledger.seconds[C.NOT_RUNNING] == 0
    assert ledger.total == pytest.approx(trainer.ledger.total, abs=0.01)
    assert ledger.segments[1].resumed is not None
    # A call that has nothing to train, as the run is complete, adds nothing, and shows what there is.
    with pytest.warns(ComposerWarning, match="already complete"):
        again = run(tmp_path, "8ba")
    assert len(Ledger.read(tmp_path).segments) == 2
    assert len(again.ledger.segments) == 3
    assert again.ledger.seconds[C.TRAINING] == pytest.approx(ledger.seconds[C.TRAINING], abs=1e-3)


@pytest.mark.parametrize(("error", "state"), [(RuntimeError("bad"), "failed"), (KeyboardInterrupt(), "stopped")])
def test_steps_after_the_checkpoint_are_lost_and_repeated(tmp_path, error, state) -> None:
    slow = Slow("before_forward")
    with pytest.raises(type(error)):
        run(tmp_path, "8ba", callbacks=[slow, fail_at(5, error)])
    failed = Ledger.read(tmp_path)
    assert (failed.segments[0].state, failed.segments[0].last_batch) == (state, 5)
    assert failed.seconds[C.LOST] == 0  # until another process resumes from the checkpoint
    run(tmp_path, "8ba", callbacks=slow)
    ledger = Ledger.read(tmp_path)
    assert ledger.segments[1].first_batch == 4
    assert 0.02 <= ledger.seconds[C.REPEATED] < 0.04  # one step
    assert ledger.seconds[C.LOST] >= 0.02
    assert ledger.seconds[C.TRAINING] >= 7 * 0.02
    assert ledger.total == pytest.approx(failed.total + ledger.segments[1].ended - failed.segments[0].ended, abs=0.01)


def test_a_crash_before_the_first_checkpoint(tmp_path) -> None:
    with pytest.raises(RuntimeError):
        run(tmp_path, callbacks=[Slow("before_forward"), fail_at(1, RuntimeError())])
    run(tmp_path, callbacks=Slow("before_forward"))
    ledger = Ledger.read(tmp_path)
    assert len(ledger.segments) == 2
    assert ledger.seconds[C.LOST] >= 0.02
    assert ledger.seconds[C.REPEATED] >= 0.02


def test_a_signal_loses_nothing(tmp_path) -> None:
    def send(state) -> None:
        if state.timestamp.batch == 3:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        run(tmp_path, "8ba", callbacks=At("batch_end", send))
    run(tmp_path, "8ba")
    ledger = Ledger.read(tmp_path)
    assert [(one.last_batch, one.state) for one in ledger.segments] == [(3, "stopped"), (8, "finished")]
    assert ledger.seconds[C.LOST] == ledger.seconds[C.REPEATED] == 0


def test_a_checkpoint_of_before_the_ledger(tmp_path) -> None:
    run(tmp_path)
    (tmp_path / "ledger.jsonl").unlink()
    run(tmp_path, "6ba")
    ledger = Ledger.read(tmp_path)
    assert [(one.first_batch, one.last_batch) for one in ledger.segments] == [(4, 6)]
    assert ledger.seconds[C.LOST] == 0


def test_another_run_in_the_folder_begins_anew(tmp_path) -> None:
    run(tmp_path)
    run(tmp_path, autoresume=False, save_overwrite=True)
    ledger = Ledger.read(tmp_path)
    assert (len(ledger.earlier), len(ledger.segments)) == (1, 1)
    assert ledger.segments[0].begins_run


def test_load_path_into_the_folder_continues_the_run(tmp_path) -> None:
    run(tmp_path)
    run(tmp_path, "6ba", autoresume=False, load_path=str(tmp_path / "latest-rank0.pt"))
    assert len(Ledger.read(tmp_path).segments) == 2


def test_a_copy_of_the_folder_does_not_claim_the_time_of_the_original(tmp_path) -> None:
    run(tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy", symlinks=True)
    run(tmp_path / "copy", "8ba")
    run(tmp_path / "copy", "12ba")
    ledger = Ledger.read(tmp_path / "copy")
    assert [(one.first_batch, one.last_batch) for one in ledger.segments] == [(4, 8), (8, 12)]
    assert len(ledger.earlier) == 1
    (tmp_path / "run").rename(tmp_path / "moved")
    run(tmp_path / "moved", "8ba")
    assert len(Ledger.read(tmp_path / "moved").segments) == 2


def test_a_fork_has_its_own_ledger(tmp_path) -> None:
    run(tmp_path / "run")
    arguments = {"save_folder": str(tmp_path / "fork"), "save_interval": "2ba", "schedulers": None}
    with build(shuffled(), run_name="fork", max_duration="6ba", **arguments) as trainer:
        trainer.fork(at=2, run=tmp_path / "run")
        trainer.fit()
    ledger = Ledger.read(tmp_path / "fork")
    assert [(one.first_batch, one.last_batch) for one in ledger.segments] == [(2, 6)]
    assert ledger.seconds[C.LOST] == ledger.seconds[C.REPEATED] == 0
    assert len(Ledger.read(tmp_path / "run").segments) == 1


def test_a_replay_writes_nothing(tmp_path) -> None:
    run(tmp_path)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with build(shuffled(), max_duration="4ba", save_folder=str(tmp_path), schedulers=None) as trainer:
        trainer.replay(3)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_two_trainers_in_a_process(tmp_path) -> None:
    one = trainer_of(save_folder=str(tmp_path / "one"), callbacks=Slow("before_forward"))
    other = trainer_of(save_folder=str(tmp_path / "other"))
    one.fit()
    other.fit()
    one.fit(duration="2ba")
    ledgers = [Ledger.read(tmp_path / name) for name in ("one", "other")]
    assert [(len(ledger.segments), ledger.segments[0].last_batch) for ledger in ledgers] == [(1, 6), (1, 4)]
    assert ledgers[0].seconds[C.TRAINING] >= 6 * 0.02 > ledgers[1].seconds[C.TRAINING]
    one.close()
    other.close()


def test_calls_after_fit_are_written(tmp_path) -> None:
    trainer = trainer_of(Regression(metrics=True), save_folder=str(tmp_path))
    trainer.fit()
    trainer.state.callbacks.append(Slow("eval_batch_start"))
    trainer.eval(regression_data(2))
    assert Ledger.read(tmp_path).seconds[C.EVALUATION] >= 0.04
    trainer.close()


def test_saving_has_a_category(tmp_path, monkeypatch) -> None:
    write = CheckpointSaver._save_checkpoint
    monkeypatch.setattr(CheckpointSaver, "_save_checkpoint", lambda *args: now.sleep(0.02) or write(*args))
    trainer = run(tmp_path)
    assert trainer.ledger.seconds[C.SAVING] >= 0.04


@pytest.mark.parametrize("moment", ["start", "later"])
def test_a_ledger_that_cannot_be_written_does_not_stop_training(tmp_path, moment) -> None:
    if moment == "start":
        (tmp_path / "ledger.jsonl").mkdir()
        callbacks = []
    else:
        callbacks = At("epoch_start", lambda state: (tmp_path / "ledger.jsonl").unlink())
    with pytest.warns(ComposerWarning, match="ledger of the run cannot be written") as found:
        trainer = run(tmp_path, callbacks=callbacks)
    assert trainer.state.timestamp.batch == 4
    assert len(found) == 1
    assert trainer.ledger.seconds[C.TRAINING] > 0


def test_the_folder_of_another_run_is_not_touched(tmp_path) -> None:
    run(tmp_path, "8ba")
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with pytest.raises(FileExistsError, match="later than this run"):
        run(tmp_path, autoresume=False)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_a_remote_folder() -> None:
    folder = "memory://ledger/{run_name}"
    run(folder)
    run(folder, "8ba")
    ledger = Ledger(parse_segments(Folder("memory://ledger/night").read_text("ledger.jsonl")))
    assert [(one.first_batch, one.last_batch, one.state) for one in ledger.segments] == [
        (0, 4, "finished"),
        (4, 8, "finished"),
    ]


def test_the_clock_does_not_keep_the_state_alive(tmp_path) -> None:
    trainer = run(tmp_path)
    ledger_clock, state = trainer.state.clock, weakref.ref(trainer.state)
    ledger_clock.write()
    del trainer
    gc.collect()
    assert state() is None
    assert ledger_clock.seconds()[C.TRAINING] > 0


def train_on_ranks(folder: str) -> tuple[int, float]:
    arguments = {"max_duration": "4ba", "save_folder": folder, "save_interval": "2ba", "schedulers": None}
    with trainer_on_ranks("ddp", **arguments) as trainer:
        trainer.fit()
    return len(trainer.ledger.segments), trainer.ledger.seconds[C.TRAINING]


def test_rank_zero_writes(tmp_path, two_ranks) -> None:
    for number, seconds in two_ranks.run(train_on_ranks, str(tmp_path)):
        assert number == 1
        assert seconds > 0
    assert [one.last_batch for one in Ledger.read(tmp_path).segments] == [4]
