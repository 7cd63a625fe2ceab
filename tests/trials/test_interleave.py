"""Variants of a run that are measured in turn, with real trials: also those that fail, hang, or have two ranks."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from composer.trials import ForkServer, Target, Trial
from composer.trials.interleave import Contest
from tests.trials import programs

PROBE = "composer.diagnosis.block_recorder:BlockRecorder"
PLAIN = "trainer(max_duration='1ep').fit()"


def trial(name: str, target: Target, **arguments: Any) -> Trial:
    return Trial(name, target, PROBE, **{"time_limit": 90.0, **arguments})


def contest(folder: Path, server: ForkServer, texts: dict[str, str], **arguments: Any) -> Contest:
    """A contest of programs, which have two batches an epoch."""
    trials = {name: trial(name, programs.script(folder / name, text)) for name, text in texts.items()}
    return Contest(folder / "trials", trials, server, **{"steps": 4, "batches": 2, "limit": 60.0, **arguments})


@pytest.mark.parametrize("parallel", [1, 2])
def test_variants_train_a_block_each_round(tmp_path: Path, server: ForkServer, parallel: int) -> None:
    with contest(tmp_path, server, {"base": PLAIN, "after": PLAIN}, parallel=parallel) as one:
        assert {name: len(block.seconds) for name, block in one.warmups.items()} == {"base": 4, "after": 4}
        for _ in range(3):
            assert one.play(["base", "after"]) == ["base", "after"]
        one.drop("after")
        assert one.play(["base"]) == ["base"]
        seconds = one.seconds()
        assert {name: len(values) for name, values in seconds.items()} == {"base": 4, "after": 3}
        assert all(value > 0 for values in seconds.values() for value in values)
        assert one.failed == {}
    assert programs.gone(str(tmp_path))


def test_a_variant_and_its_workers_do_nothing_while_another_trains(tmp_path: Path, server: ForkServer) -> None:
    text = "trainer(train_dataloader=loader(num_workers=1, persistent_workers=True), max_duration='1ep').fit()"
    with contest(tmp_path, server, {"base": PLAIN, "workers": text}) as one:
        one.play(["base", "workers"])
        group = one._running["workers"].group
        waiting = [psutil.Process(pid) for pid in psutil.pids() if _group_of(pid) == group]
        assert len(waiting) == 3  # the leader, the rank and its data worker
        before = [process.cpu_times()[:2] for process in waiting]
        one.play(["base"])
        assert {process.status() for process in waiting} == {psutil.STATUS_STOPPED}
        assert [process.cpu_times()[:2] for process in waiting] == before
        one.play(["base", "workers"])
        assert len(one.blocks["workers"]) == 2


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_a_variant_that_fails_is_left_out(tmp_path: Path, server: ForkServer) -> None:
    texts = {
        "base": PLAIN,
        "never": "raise ValueError('no such file')",
        "later": "n = iter(range(12))\ntrainer(callbacks=[At(lambda: next(n))]).fit()",
    }
    with contest(tmp_path, server, texts) as one:
        assert set(one.failed) == {"never"}
        assert "no such file" in one.failed["never"]
        racing = ["base", "later"]
        while "later" in racing:
            racing = one.play(racing)
        assert racing == ["base"]
        assert "StopIteration" in one.failed["later"]
        assert one.play(["base"]) == ["base"]
    assert programs.gone(str(tmp_path))


def test_a_variant_that_hangs_is_ended(tmp_path: Path, server: ForkServer) -> None:
    hangs = "n = iter(range(7))\ntrainer(callbacks=[At(lambda: next(n, None) is None and time.sleep(600))]).fit()"
    with contest(tmp_path, server, {"base": PLAIN, "hangs": hangs}) as one:
        one._limits["hangs"] = 1.0  # starting may take longer
        began = time.monotonic()
        assert one.play(["base", "hangs"]) == ["base"]
        assert one.failed == {"hangs": "it did not end within 1 s"}
        assert time.monotonic() - began < 30
        assert one.play(["base", "hangs"]) == ["base"]
    assert programs.gone(str(tmp_path))


def test_two_ranks_train_the_same_blocks(tmp_path: Path, server: ForkServer) -> None:
    target = programs.script(tmp_path / "ranks", PLAIN)
    trials = {name: trial(name, target, ranks=2) for name in ("base", "again")}
    with Contest(tmp_path / "trials", trials, server, steps=4, batches=1, limit=60.0) as one:
        assert one.failed == {}
        for _ in range(3):
            assert one.play(["base", "again"]) == ["base", "again"]
        assert [len(block.seconds) for block in one.blocks["again"]] == [4, 4, 4]
    assert programs.gone(str(tmp_path))
