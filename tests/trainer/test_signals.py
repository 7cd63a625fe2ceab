"""Stopping a process by signals: nothing is lost, and the exit code is right."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from composer.algorithms import EMA, DiLoCo
from composer.core import Event
from composer.trainer.arguments import as_signals
from composer.trainer.signals import Interrupted, Interruption
from tests.common import At, weights
from tests.trainer.resuming import STEPS, Augmented, build, shuffled
from tests.trainer.stopping import stop_many, stop_twice

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the parent of these tests forks")


def progress(found: list[dict[str, Any]]) -> list[list[int]]:
    """The batches of the newest checkpoints of each folder, one process after the other."""
    folders: dict[int, list[int]] = {}
    for one in found:
        folders.setdefault(one["number"] // 3, []).append(one["batch"] or 0)
    return list(folders.values())


@pytest.mark.slow
def test_Preempt_at_random_times(parent, tmp_path) -> None:
    """Whatever the step is doing, the process leaves with 143 and a full checkpoint, and the next resumes from it."""
    found = parent.call(stop_many, "SIGTERM", 100, tmp_path)
    assert [one["status"] for one in found] == [143] * 100, [one for one in found if one["status"] != 143]
    assert all(one["batch"] is not None and one["partial"] == 0 for one in found)
    assert all(batches == sorted(batches) for batches in progress(found))
    assert any(batches[0] < batches[-1] for batches in progress(found))


@pytest.mark.slow
def test_CrashSafe_at_random_times(parent, tmp_path) -> None:
    """After ``kill -9`` the newest checkpoint loads, also one that was written without the link having moved."""
    found = parent.call(stop_many, "SIGKILL", 50, tmp_path)
    assert [one["status"] for one in found] == [137] * 50, [one for one in found if one["status"] != 137]
    assert all(batches == sorted(batches) for batches in progress(found))
    assert sum(one["batch"] is not None for one in found) > 10


@pytest.mark.parametrize(("name", "status"), [("SIGINT", 130), ("SIGUSR1", 128 + signal.SIGUSR1)])
def test_other_signals_too(name, status, parent, tmp_path) -> None:
    assert [one["status"] for one in parent.call(stop_many, name, 2, tmp_path)] == [status] * 2


def interrupted_run(folder: Path, when: Event, batch: int, signum: int, **arguments: Any) -> Any:
    """Send this process a signal at an event; return the trainer after it has left."""

    def send(state: Any) -> None:
        if int(state.timestamp.batch) == batch and not sent:
            sent.append(True)
            os.kill(os.getpid(), signum)

    sent: list[bool] = []
    trainer = build(
        shuffled(), save_folder=str(folder), save_interval="100ba", callbacks=At(when.value, send), **arguments
    )
    with pytest.raises(SystemExit if signum == signal.SIGTERM else KeyboardInterrupt) as left:
        trainer.fit()
    if signum == signal.SIGTERM:
        assert left.value.code == 143
    return trainer


@pytest.mark.parametrize(
    "when", [Event.BATCH_START, Event.BEFORE_FORWARD, Event.AFTER_TRAIN_BATCH, Event.EVAL_BATCH_START, Event.EVAL_END]
)
def test_resuming_after_a_signal_is_exact(when, tmp_path, capfd) -> None:
    evaluation = {"eval_dataloader": torch.utils.data.DataLoader(Augmented(), 3), "eval_interval": "5ba"}
    straight = build(shuffled(), **evaluation)
    evaluated = At("eval_end", lambda state: int(state.timestamp.batch))
    straight.state.callbacks.append(evaluated)
    straight.fit()

    trainer = interrupted_run(tmp_path, when, 5, signal.SIGTERM, **evaluation)
    assert "SIGTERM: a checkpoint is saved after this step" in capfd.readouterr().err
    done = int(trainer.state.timestamp.batch)
    assert done in (5, 6)
    again = At("eval_end", lambda state: int(state.timestamp.batch))
    resumed = build(
        shuffled(), save_folder=str(tmp_path), save_interval="100ba", autoresume=True, callbacks=again, **evaluation
    )
    assert int(resumed.state.timestamp.batch) == done
    resumed.fit()
    assert torch.equal(weights(resumed), weights(straight))
    # An evaluation that was cut off is made again; one that was complete is not.
    cut_off = when is Event.EVAL_BATCH_START
    assert again.found == [batch for batch in evaluated.found if batch > 5 or (batch == 5 and cut_off)]


@pytest.mark.parametrize("sync_every", [3, 5], ids=["in a round", "at the end of a round"])
def test_resuming_in_an_evaluation_with_averages_of_replicas_is_exact(sync_every, tmp_path) -> None:
    """EMA loads averages into a model that has the synchronized weights of DiLoCo, which must not stay in it."""

    def arguments() -> dict[str, Any]:
        data = torch.utils.data.DataLoader(Augmented(), 3)
        methods = [DiLoCo(sync_every=sync_every), EMA(half_life="4ba")]
        return {"eval_dataloader": data, "eval_interval": "5ba", "algorithms": methods}

    straight = build(shuffled(), **arguments())
    straight.fit()
    interrupted_run(tmp_path, Event.EVAL_BATCH_START, 5, signal.SIGTERM, **arguments())
    resumed = build(shuffled(), save_folder=str(tmp_path), save_interval="100ba", autoresume=True, **arguments())
    assert int(resumed.state.timestamp.batch) == 5
    resumed.fit()
    assert torch.equal(weights(resumed), weights(straight))


def test_ctrl_c_saves_and_the_trainer_can_continue(tmp_path, capfd) -> None:
    trainer = interrupted_run(tmp_path, Event.BEFORE_FORWARD, 4, signal.SIGINT)
    assert (tmp_path / "latest-rank0.pt").exists()
    assert int(trainer.state.timestamp.batch) == 5
    trainer.fit()
    assert int(trainer.state.timestamp.batch) == STEPS


def test_handlers_are_installed_only_while_checkpoints_may_be_lost(tmp_path) -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = At("batch_end", lambda state: signal.getsignal(signal.SIGTERM))
    for arguments in ({}, {"save_folder": str(tmp_path / "a"), "save_on_signals": ()}):
        build(shuffled(), callbacks=seen, **arguments).fit()
        assert set(seen.found) == {before}
    seen.found.clear()
    build(shuffled(), callbacks=seen, save_folder=str(tmp_path / "b")).fit()
    assert before not in seen.found
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_trainer_in_another_thread_trains_without_handlers(tmp_path) -> None:
    trainer = build(shuffled(), save_folder=str(tmp_path))
    thread = threading.Thread(target=trainer.fit)
    thread.start()
    thread.join()
    assert int(trainer.state.timestamp.batch) == STEPS


def test_second_signal_exits_immediately(parent, tmp_path) -> None:
    status, seconds = parent.call(stop_twice, tmp_path)
    assert status == 143
    assert seconds < 10


def test_an_ignored_sigint_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interruption([signal.SIGINT, signal.SIGTERM]) as interruption:
            os.kill(os.getpid(), signal.SIGINT)
            assert interruption.signum is None
            os.kill(os.getpid(), signal.SIGTERM)
            assert interruption.signum == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_duplicate_signals_are_one_request() -> None:
    with Interruption([signal.SIGUSR1]) as interruption:
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGUSR1)  # would end this process
        assert interruption.signum == signal.SIGUSR1


def test_interruption_is_raised_at_the_next_check() -> None:
    with Interruption([signal.SIGUSR1]) as interruption:
        interruption.check()
        os.kill(os.getpid(), signal.SIGUSR1)
        time.sleep(0.01)
        with pytest.raises(Interrupted, match="SIGUSR1"):
            interruption.check()


def test_names_of_signals_are_checked() -> None:
    with pytest.raises(ValueError, match="Did you mean 'SIGTERM'"):
        as_signals(["SIGTREM"])
    with pytest.raises(TypeError, match=r"Pass \['SIGTERM'\]"):
        as_signals("SIGTERM")
