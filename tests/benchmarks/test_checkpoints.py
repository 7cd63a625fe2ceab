"""The cost of checkpoints."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

from benchmarks import checkpoint_pauses, checkpoints
from benchmarks.checkpoint_pauses import Pause
from composer.callbacks import CheckpointSaver


def test_checkpoints() -> None:
    report = checkpoints.measure(sizes=(5,), rounds=2)
    (times,) = report.samples.values()
    assert list(times) == list(checkpoints.NAMES)
    # What training loses is a difference, which on a busy machine may come out below zero.
    assert all(len(values) == 2 and (name == checkpoints.LOST or min(values) > 0) for name, values in times.items())
    assert [row[0].partition(", ")[2] for row in report.rows] == list(checkpoints.NAMES)
    assert report.rows[0][-2] == 1.0
    (goal,) = report.goals  # those beside a peer, which is not installed here, are left out
    assert goal.value > 0


def test_the_state_has_the_size_that_was_asked_for() -> None:
    found = checkpoints.time_all(megabytes=20, rounds=1)
    assert abs(found["megabytes"] - 20) < 3


def test_a_save_that_is_skipped_is_an_error(monkeypatch) -> None:
    """The asynchronous save once did nothing, as its batch was saved already, and was published as 0.1 ms."""
    monkeypatch.setattr(checkpoint_pauses, "MOST_STEPS", 20)
    monkeypatch.setattr(CheckpointSaver, "saved_checkpoints", ["absent.pt"])
    monkeypatch.setattr(CheckpointSaver, "save", lambda *args, **kwargs: None)
    with pytest.raises(RuntimeError, match="wrote no file within 20 steps"):
        checkpoints.time_all(megabytes=1, rounds=1, names=(checkpoints.STALL, checkpoints.LOST))


@pytest.mark.parametrize("name", [checkpoints.STALL, checkpoints.SAVE, checkpoints.TORCH])
def test_a_job_that_writes_nothing_is_an_error(name, tmp_path: Path) -> None:
    (tmp_path / "old.pt").touch()
    with pytest.raises(RuntimeError, match="wrote no file, so its time says nothing"):
        checkpoints._in_turns({name: lambda: None}, 1, "cpu", tmp_path)
    writes = {name: lambda: (tmp_path / "old.pt").write_text("new"), checkpoints.COPY: lambda: None}
    assert len(checkpoints._in_turns(writes, 1, "cpu", tmp_path)[name]) == 2


@pytest.mark.parametrize("is_returned", [True, False])
def test_what_a_job_made_is_freed_before_the_next(is_returned: bool, tmp_path: Path) -> None:
    """Trainers of 2 GB that were not yet collected, and what a load returned, took all memory of the computer."""
    made: list[weakref.ref[Any]] = []

    def load() -> object:
        one = type("Large", (), {})()
        one.itself = one
        made.append(weakref.ref(one))
        return one if is_returned else None

    def last() -> None:
        assert made[-1]() is None

    gc.disable()
    try:
        checkpoints._in_turns({checkpoints.LOAD: load, checkpoints.COPY: last}, 2, "cpu", tmp_path)
    finally:
        gc.enable()
    assert len(made) == 3


def test_what_training_loses_is_the_call_and_the_slower_steps(monkeypatch) -> None:
    steps, is_done = [1.0] * 7 + [1.5, 1.25, 1.0], iter([False, False, False, True])
    now = [0.0]
    monkeypatch.setattr(checkpoint_pauses.time, "perf_counter", lambda: now[0])

    def save():
        now[0] += 0.5
        return lambda: next(is_done)

    pause = Pause(save)
    for seconds in steps:
        assert not pause.step_starts()
        now[0] += seconds
        pause.step_ends()
    assert pause.step_starts()
    assert pause.call == 0.5
    assert pause.lost == 0.5 + 0.5 + 0.25
