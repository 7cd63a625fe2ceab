"""Goodput of two ranks over a crash and a restart: the times of both are in the ledger that rank 0 writes."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer import Callback, dist
from composer.ledger import Category, Ledger
from tests.ranks import Ranks
from tests.trainer.multi_rank import Numbered, run_of

WAIT = 0.03


class SlowOn(Numbered):
    """Samples take time on one rank."""

    def __init__(self, rank: int) -> None:
        super().__init__(40)
        self.rank = rank

    def __getitem__(self, index):
        if dist.get_global_rank() == self.rank:
            time.sleep(WAIT)
        return super().__getitem__(index)


class Crash(Callback):
    """All ranks fail in a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_train_batch(self, state, logger):
        if state.timestamp.batch == self.step:
            raise OSError("power")


def trained(folder: str, crash: int | None) -> dict[str, Any]:
    trainer, _ = run_of(
        "regression",
        DataLoader(SlowOn(1), 2),
        save_folder=folder,
        save_interval="3ba",
        autoresume=True,
        run_name="run",
        max_duration="1ep",
        callbacks=[] if crash is None else [Crash(crash)],
    )
    with contextlib.suppress(OSError):
        trainer.fit()
    ledger = trainer.ledger
    trainer.close()
    return {"goodput": ledger.of_all_ranks(), "own": dict(ledger.seconds)}


def test_two_ranks_over_a_crash(tmp_path: Path, two_ranks: Ranks) -> None:
    two_ranks.run(trained, str(tmp_path / "run"), 7)  # the last checkpoint is at 6 of 10
    second = two_ranks.run(trained, str(tmp_path / "run"), None)
    ledger = Ledger.read(tmp_path / "run")
    assert [len(segment.ranks) for segment in ledger.segments] == [2, 2]
    assert [segment.state for segment in ledger.segments] == ["failed", "finished"]
    assert len(ledger.of_all_ranks().by_rank) == 2
    slow, fast = ledger.of_rank(1), ledger.of_rank(0)
    # Six steps were kept, and four trained afterwards; a rank waits for its own samples, two in a step.
    assert slow.seconds[Category.DATA] >= 10 * 2 * WAIT * 0.9
    assert slow.seconds[Category.LOST] > 0
    assert dict(fast.seconds) == pytest.approx(dict(ledger.seconds), abs=0.05)
    # The other ranks know of their own time only.
    assert len(second[1]["goodput"].by_rank) == 1
    assert len(second[0]["goodput"].by_rank) == 2
    assert second[1]["own"][Category.DATA] == pytest.approx(
        ledger.segments[1].ranks[1][Category.DATA], rel=0.2, abs=0.05
    )


def by_checkpoint(folder: str) -> None:
    trainer, _ = run_of(
        "regression", DataLoader(Numbered(8), 2), save_folder=folder, save_interval="1ba", run_name="run"
    )
    trainer.fit()
    trainer.close()


def test_a_checkpoint_has_the_times_of_all_ranks(tmp_path: Path, two_ranks: Ranks) -> None:
    two_ranks.run(by_checkpoint, str(tmp_path))
    [path] = tmp_path.glob("*-ba2-rank0.pt")
    saved = torch.load(path, weights_only=False)["state"]["ledger"]
    assert {len(column) for column in saved["ranks"].values()} == {2}
