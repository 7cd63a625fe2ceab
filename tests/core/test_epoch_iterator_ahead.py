"""A batch that is fetched ahead, to know whether an epoch is over, is that which would be fetched later."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from composer.core.epoch_iterators import EpochIterators
from tests.core.test_epoch_iterator import Loader, Stream


@pytest.mark.parametrize("make", [Loader, lambda: DataLoader(Stream(), None)])
def test_a_batch_fetched_ahead_follows_one_that_is_yielded_again(make: Any) -> None:
    factory = EpochIterators(make(), seed=0)
    running = factory.begin(epoch=0)
    first = next(running)
    running.state_dict(sized=False)
    factory.rewind(running, 0, 0, (first,))
    assert list(running) == [0, 1, 2, 3, 4]


def test_random_numbers_of_fetching_ahead_are_used_when_the_batch_is_yielded() -> None:
    class Noisy(Loader):
        def __iter__(self):
            yield from (number + torch.rand(1).item() for number in super().__iter__())

    torch.manual_seed(0)
    alone = list(EpochIterators(Noisy(), seed=0).begin(epoch=0))
    after = torch.rand(1)
    running = EpochIterators(Noisy(), seed=0).begin(epoch=0)
    torch.manual_seed(0)
    watched: list[float] = []
    for batch in running:
        watched.append(batch)
        state = torch.get_rng_state()
        for _ in range(2):
            running.state_dict(sized=False)
        assert torch.equal(torch.get_rng_state(), state)
    assert watched == alone
    assert torch.equal(torch.rand(1), after)


class WithEnd(Loader):
    __state_has_end__ = True


def test_nothing_is_fetched_ahead_if_the_state_has_the_end() -> None:
    loader = WithEnd()
    running = EpochIterators(loader, seed=0).begin(epoch=0)
    assert [next(running), next(running)] == [0, 1]
    assert running.state_dict(sized=False) == {"kind": "loader", "state": {"place": 2}}
    assert loader.place == 2
    assert list(running) == [2, 3, 4]
    ended = running.state_dict(sized=False)  # the loader may have prepared its next epoch
    assert ended["over"]
    resumed = EpochIterators(WithEnd(), seed=0).begin(0, 5, ended)
    assert resumed.state_dict(sized=False) == ended
    assert list(resumed) == []
