"""The cost of the ledger of a run."""

from __future__ import annotations

import time

from benchmarks import ledger_cost
from composer.ledger import Category, Ledger


def test_ledger_cost() -> None:
    report = ledger_cost.measure(rounds=3, steps=20)
    assert [name for name, *_ in report.rows] == list(report.samples)
    assert all(len(values) == 3 and min(values) > 0 for values in report.samples.values())
    assert report.rows[0][-1] == 0.0
    assert [goal.limit for goal in report.goals] == [1.0, 1.0, 0.1]


def test_what_is_timed_counts_and_writes(tmp_path) -> None:
    clocks, write = ledger_cost.subjects(tmp_path)
    for name in ("the ledger in memory", ledger_cost.WRITTEN):
        clocks[name].wait()
        clocks[name].train()
        time.sleep(0.01)
        assert clocks[name].seconds()[Category.TRAINING] >= 0.01
    write()
    assert Ledger.read(tmp_path).seconds[Category.TRAINING] >= 0.01
