"""Rank 0 reads a checkpoint for all ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from composer import Logger, dist
from composer.checkpoint.load import read_checkpoint, restore
from composer.checkpoint.on_all_ranks import (
    BroadcastTensor,
    gather_from_all_ranks,
    map_nodes,
    read_on_rank_zero,
    run_on_all_ranks,
)
from composer.checkpoint.save import save_checkpoint
from tests.checkpoint.sharding import equal, moments, run, weights


def taken(folder: str, how: str) -> tuple[bool, bool]:
    """Only the first process may look at the file."""
    one = run()
    save_checkpoint(one, f"{folder}/ep1.pt")
    other = run(seed=1, how=how)

    def read() -> dict[str, Any]:
        assert dist.get_global_rank() == 0
        return read_checkpoint(f"{folder}/ep1.pt")

    loaded = restore(other, Logger(other), read_on_rank_zero(read))
    assert loaded.rng is not None and len(loaded.rng) == 2
    return equal(weights(other), weights(one)), equal(moments(other), moments(one))


@pytest.mark.parametrize("how", ["fsdp", "none"])
def test_rank_zero_broadcasts_what_it_read(how, tmp_path, two_ranks) -> None:
    assert two_ranks.run(taken, str(tmp_path), how) == [(True, True)] * 2


def failed() -> str:
    try:
        read_on_rank_zero(lambda: read_checkpoint("absent.pt"))
    except (FileNotFoundError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_all_ranks_fail_if_rank_zero_does(two_ranks) -> None:
    first, other = two_ranks.run(failed)
    assert first == "FileNotFoundError: There is no checkpoint 'absent.pt'."
    assert other == f"RuntimeError: Rank 0 could not read the checkpoint: {first}"


def acted(fails: int | None) -> tuple[str, str]:
    """What each rank gets, or raises, if one of them fails."""
    rank = dist.get_global_rank()

    def act() -> str:
        if rank == fails:
            raise ValueError("no space")
        return f"from {rank}"

    found = []
    for call in (run_on_all_ranks, gather_from_all_ranks):
        try:
            found.append(str(call(act, "count")))
        except (ValueError, OSError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found[0], found[1]


def test_results_are_gathered_on_rank_zero_and_failures_raised_on_all(two_ranks) -> None:
    assert two_ranks.run(acted, None) == [("from 0", "['from 0', 'from 1']"), ("from 1", "[]")]
    other = "OSError: Rank 1 could not count: ValueError: no space"
    assert two_ranks.run(acted, 1) == [(other, other), ("ValueError: no space",) * 2]


def test_single_process() -> None:
    content = read_on_rank_zero(
        lambda: {"state": {"model": {"weight": torch.ones(2).t()}, "epoch": 1}, "rng": [torch.ones(1)]}
    )
    weight = content["state"]["model"]["weight"]
    assert isinstance(weight, BroadcastTensor)
    assert weight.receive().tolist() == [1, 1]
    assert content["state"]["epoch"] == 1
    assert isinstance(content["rng"][0], torch.Tensor)


def test_replacing() -> None:
    tree = {"a": [1, (2, {"b": 3})], "c": None}
    assert map_nodes(tree, lambda node: node * 2 if isinstance(node, int) else node) == {
        "a": [2, (4, {"b": 6})],
        "c": None,
    }
    assert map_nodes(tree, lambda node: "all" if isinstance(node, list) else node) == {"a": "all", "c": None}
