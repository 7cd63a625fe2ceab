"""Preempt with two ranks: if either gets a signal, both stop together with one checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.multi_rank import numbered, run_of

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the parent of these tests forks")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stopped")


@pytest.fixture(scope="module")
def stopped(folder) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.trainer.stopping_ranks", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


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
