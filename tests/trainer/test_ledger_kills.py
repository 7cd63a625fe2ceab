"""The ledger of a run whose processes are killed again and again."""

from __future__ import annotations

import os
import signal

import pytest

from tests.trainer.killed_repeatedly import kill_repeatedly

TIMES = 10


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the processes are forked")
def test_the_time_of_a_run_is_explained_after_ten_kills(parent, tmp_path) -> None:
    found = parent.call(kill_repeatedly, tmp_path, TIMES)
    assert found["statuses"] == [signal.SIGKILL] * TIMES + [0], (tmp_path / "errors.txt").read_text()
    seconds, table = found["seconds"], found["table"]
    assert found["goodput"][0] == pytest.approx(found["goodput"][1])
    assert 0 < found["goodput"][0] < 1
    assert found["explained"] >= 0.995 * found["wall"], (found["wall"], table)
    assert found["total"] <= found["wall"] + 0.05 * (TIMES + 1), table  # processes start at clock ticks
    # Of a killed process, what followed the last write (two a second) is missing.
    assert found["gaps"] - 0.5 <= seconds["not_running"] <= found["gaps"] + 1.0 * TIMES
    for category in ("training", "repeated", "lost", "data", "evaluation", "saving", "start_up"):
        assert seconds[category] > 0, table
    batches = found["batches"]
    assert [state for *_, state in batches] == ["running"] * TIMES + ["finished"]
    assert batches[-1][1] == found["end"]
    assert all(first % 5 == 0 for first, *_ in batches)
