"""The cost of checkpoints."""

from __future__ import annotations

from benchmarks import checkpoints


def test_checkpoints() -> None:
    report = checkpoints.measure(sizes=(5,), rounds=2)
    (times,) = report.samples.values()
    assert list(times) == list(checkpoints.NAMES)
    assert all(len(values) == 2 and min(values) > 0 for values in times.values())
    assert [row[0].partition(", ")[2] for row in report.rows] == list(checkpoints.NAMES)
    assert report.rows[0][-2] == 1.0
    (goal,) = report.goals  # those beside a peer, which is not installed here, are left out
    assert goal.value > 0


def test_the_state_has_the_size_that_was_asked_for() -> None:
    found = checkpoints.time_all(megabytes=20, rounds=1)
    assert abs(found["megabytes"] - 20) < 3
