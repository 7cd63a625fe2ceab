"""One rank of many: what the benchmark counts and models."""

from __future__ import annotations

import pytest
import torch

from benchmarks import many_ranks
from benchmarks.simulated_network import Call, Network, recorded
from composer import dist
from composer.dist.simulation import simulated_ranks


def test_a_rank_of_two_and_of_64() -> None:
    report = many_ranks.measure((2, 64), rounds=1)
    few, many = report.rows
    assert [row[0] for row in report.rows] == ["2 ranks", "64 ranks"]
    assert few[1:4] == [1, 112, 2]
    assert many[1:4] == [2, 112, 28], "along two axes of eight ranks"
    assert few[8] == many[8] == 4, "requests to the store"
    assert many[-2] == 64 * many_ranks.NUM_TENSORS
    assert report.samples["64"]["collectives"]["step"] == {"all_reduce of 8 ranks, 112 bytes": 2}
    assert {goal.what.partition(",")[0] for goal in report.goals if goal.unit == "ms"} == {
        "per-step all-reduce of 64 ranks"
    }


def test_each_replica_plans_its_turn_only() -> None:
    assert many_ranks.plan_seconds(4, 8)[1] == 4 * many_ranks.NUM_TENSORS
    assert many_ranks.plan_seconds(4, 8, each_writes_all=True)[1] == 8 * 4 * many_ranks.NUM_TENSORS


def test_collectives_are_recorded_with_their_group_and_size() -> None:
    with simulated_ranks(4), recorded() as calls:
        dist.all_reduce(torch.zeros(3))
        group = torch.distributed.new_group([0, 1])
        dist.all_reduce(torch.zeros(2, dtype=torch.float64), group=group)
    assert calls == [Call("all_reduce", 4, 12), Call("all_reduce", 2, 16)]


@pytest.mark.parametrize(
    ("call", "messages", "sent"),
    [
        (Call("all_reduce", 8, 100), 14, 200),
        (Call("all_gather_object", 64, 100), 28, 6400),
        (Call("broadcast", 64, 100), 6, 600),
        (Call("barrier", 1, 0), 0, 0),
    ],
)
def test_time_by_the_model(call: Call, messages: int, sent: int) -> None:
    network = Network(latency=1.0, bandwidth=1000.0)
    assert network.seconds(call) == pytest.approx(messages + sent / 1000)
