from __future__ import annotations

from pathlib import Path

import numpy as np

from composer.core.run_event import RunEvent
from composer.history import History, Series
from composer.reports.checkpoints import checkpoints


def saved(path: Path | str, step: int, score: float | None = None, mode: str = "max") -> RunEvent:
    details = {"path": str(path)}
    if score is not None:
        details |= {"monitor": "eval/F1", "mode": mode, "score": score}
    return RunEvent("checkpoint", step, details=details)


def test_the_best_of_those_that_exist(tmp_path: Path) -> None:
    paths = [tmp_path / f"ep{number}.pt" for number in range(4)]
    for path in paths[1:]:
        path.touch()
    events = [saved(path, step, score) for step, (path, score) in enumerate(zip(paths, (9, 1, 3, 2), strict=True))]
    best, newest = checkpoints(History("night", events=events))
    assert best is not None
    assert newest is not None
    assert (best.path, best.score, best.monitor, newest.step) == (str(paths[2]), 3, "eval/F1", 3)
    lowest, _ = checkpoints(History("night", events=[saved(f"s3://b/{n}", n, n, "min") for n in (5, 4)]))
    assert lowest is not None
    assert lowest.score == 4


def test_without_a_monitor_the_evaluations_decide() -> None:
    accuracy = Series("metrics/eval/Accuracy", np.array([1, 2, 3]), np.array([0.5, 0.9, np.nan]))
    history = History("night", {accuracy.name: accuracy}, events=[saved(f"s3://b/{n}", n) for n in (1, 2, 3)])
    best, _ = checkpoints(history)
    assert best is not None
    assert (best.path, best.monitor, best.score) == ("s3://b/2", "eval/Accuracy", 0.9)


def test_old_logs_have_no_events(tmp_path: Path) -> None:
    assert checkpoints(History("night"), tmp_path) == (None, None)
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("ep1-ba8-rank0.pt", "ep2-ba16-rank0.pt", "exception-ep2-ba17-rank0.pt", "notes-ba3.txt"):
        (folder / name).touch()
    (folder / "latest-ba99.pt").symlink_to("ep2-ba16-rank0.pt")
    loss = Series("metrics/eval/MeanSquaredError", np.array([8, 16]), np.array([0.5, 0.9]))
    best, newest = checkpoints(History("night", {loss.name: loss}), tmp_path)
    assert best is not None
    assert newest is not None
    assert (Path(best.path).name, best.score, newest.step) == ("ep1-ba8-rank0.pt", 0.5, 16)


def test_checkpoints_that_cannot_be_seen_are_left_out(tmp_path: Path) -> None:
    events = [saved(f"/{'x' * 5000}/ep1.pt", 1), saved("a\0b", 2), saved("s3://bucket/ep1.pt", 3)]
    _, newest = checkpoints(History("night", events=events), tmp_path / "missing")
    assert newest is not None
    assert newest.step == 3
    assert checkpoints(History("night", events=events[:2]), tmp_path / "missing") == (None, None)
