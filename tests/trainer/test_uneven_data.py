"""Uneven inputs: ranks whose data ends early run dummy batches."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch
from torch import nn

from composer import dist
from composer.trainer.step_sync import StepSync
from composer.trainer.uneven_data import END, UnevenInputs
from tests.ranks import Ranks


def steps(lists: list[list[Any]]) -> list[tuple[Any, bool]]:
    """The batches that a process takes part with, and whether they are none of its own."""
    step_sync = StepSync()
    uneven_inputs = UnevenInputs(step_sync)
    mine, found = iter(lists[dist.get_global_rank()]), list[tuple[Any, bool]]()
    while True:
        batch = next(mine, END)
        if batch is END:
            batch = uneven_inputs.dummy_batch(lambda: step_sync.send_counts(0, 0, 0.0, None, has_batch=False))
            if batch is END:
                return found
        else:
            uneven_inputs.set_batch(batch)
            step_sync.send_counts(1, 0, 0.0, None)
            uneven_inputs.join_first_step()
        step_sync.counts()  # when the step is done
        found.append((batch, uneven_inputs.is_idle))


def test_rank_without_a_batch_reuses_its_last_one(two_ranks: Ranks) -> None:
    both = two_ranks.run(steps, [["a", "b", "c"], ["d"]])
    assert both == [
        [("a", False), ("b", False), ("c", False)],
        [("d", False), ("d", True), ("d", True)],
    ]


def test_rank_that_never_had_a_batch_receives_one(two_ranks: Ranks) -> None:
    both = two_ranks.run(steps, [[], [{"x": 1}, {"x": 2}]])
    assert both == [[({"x": 1}, True), ({"x": 1}, True)], [({"x": 1}, False), ({"x": 2}, False)]]


def test_no_rank_has_a_batch(two_ranks: Ranks) -> None:
    assert two_ranks.run(steps, [[], []]) == [[], []]


def changes(layer: nn.Module, *, is_idle: bool) -> list[bool]:
    """Whether a batch changes the running statistics, and the random numbers after it."""
    step_sync: Any = mock.Mock(counts=lambda: mock.Mock(num_with_batch=1, num_ranks=1))
    uneven_inputs = UnevenInputs(step_sync)
    uneven_inputs.set_batch([1])
    torch.manual_seed(1)
    if is_idle:
        uneven_inputs.dummy_batch(lambda: None)
    torch.rand(3)  # as a transform does
    with uneven_inputs.undone(layer) if uneven_inputs.is_idle else nullcontext():
        layer(torch.rand(4, 2))
    after = torch.rand(1)
    torch.manual_seed(1)
    return [bool(layer.running_mean.any()), int(layer.num_batches_tracked) > 0, bool(after != torch.rand(1))]


def test_a_dummy_batch_changes_nothing() -> None:
    assert changes(nn.BatchNorm1d(2), is_idle=False) == [True] * 3
    assert changes(nn.BatchNorm1d(2), is_idle=True) == [False] * 3


class _Alone(nn.SyncBatchNorm):
    """Runs without other ranks, on the CPU."""

    forward = nn.BatchNorm1d.forward

    def _check_input_dim(self, input: Any) -> None:
        pass


def test_statistics_of_all_ranks_are_kept() -> None:
    assert changes(_Alone(2), is_idle=True) == [True, True, False]
