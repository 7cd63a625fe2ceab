"""Preempt with two ranks: if either gets a signal, both stop together with one checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.multi_rank import numbered, run_of
from tests.trainer.stopping_ranks import stop_all

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the parent of these tests forks")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stopped")


@pytest.fixture(scope="module")
def stopped(parent, folder) -> dict[str, Any]:
    return parent.call(stop_all, folder, timeout=900.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "both", "loading", "eval"])
def test_Preempt_of_two_ranks(name, stopped, folder) -> None:
    found = stopped[name]
    assert found["statuses"] == [143, 143], found
    assert found["files"] == 1
    trainer, _ = run_of("regression", numbered(26, 4, shuffle=True), load_path=str(folder / name / "latest-rank0.pt"))
    assert int(trainer.state.timestamp.batch) == found["batch"] > 0


def test_second_signal_exits_each_rank_immediately(stopped) -> None:
    assert stopped["twice"] == {"statuses": [143, 143], "files": 0, "batch": None}
