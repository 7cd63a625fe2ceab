"""MemorySnapshot: which batches it records, and the files that it writes."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from composer.callbacks import MemorySnapshot, OOMObserver
from composer.warnings import NoEffectWarning
from tests.callbacks.cases import Case, run_with
from tests.callbacks.memory import SNAPSHOT, Keeper, history
from tests.common import labeled_data, trainer_of

__all__ = ["history"]

CASE = Case(make=lambda folder: MemorySnapshot(folder=str(folder)), warns=True)


def fit(callback: MemorySnapshot, loggers: Any = None, **arguments: Any) -> Any:
    run = run_with(callback, data=labeled_data(8), run_name="night", loggers=loggers, **arguments)
    run.trainer.fit()
    run.trainer.close()
    return run


@pytest.mark.parametrize(
    ("skip", "interval", "batch"),
    [(1, "3ba", 4), (0, "1ba", 1), (2, "4sp", 4), (2, "5sp", 5), (1, "1ep", 8), (3, 1, 8)],
)
def test_records_once_and_writes_at_the_first_batch_that_reaches_the_interval(
    skip, interval, batch, history, tmp_path
) -> None:
    fit(MemorySnapshot(skip, interval, 500, str(tmp_path / "{run_name}")), max_duration="3ep")
    assert history.calls == [("record", 500), ("stop", None)]
    files = sorted(path.name for path in (tmp_path / "night").iterdir())
    assert files == [f"rank0.{batch}.memory_snapshot.html", f"rank0.{batch}.memory_snapshot.pickle"]
    with (tmp_path / "night" / files[1]).open("rb") as file:
        assert pickle.load(file) == SNAPSHOT
    assert "<script" in (tmp_path / "night" / files[0]).read_text()


@pytest.mark.parametrize("first", [MemorySnapshot, OOMObserver])
def test_the_history_of_one_callback_is_not_ended_by_another(first, history, tmp_path) -> None:
    snapshot = MemorySnapshot(0, "1ba", 500, str(tmp_path / "window"))
    observer = OOMObserver(900, str(tmp_path / "oom"))
    both = [snapshot, observer] if first is MemorySnapshot else [observer, snapshot]
    trainer = trainer_of(callbacks=both)
    trainer.fit()
    assert history.calls == [("record", 900), ("record", 900)]
    trainer.close()
    assert history.calls[2:] == [("stop", None)]


def test_stops_recording_if_training_ends_early(history, tmp_path) -> None:
    fit(MemorySnapshot(interval="99ba", folder=str(tmp_path)))
    assert [what for what, _ in history.calls] == ["record", "stop"]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("remote", "names"), [("{run_name}/m", "night/m/rank0.4.memory_snapshot"), (None, None)])
def test_uploads_the_files(remote, names, history, tmp_path) -> None:
    keeper = Keeper()
    fit(MemorySnapshot(folder=str(tmp_path), remote_file_name=remote), [keeper])
    expected = [] if names is None else [(f"{names}.pickle", False), (f"{names}.html", False)]
    assert keeper.files == expected


def test_does_not_overwrite_files_of_an_earlier_run(history, tmp_path) -> None:
    fit(MemorySnapshot(folder=str(tmp_path)))
    with pytest.raises(FileExistsError, match=r"rank0\.4\.memory_snapshot\.pickle exists"):
        fit(MemorySnapshot(folder=str(tmp_path), interval="2ba"))
    fit(MemorySnapshot(folder=str(tmp_path), overwrite=True))


def test_warns_without_cuda(tmp_path) -> None:
    with pytest.warns(NoEffectWarning, match="on cpu and records nothing"):
        fit(MemorySnapshot(folder=str(tmp_path)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"skip_batches": -1}, "skip_batches"),
        ({"interval": "0ba"}, "interval must be"),
        ({"interval": "0.5dur"}, "interval must be"),
        ({"interval": "30s"}, "interval must be"),
        ({"max_entries": 0}, "max_entries"),
        ({"folder": "{runname}"}, "Did you mean 'run_name'"),
        ({"folder": "{batch}"}, "does not change during training"),
        ({"filename": "{bach}"}, "Did you mean 'batch'"),
        ({"remote_file_name": "{"}, "remote_file_name"),
    ],
)
def test_refuses_invalid_arguments(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        MemorySnapshot(**arguments)


@pytest.mark.gpu
def test_records_a_device(tmp_path) -> None:
    import torch

    if torch.accelerator.current_accelerator().type != "cuda":
        pytest.skip("needs CUDA")
    fit(MemorySnapshot(folder=str(tmp_path)), device="gpu")
    [path] = tmp_path.glob("*.pickle")
    with path.open("rb") as file:
        snapshot = pickle.load(file)
    assert snapshot["segments"]
    assert any(snapshot["device_traces"])
