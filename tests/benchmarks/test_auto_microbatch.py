"""What the table of the cost of "auto" is made of; how fast anything is, no test asks."""

from __future__ import annotations

import pytest

from benchmarks import auto_microbatch


def test_every_model_trains() -> None:
    found = auto_microbatch.measure(rounds=1, steps=2, warmup=1)
    assert [row[0] for row in found.rows] == list(auto_microbatch.models())
    assert all(row[1] > 0 and row[3] > 0 for row in found.rows)


def test_costs_are_taken_over_a_fixed_size_in_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"MLP": {"fixed": [100.0, 200.0, 110.0], "auto": [105.0, 210.0, 120.0]}}
    monkeypatch.setattr(auto_microbatch, "time_steps", lambda *arguments: times)
    found = auto_microbatch.measure()
    assert found.rows == [["MLP", 110.0, pytest.approx(25.0), 120.0, 10.0, 5.0, 1.05]]
    assert [(goal.value, goal.limit, bool(goal.doubt)) for goal in found.goals] == [(10.0, 10, True)]
