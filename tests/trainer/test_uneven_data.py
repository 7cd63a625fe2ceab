"""Uneven inputs: ranks whose data ends early run dummy batches."""

from __future__ import annotations

from typing import Any

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
