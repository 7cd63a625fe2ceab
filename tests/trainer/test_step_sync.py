"""Per-step all-reduce of counts and losses."""

from __future__ import annotations

import pytest
import torch

from composer import dist
from composer.trainer.step_sync import StepCounts, StepSync
from tests.ranks import Ranks


def reduce_counts() -> tuple[tuple[int, int, float, int | None], dict[str, float], bool]:
    rank, step_sync = dist.get_global_rank(), StepSync()
    step_sync.send_counts(8 - 3 * rank, 100 * rank, 0.5 + rank, 15 if rank else None)
    counts = step_sync.counts()
    assert step_sync.counts() is counts, "a second call returns the same result"
    sent = {"a": torch.tensor(float(rank)), "b": torch.tensor(2.0, dtype=torch.float64)}
    step_sync.send_losses(sent)
    losses = step_sync.averages(sent)
    step_sync.send_losses(sent)
    replaced = {"c": torch.tensor(3.0)}
    return (
        (counts.samples, counts.tokens, counts.seconds, counts.signum),
        {name: loss.item() for name, loss in losses.items()},
        step_sync.averages(replaced) is replaced,
    )


def test_all_ranks_get_the_same_counts(two_ranks: Ranks) -> None:
    assert two_ranks.run(reduce_counts) == [((13, 100, 1.0, 15), {"a": 0.5, "b": 2.0}, True)] * 2


@pytest.mark.parametrize("signals", [(0, 0), (2, 15), (15, 2)])
def test_one_of_multiple_signals(signals) -> None:
    counts = StepCounts(torch.tensor([[1, 0, 0, signals[0], 0, 1, 0], [1, 0, 0, signals[1], 0, 1, 0]]))
    assert counts.signum == (max(signals) or None)
