"""The runner of real programs, with real trials: continuation, records, failures, what seeds change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from composer.exploration.goal import Goal
from composer.exploration.runner import Failure, Request
from composer.exploration.training_probe import CHECKPOINT_FILE
from composer.exploration.trajectory import Trajectory
from composer.exploration.trial_runner import TrialRunner
from composer.exploration.variant import BASELINE, Variant
from composer.trials import ForkServer, Target
from composer.trials.study import Study
from composer.trials.workspace import Workspace
from tests.exploration.programs import program

GOAL = Goal.parse("MulticlassAccuracy>=2")


def runner(folder: Path, server: ForkServer | None, target: Target | None = None, **arguments: Any) -> TrialRunner:
    target = program(folder) if target is None else target
    return TrialRunner(target, GOAL, Workspace(folder / "study", server), **arguments)


def values(outcome: Trajectory | Failure) -> dict[int, float]:
    assert isinstance(outcome, Trajectory), outcome
    return {each.batch: each.value for each in outcome.evaluations}


def test_a_longer_request_goes_on_and_records_are_used_again(
    tmp_path: Path, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runner(tmp_path, server)
    requests = [Request(BASELINE, 0, seconds=1e-6), Request(BASELINE, 0, seconds=0.05), Request(BASELINE, 0)]
    parts = [one.train([request])[0] for request in requests]
    whole = runner(tmp_path / "elsewhere", server, program(tmp_path)).train([Request(BASELINE, 0)])[0]
    assert values(whole).items() <= values(parts[-1]).items()
    assert isinstance(parts[0], Trajectory)
    assert isinstance(parts[-1], Trajectory)
    assert parts[0].batches == 2
    assert parts[-1].is_complete
    assert parts[-1].cost == one.spent > parts[0].cost > 0
    assert not list(tmp_path.glob(f"study/*/{CHECKPOINT_FILE}"))  # all have been continued

    monkeypatch.setattr("composer.trials.study.Running", None)  # nothing may start
    again = runner(tmp_path, server)
    assert [again.train([request])[0] for request in requests] == parts
    assert again.spent == one.spent


def test_a_run_whose_checkpoint_is_lost_begins_again(tmp_path: Path, server: ForkServer) -> None:
    one = runner(tmp_path, server)
    before = one.train([Request(BASELINE, 0, seconds=0.001)])[0]
    for path in tmp_path.glob(f"study/*/{CHECKPOINT_FILE}"):
        path.unlink()
    found = one.train([Request(BASELINE, 0)])[0]
    assert isinstance(found, Trajectory)
    assert found.is_complete
    # The evaluation at the stop is of another clock, on which it may be later than those that follow.
    whole = runner(tmp_path / "elsewhere", server, program(tmp_path)).train([Request(BASELINE, 0)])[0]
    assert len(values(before).keys() - values(whole).keys()) == 1
    assert values(found) == values(whole)
    assert found.cost == one.spent > before.cost > 0


def test_failures_have_their_reason_and_are_not_run_again(
    tmp_path: Path, server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Variant("wrong", ("optimizers.lr=fast",), "learning_rate")
    boom = program(tmp_path, "make(callbacks=[]).fit() if torch.rand(1) > 9 else 1 / 0", "boom.py")
    one = runner(tmp_path, server).train([Request(wrong, 0)])[0]
    assert isinstance(one, Failure)
    assert "optimizers.lr is 0.05, so it must be a number" in one.error
    two = runner(tmp_path, server, boom).train([Request(BASELINE, 0)])[0]
    assert isinstance(two, Failure)
    assert "ZeroDivisionError" in two.error
    assert "boom.py" in two.details
    assert two.cost > 0
    monkeypatch.setattr("composer.trials.study.Running", None)
    assert runner(tmp_path, server).train([Request(wrong, 0)])[0] == one


def test_a_run_that_hangs_is_ended(tmp_path: Path, server: ForkServer) -> None:
    hangs = program(tmp_path, "import time\ntime.sleep(600)")
    found = runner(tmp_path, server, hangs, time_limit=2.0).train([Request(BASELINE, 0)])[0]
    assert isinstance(found, Failure)
    assert found.error.startswith("timed out: ")


def test_a_program_that_fixes_its_seed_is_told(tmp_path: Path, server: ForkServer) -> None:
    fixed = program(tmp_path, "torch.manual_seed(7)\nmake().fit()")
    one = runner(tmp_path, server, fixed)
    one.train([Request(BASELINE, seed, seconds=0.001) for seed in (0, 1)])
    assert len(one.notes) == 1
    assert "begin with the same weights: the program fixes its own seed or loads weights" in one.notes[0]
    other = runner(tmp_path, server)
    other.train([Request(BASELINE, seed, seconds=0.001) for seed in (0, 1)])
    assert other.notes == []


def test_two_ranks_stop_together_and_go_on(tmp_path: Path, server: ForkServer) -> None:
    one = runner(tmp_path, server, ranks=2)
    part, rest = one.train([Request(BASELINE, 0, seconds=0.001), Request(BASELINE, 0)])
    assert isinstance(part, Trajectory)
    assert part.batches == 8  # they agree after every eighth step
    whole = runner(tmp_path / "elsewhere", server, program(tmp_path), ranks=2).train([Request(BASELINE, 0)])[0]
    assert values(whole) == values(rest)


def test_a_study_tries_what_failed_again_unless_it_keeps_failures(tmp_path: Path) -> None:
    assert "failed" not in Study(tmp_path)._kept
    assert "failed" in Study(tmp_path, keep_failures=True)._kept


def test_a_cpu_clock_counts_neither_waits_nor_other_processes(tmp_path: Path, server: ForkServer) -> None:
    sleeps = """
import time
from composer import Callback
class Sleeps(Callback):
    def batch_start(self, state, logger):
        time.sleep(0.05)
make(callbacks=Sleeps()).fit(duration="16ba")
"""
    one = runner(tmp_path, server, program(tmp_path, sleeps), clock="cpu")
    (found,) = one.train([Request(BASELINE, 0)])
    assert isinstance(found, Trajectory)
    assert found.batches == 16
    assert 0 < found.seconds < found.cost
    assert found.seconds < 0.4 < 16 * 0.05
    assert found.seconds + found.startup < one.spent == found.cost
