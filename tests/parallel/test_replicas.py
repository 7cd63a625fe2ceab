"""Process groups of replicas, and their first weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as torch_dist
from torch import nn

from composer import dist
from composer.algorithms import EMA, DiLoCo, LocalSGD
from composer.parallel.replicas import broadcast_model, make_replicas, requested_replica_size
from tests.ranks import Ranks


def groups(size: int) -> list[Any]:
    replicas = make_replicas(size, "cpu")
    ranks = [
        None if group is None else torch_dist.get_process_group_ranks(group)
        for group in (replicas.group, replicas.first_ranks)
    ]
    return [replicas.count, replicas.index, replicas.rank_in_replica, list(replicas.ranks), *ranks]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_groups_of_adjacent_ranks(four_ranks: Ranks, size: int) -> None:
    for rank, found in enumerate(four_ranks.run(groups, size)):
        first = rank // size * size
        own, firsts = list(range(first, first + size)), list(range(0, 4, size))
        expected = [4 // size, rank // size, rank % size, own, own if size > 1 else None]
        assert found == [*expected, firsts if rank in firsts and size < 4 else None]


def test_size_must_divide_the_world_size(four_ranks: Ranks) -> None:
    assert four_ranks.run(error_of, 3) == ["replica_size=3 does not divide the world size, 4"] * 4


def error_of(size: int) -> str:
    with pytest.raises(ValueError) as caught:
        make_replicas(size, "cpu")
    return str(caught.value).partition(":")[0]


def test_a_single_algorithm_decides() -> None:
    assert requested_replica_size([EMA(), DiLoCo(replica_size=4)]) == 4
    assert requested_replica_size([EMA()]) is None
    with pytest.raises(ValueError, match="DiLoCo and LocalSGD both"):
        requested_replica_size([DiLoCo(), LocalSGD()])


def own_weights_replaced() -> list[torch.Tensor]:
    torch.manual_seed(dist.get_global_rank())
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).to(memory_format=torch.channels_last)
    model[1].running_mean.fill_(dist.get_global_rank())
    broadcast_model(model)
    return [
        *model.state_dict().values(),
        torch.tensor(model[0].weight.is_contiguous(memory_format=torch.channels_last)),
    ]


def test_all_replicas_start_from_the_weights_of_rank_zero(two_ranks: Ranks) -> None:
    first, second = two_ranks.run(own_weights_replaced)
    assert all(map(torch.equal, first, second))
    torch.manual_seed(0)
    assert torch.equal(first[0], nn.Conv2d(3, 4, 3).weight)
    assert first[-1]
