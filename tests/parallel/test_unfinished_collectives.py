"""Automatic microbatches with an OOM on one of two ranks: no hang, and the same weights as with a given size."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torch.distributed.fsdp import FSDPModule

from composer.parallel.unfinished_collectives import BucketCounter, CollectiveLog
from tests.common import regression_data, trainer_of
from tests.ranks import Ranks, RanksError
from tests.simulated_oom import Limit, RunsOut, train

FSDP = {"parallelism_config": {"fsdp": {}}}
SMALL = {"parallelism_config": {"fsdp": {}}, "ddp_sync_strategy": "single_auto_sync"}
pytestmark = pytest.mark.slow
with_sharded_weights = pytest.mark.skipif(
    not hasattr(FSDPModule, "reset_iter_state"), reason="this version of torch cannot abort a pass"
)


def both(where: str | None, limit: dict[str, Any], manual: dict[str, Any], arguments: dict[str, Any]) -> Any:
    """Train with an automatic size and with given sizes; return both results and the completed collectives."""
    caught: list[int] = []
    reduce_remaining, issue_remaining = BucketCounter.reduce_remaining, CollectiveLog.issue_remaining

    def send(self: BucketCounter, module: nn.Module, *, after: int) -> None:
        caught.append(after)
        reduce_remaining(self, module, after=after)

    def start(self: CollectiveLog, microbatches: int) -> None:
        caught.append(len(self._current))
        issue_remaining(self, microbatches)

    BucketCounter.reduce_remaining, CollectiveLog.issue_remaining = send, start
    try:
        found, sizes, failures = train(Limit(where, **limit), "auto", **arguments)
    finally:
        BucketCounter.reduce_remaining, CollectiveLog.issue_remaining = reduce_remaining, issue_remaining
    expected, used, _ = train(Limit(), **{**arguments, **manual})
    return found == expected, sizes == used, failures, caught


def check(ranks: Ranks, where: str, limit: dict[str, Any], manual: dict[str, Any], **arguments: Any) -> list[int]:
    """Check that the ranks agree with each other and with given sizes; return where rank 1 broke off."""
    first, second = ranks.run(both, where, {"rank": 1, **limit}, manual, arguments)
    assert first == (True, True, [], [])
    assert second[:2] == (True, True)
    assert second[2], "nothing has failed"
    return second[3]


@pytest.mark.parametrize("where", ["forward", "loss", "backward", "step"])
def test_MicrobatchOOM_of_one_rank_of_two(two_ranks: Ranks, where) -> None:
    caught = check(two_ranks, where, {"size": 2}, {"size": 2})
    assert caught == ([] if where == "step" else [0, 0])


def test_MicrobatchOOM_of_one_rank_after_it_has_sent_some_gradients(two_ranks: Ranks) -> None:
    """Wide enough for several buckets; the remaining ones are all-reduced as zeros."""
    caught = check(two_ranks, "backward", {"size": 4, "since": 3}, {"size": 8, "sizes": {3: 4}}, width=600)
    assert caught == [1]


@pytest.mark.parametrize("where", ["loss", "backward"])
def test_MicrobatchOOM_of_one_rank_where_a_frozen_layer_is_freed_later(two_ranks: Ranks, where) -> None:
    check(two_ranks, where, {"size": 4, "since": 4}, {"size": 8, "sizes": {4: 4}}, thaw=4)


def test_MicrobatchOOM_of_one_rank_in_its_last_microbatch(two_ranks: Ranks) -> None:
    """Of 11 samples in 4 and 4 and 3; the other rank has 2 microbatches of 8."""
    check(two_ranks, "forward", {"size": 2, "since": 2}, {"size": 11, "sizes": {2: 2}}, samples=11, norm=False)


@pytest.mark.parametrize("sync", ["multi_auto_sync", "forced_sync"])
def test_MicrobatchOOM_of_one_rank_where_gradients_are_averaged_otherwise(two_ranks: Ranks, sync) -> None:
    manual = {"size": 8, "sizes": {1: 4}, "ddp_sync_strategy": "forced_sync"}  # each microbatch would round
    check(two_ranks, "backward", {"size": 4, "since": 1}, manual, ddp_sync_strategy=sync)


def test_MicrobatchOOM_of_one_rank_without_a_batch_left(two_ranks: Ranks) -> None:
    """Rank 1 has no batch left and joins with its last one (uneven inputs)."""
    manual = {"size": 8, "sizes": {5: 4}}
    check(two_ranks, "forward", {"size": 4, "since": 5}, manual, batches=(6, 4))


@with_sharded_weights
@pytest.mark.parametrize("where", ["forward", "loss", "backward"])
@pytest.mark.parametrize("arguments", [FSDP, SMALL], ids=["each", "last"])
def test_MicrobatchOOM_of_one_rank_with_sharded_weights(two_ranks: Ranks, where, arguments) -> None:
    caught = check(two_ranks, where, {"size": 2}, {"size": 2}, **arguments)
    assert len(caught) == 2
    assert caught[0] > 0  # it had issued some all-gathers


@with_sharded_weights
def test_MicrobatchOOM_of_one_rank_with_sharded_weights_after_evaluations(two_ranks: Ranks) -> None:
    """Collectives of evaluations are not recorded for training."""
    manual = {"size": 8, "sizes": {3: 4}}
    evaluation = {"eval_dataloader": regression_data(2), "eval_interval": "1ba"}
    check(two_ranks, "backward", {"size": 4, "since": 3}, manual, **FSDP, **evaluation)


def nothing_fits(rank: int) -> str:
    with pytest.raises(RuntimeError) as caught:
        train(Limit("forward", 0, rank=rank), "auto", norm=False)
    return str(caught.value)


def test_both_ranks_stop_if_one_sample_does_not_fit(two_ranks: Ranks) -> None:
    first, second = two_ranks.run(nothing_fits, 1)
    assert first == second
    assert "Out of memory on one of the ranks with a microbatch of a single sample" in first


def refused(norm: bool, arguments: dict[str, Any]) -> str:
    model = RunsOut()
    if norm:
        model.norm = nn.SyncBatchNorm(8)
    with pytest.raises(ValueError, match="device_train_microbatch_size='auto' does not work with") as caught:
        trainer_of(model, regression_data(1), device_train_microbatch_size="auto", **arguments)
    return str(caught.value)


def test_collectives_in_the_forward_pass_are_rejected(two_ranks: Ranks) -> None:
    assert "SyncBatchNorm" in two_ranks.run(refused, True, {})[0]
    copies = {"fsdp": {"data_parallel_shard_degree": 1, "data_parallel_replicate_degree": 2}}
    assert "fsdp as configured" in two_ranks.run(refused, False, {"parallelism_config": copies})[0]


def other_errors() -> None:
    train(Limit("forward", 4, error=lambda: ValueError("a mistake")), "auto")


def test_other_errors_are_raised(two_ranks: Ranks) -> None:
    with pytest.raises(RanksError, match="ValueError: a mistake"):
        two_ranks.run(other_errors)
