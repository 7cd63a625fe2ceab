"""Hang reports name the missing rank with its stack: two processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as torch_dist

from composer import State, dist
from composer.dist import MissingRankError, _hang_watcher
from tests.common import At, trainer_of
from tests.dist.waiting import LONG, wait_for
from tests.ranks import Ranks


def in_a_group(folder: str, body: Callable[[Path], Any]) -> Any:
    """Run a function in a group of its own, whose processes answer soon."""
    torch_dist.destroy_process_group()
    rank = dist.get_global_rank()
    store = torch_dist.FileStore(str(Path(folder, "store")), dist.get_world_size())
    patience = _hang_watcher._RESPONSE_TIMEOUT, _hang_watcher._GRACE_PERIOD
    _hang_watcher._RESPONSE_TIMEOUT, _hang_watcher._GRACE_PERIOD = LONG, 0.1
    torch_dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=dist.get_world_size(), timeout=timedelta(seconds=LONG)
    )
    dist.initialize_dist("cpu", timeout=1.0)
    dist.barrier()
    try:
        return body(Path(folder))
    finally:
        _hang_watcher._RESPONSE_TIMEOUT, _hang_watcher._GRACE_PERIOD = patience


def wait_no_longer() -> None:
    """Let waits end after a second from now on; not from the start, since a busy machine may take longer to begin."""
    torch_dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))


def one_hangs(folder: Path) -> Any:
    """Rank 1 does something else until rank 0 has given up, whatever time that takes."""
    if dist.get_global_rank() == 1:
        dist.note_step(3)
        does_something_else(folder / "gave-up")
        return None
    found = []
    wait_no_longer()
    for collective in (dist.barrier, lambda: torch_dist.all_reduce(torch.ones(1))):
        try:
            with dist.name_missing_ranks():
                collective()
        except MissingRankError as error:
            found.append((error.ranks, str(error)))
    (folder / "gave-up").touch()
    return found


def does_something_else(until: Path) -> None:
    wait_for(until.exists)


def one_fails(folder: Path) -> Any:
    with contextlib.suppress(ValueError), dist.name_missing_ranks():
        if dist.get_global_rank() == 1:
            raise ValueError("the data are bad")
        wait_no_longer()
        try:
            dist.all_gather_object(1)
        except MissingRankError as error:
            (folder / "gave-up").touch()
            return error.ranks, str(error)
    return does_something_else(folder / "gave-up")


def one_hangs_in_training(folder: Path) -> Any:
    """Rank 1 does something else after two batches."""

    def act(state: State) -> None:
        if state.timestamp.batch == 2:
            if dist.get_global_rank() == 0:
                wait_no_longer()
                return
            does_something_else(folder / "gave-up")
            raise KeyError("it leaves")

    trainer = trainer_of(callbacks=[At("batch_end", act)])
    try:
        trainer.fit()
    except MissingRankError as error:
        (folder / "gave-up").touch()
        return [(error.ranks, str(error))]
    except KeyError:
        return None


@pytest.mark.parametrize("how", [one_hangs, one_hangs_in_training], ids=lambda how: how.__name__)
def test_one_of_two_ranks_hangs(tmp_path: Path, how: Callable[[Path], Any], own_ranks: Ranks) -> None:
    found, _ = own_ranks.run(in_a_group, str(tmp_path), how)
    assert len(found) == (2 if how is one_hangs else 1)
    for missing, text in found:
        assert missing == (1,)
        assert "in does_something_else" in text
        assert f" did not join the collective. Stack in step {3 if how is one_hangs else 2}:" in text


def test_one_of_two_ranks_fails(tmp_path: Path, own_ranks: Ranks) -> None:
    (missing, text), _ = own_ranks.run(in_a_group, str(tmp_path), one_fails)
    assert missing == (1,)
    assert text.startswith("Rank 1 failed: ValueError: the data are bad\nThe collective failed with: ")


@pytest.fixture(scope="module")
def own_ranks() -> Iterator[Ranks]:
    """Two processes with a separate process group."""
    ranks = Ranks(2)
    yield ranks
    ranks.close()
