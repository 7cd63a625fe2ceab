"""The process group that tests share."""

from __future__ import annotations

import os
import time

import pytest
import torch

from composer import dist
from tests.ranks import Ranks, RanksError


def sums() -> tuple[int, float]:
    total = torch.tensor(dist.get_global_rank() + 1.0)
    dist.all_reduce(total)
    return dist.get_global_rank(), total.item()


def fails_on(rank: int) -> None:
    if dist.get_global_rank() == rank:
        raise ValueError("here")
    dist.barrier()


def hangs_on(rank: int) -> None:
    if dist.get_global_rank() == rank:
        time.sleep(1000)


def ends_on(rank: int) -> None:
    if dist.get_global_rank() == rank:
        os._exit(3)


def test_each_rank_returns_its_result(two_ranks: Ranks) -> None:
    assert two_ranks.run(sums) == [(0, 3.0), (1, 3.0)]


@pytest.mark.slow
def test_failures_are_reported_and_the_next_run_is_clean() -> None:
    ranks = Ranks(2, grace=2)
    with pytest.raises(RanksError, match=r"(?s)rank 1:\nTraceback.*ValueError: here"):
        ranks.run(fails_on, 1)
    with pytest.raises(RanksError, match="rank 0 did not come back"):
        ranks.run(sums)  # starts the processes
        ranks.run(hangs_on, 0, timeout=3)
    with pytest.raises(RanksError, match="rank 1 ended with 3"):
        ranks.run(ends_on, 1)
    assert ranks.run(sums) == [(0, 3.0), (1, 3.0)]
    ranks.close()
