"""Checkpoints that are uploaded and downloaded, with an in-memory store that fails on demand."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from composer.callbacks import CheckpointSaver, LoadCheckpoint
from composer.loggers import FileLogger, RemoteUploaderDownloader
from composer.storage.folder import Folder
from tests.common import At, without_ledger
from tests.storage.faulty import HalfError, cleared
from tests.trainer.killed_while_uploading import kill_many
from tests.trainer.resuming import build, shuffled

FOLDER = "faulty://bucket/{run_name}/ck"


@pytest.fixture(autouse=True)
def faulty(monkeypatch):
    monkeypatch.setattr("composer.storage.retrying.sleep", lambda seconds: None)
    yield from cleared()


def run(**arguments):
    given = {"save_folder": FOLDER, "run_name": "night", "save_interval": "2ba", "schedulers": None, **arguments}
    trainer = build(shuffled(), **given)
    trainer.fit()
    trainer.close()
    return trainer


def weights(trainer) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in trainer.state.model.parameters()]


@pytest.mark.parametrize("save_async", [False, True])
def test_resuming_from_a_store_is_exact(faulty, save_async) -> None:
    straight = run(save_folder=None, max_duration="8ba")
    run(max_duration="4ba", save_num_checkpoints_to_keep=1, save_async=save_async)
    folder = Folder("faulty://bucket/night/ck")
    assert without_ledger(folder.names()) == ["ep0-ba4-rank0.pt", "latest-rank0.pt.symlink"]
    resumed = run(max_duration="8ba", save_num_checkpoints_to_keep=1, save_async=save_async, autoresume=True)
    assert resumed.state.load_path == "faulty://bucket/night/ck/ep0-ba4-rank0.pt"
    assert all(map(torch.equal, weights(straight), weights(resumed)))
    assert [name.partition("-")[2] for name in without_ledger(folder.names())] == ["ba8-rank0.pt", "rank0.pt.symlink"]


def test_transient_transfer_failures(faulty) -> None:
    arguments = {"save_folder": FOLDER, "run_name": "night", "save_interval": "2ba", "schedulers": None}
    trainer = build(shuffled(), max_duration="4ba", **arguments)
    saver = trainer.state.callbacks[-1]
    saver.store(trainer.state)._queue.initial_backoff = 0.001
    faulty.puts.extend([TimeoutError(), HalfError])
    trainer.fit()
    trainer.close()
    assert saver.saved_checkpoints == [f"faulty://bucket/night/ck/ep0-ba{batch}-rank0.pt" for batch in (2, 4)]
    for path in saver.saved_checkpoints:
        build(shuffled(), load_path=path, schedulers=None).close()


def test_wrong_credentials_are_reported_before_training(faulty) -> None:
    faulty.puts.append(PermissionError("wrong key"))
    with pytest.raises(PermissionError, match="wrong key"):
        run(max_duration="2ba")


def test_store_rejecting_uploads_stops_training(faulty) -> None:
    reject = At("epoch_start", lambda state: faulty.puts.extend([PermissionError("quota")] * 2))  # the ledger is first
    given = {"save_interval": "2ba", "max_duration": "8ba", "callbacks": reject}
    trainer = build(shuffled(), save_folder=FOLDER, run_name="night", **given)
    with pytest.raises(PermissionError, match="quota"):
        trainer.fit()
    trainer.close()


def test_the_folder_of_another_run_raises(faulty) -> None:
    run(max_duration="4ba")
    with pytest.raises(FileExistsError, match="later than this run"):
        run(max_duration="2ba")
    run(max_duration="2ba", save_overwrite=True)


def test_load_path_and_save_checkpoint_take_uris(faulty) -> None:
    trainer = build(shuffled(), max_duration="2ba", schedulers=None)
    trainer.fit()
    path = trainer.save_checkpoint("faulty://bucket/by_hand/ep{epoch}-ba{batch}.pt")
    assert path == "faulty://bucket/by_hand/ep0-ba2.pt"
    Folder("faulty://bucket").write_text("by_hand/best.pt.symlink", "ep0-ba2.pt")
    for name in ("ep0-ba2.pt", "best.pt", "best.pt.symlink"):
        loaded = build(shuffled(), load_path=f"faulty://bucket/by_hand/{name}", schedulers=None)
        assert all(map(torch.equal, weights(trainer), weights(loaded)))
    with pytest.raises(FileNotFoundError):
        build(shuffled(), load_path="faulty://bucket/by_hand/absent.pt")
    callback = LoadCheckpoint("faulty://bucket/by_hand/best.pt", load_weights_only=True)
    loaded = build(shuffled(), callbacks=callback, schedulers=None)
    assert all(map(torch.equal, weights(trainer), weights(loaded)))


def test_on_another_host_a_logger_has_the_checkpoint(faulty, tmp_path) -> None:
    def arguments(folder: str):
        return {
            "save_folder": None,
            "loggers": RemoteUploaderDownloader("faulty://bucket"),
            "save_interval": "2ba",
            "callbacks": [
                CheckpointSaver(
                    tmp_path / folder,
                    remote_file_name="{run_name}/ep{epoch}-ba{batch}.pt",
                    latest_remote_file_name="{run_name}/latest.pt",
                    save_interval="2ba",
                )
            ],
        }

    straight = run(save_folder=None, max_duration="8ba")
    run(max_duration="4ba", **arguments("here"))
    assert Folder("faulty://bucket").read_text("night/latest.pt.symlink") == "ep0-ba4.pt"
    resumed = run(max_duration="8ba", autoresume=True, **arguments("there"))
    assert resumed.state.load_path == "night/latest.pt.symlink"
    assert all(map(torch.equal, weights(straight), weights(resumed)))


def test_uris_in_names_bring_their_logger(faulty, tmp_path) -> None:
    logger = FileLogger(str(tmp_path / "log.txt"), "faulty://bucket/{run_name}/log.txt")
    run(save_folder=None, loggers=logger, max_duration="2ba")
    assert "[metric]" in Folder("faulty://bucket").read_text("night/log.txt")


def test_exception_checkpoint_is_uploaded(faulty) -> None:
    from composer.core import Callback

    class Fails(Callback):
        def batch_end(self, state, logger) -> None:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        run(callbacks=Fails(), max_duration="4ba", save_on_exception=True)
    assert without_ledger(Folder("faulty://bucket/night/ck").names()) == ["exception-ep0-ba1-rank0.pt"]


def test_traces_go_to_a_bucket(faulty, tmp_path) -> None:
    from composer.profiler import JSONTraceHandler, Profiler, cyclic_schedule

    handler = JSONTraceHandler(
        folder=str(tmp_path),
        remote_file_name="faulty://traces/{run_name}/ep{epoch}-ba{batch}.json",
        merged_trace_remote_file_name=None,
    )
    profiler = Profiler(
        cyclic_schedule(active=1), [handler], sys_prof_cpu=False, torch_prof_folder=str(tmp_path / "torch")
    )
    run(save_folder=None, profiler=profiler, max_duration="3ba")
    assert [name for name in Folder("faulty://traces").names("night/") if name.endswith(".json")]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")
def test_processes_killed_at_random_reach_the_same_result(parent, tmp_path) -> None:
    """After each kill, the link names a complete checkpoint and never moves back; no partial files remain."""
    *killed, last = parent.call(kill_many, tmp_path / "ck", 12)
    batches = [one["batch"] or 0 for one in killed]
    assert batches == sorted(batches)
    assert any(one["status"] == signal.SIGKILL for one in killed)
    assert last == {"batch": 14, "status": 0}
    straight, end = torch.load(tmp_path / "straight.pt"), torch.load(tmp_path / "end.pt")
    assert all(torch.equal(straight[name], end[name]) for name in straight)
    names = without_ledger(path.name for path in (tmp_path / "ck").iterdir())
    assert names == ["ep2-ba13-rank0.pt", "ep2-ba14-rank0.pt", "latest-rank0.pt.symlink"]
