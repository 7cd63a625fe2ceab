"""The ledger that belongs to a run."""

from __future__ import annotations

from pathlib import Path

from composer.core.run_event import RunEvent
from composer.history import History
from composer.ledger import Category, Segment
from composer.reports.run_time import find_ledger, seconds_by_category


def write(folder: Path, seconds: float) -> None:
    folder.mkdir(exist_ok=True)
    segment = Segment("a", 0.0, {Category.TRAINING: seconds, Category.START_UP: 1.0, Category.DATA: 0.0})
    (folder / "ledger.jsonl").write_text(segment.line() + "\n", encoding="utf-8")


def saved(path: str) -> History:
    return History("night", events=[RunEvent("checkpoint", 10, "saved", details={"path": path})])


def test_the_folder_of_its_checkpoints_has_the_ledger(tmp_path: Path) -> None:
    write(tmp_path / "own", 7.0)
    write(tmp_path / "other", 9.0)
    ledger = find_ledger(saved(str(tmp_path / "own" / "ep1.pt")), tmp_path)
    assert ledger is not None
    assert seconds_by_category(ledger) == {"training": 7.0, "start-up": 1.0}


def test_without_checkpoints_it_is_looked_for_in_the_folder_of_the_run(tmp_path: Path) -> None:
    write(tmp_path / "checkpoints", 7.0)
    assert find_ledger(History("night"), tmp_path) is not None
    assert find_ledger(History("night"), tmp_path / "missing") is None
    assert find_ledger(saved("s3://bucket/run/ep1.pt")) is None


def test_the_ledger_of_a_later_run_in_the_same_folder_is_not_its_own(tmp_path: Path) -> None:
    write(tmp_path, 7.0)
    path = str(tmp_path / "ep1.pt")
    for time, is_its_own in ((5.0, True), (8.05, True), (9.0, False), (None, True)):
        events = [RunEvent("checkpoint", 10, "saved", time=time, details={"path": path}), RunEvent("end", 20)]
        assert (find_ledger(History("night", events=events)) is not None) is is_its_own


def test_folders_that_cannot_be_seen(tmp_path: Path) -> None:
    write(tmp_path / "checkpoints", 7.0)
    assert find_ledger(saved(f"/{'x' * 5000}/ep1.pt"), tmp_path) is not None
    assert find_ledger(saved("a\0b/ep1.pt"), tmp_path) is not None
