"""What the table of the callbacks' costs is made of; how fast anything is, no test asks."""

from __future__ import annotations

import pytest

from benchmarks import callback_cost


def test_contenders_train() -> None:
    names = ["no callback", "an empty callback", "LRMonitor", "SystemMetricsMonitor, every batch"]
    found = callback_cost.measure(names, rounds=1, steps=2, warmup=1)
    assert [row[0] for row in found.rows] == names
    none, empty, rate, system = (row[5] for row in found.rows)
    assert none == 0
    assert 0 < empty < system
    assert 0 < rate < system


def test_every_contender_can_be_made() -> None:
    for name, make in callback_cost.subjects().items():
        assert bool(make()) == (name != "no callback")


def test_costs_are_taken_over_no_callback_in_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {
        "no callback": [[100.0, 0.0], [200.0, 0.0], [110.0, 0.0]],
        "LRMonitor": [[105.0, 4.0], [210.0, 9.0], [120.0, 3.0]],
    }
    monkeypatch.setattr(callback_cost, "time_steps", lambda *arguments: times)
    found = callback_cost.measure(["no callback", "LRMonitor"])
    assert found.columns[1:] == ["median", "spread", "over none", "least over none", "in its methods"]
    assert found.rows[1] == ["LRMonitor", 120.0, pytest.approx(26.25), 10.0, 5.0, 3.0]
    assert "LRMonitor" in found.text()
