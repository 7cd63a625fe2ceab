"""Growing and constant batches train on the same samples."""

from __future__ import annotations

import pytest

from benchmarks import batch_size_warmup


def test_batch_size_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size_warmup, "SAMPLES", 256)
    report = batch_size_warmup.measure(seeds=2)
    assert [name for name, *_ in report.rows] == list(batch_size_warmup.CONTENDERS)
    # 4 steps of 16, 2 of 32 and 2 of 64.
    assert [row[1] for row in report.rows] == [16, 8, 8]
    assert (report.rows[0][2], float(report.rows[0][4])) == (1.0, 0.0)
    assert [goal.limit for goal in report.goals] == [0.6, 0.01]
    assert {len(runs) for runs in report.samples.values()} == {2}


def test_intervals_are_those_of_student() -> None:
    mean, half = batch_size_warmup._interval([1.0, 2.0, 3.0])
    assert (mean, half) == (2.0, pytest.approx(2.484, abs=1e-3))
