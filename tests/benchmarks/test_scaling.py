"""A step of several processes."""

from __future__ import annotations

import pytest

from benchmarks import scaling


@pytest.mark.slow
def test_scaling() -> None:
    report = scaling.measure(rounds=1, width=16, depth=1, batch=4, steps=3, strategies=("single", "fsdp"))
    assert [row[0] for row in report.rows] == [f"{s}: {loop}" for s in ("single", "fsdp") for loop in scaling.LOOPS]
    assert all(value > 0 for row in report.rows for value in row[1:2] + row[3:])
    assert len(report.goals) == 1
