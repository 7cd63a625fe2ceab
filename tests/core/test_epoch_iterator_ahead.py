"""A batch that is fetched ahead, to know whether an epoch is over, is that which would be fetched later."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

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


class Noisy(Loader):
    def __iter__(self):
        yield from (number + torch.rand(1).item() for number in super().__iter__())


class NoisyStream(Stream):
    def __iter__(self):
        yield from (number + torch.rand(1).item() for number in super().__iter__())


@pytest.mark.parametrize("make", [Noisy, lambda: DataLoader(NoisyStream(), None)])
def test_a_batch_is_fetched_again_if_others_used_random_numbers(make: Any) -> None:
    """As a model does between a checkpoint within a step and the next batch."""

    def values(save: bool) -> list[float]:
        torch.manual_seed(0)
        found: list[float] = []
        for batch in (running := EpochIterators(make(), seed=0).begin(epoch=0)):
            found += [batch, torch.rand(1).item()]
            saved = [running.state_dict(sized=False) for _ in range(2 * save)]
            found.append(torch.rand(1).item())
            assert saved[:1] == saved[1:] == [running.state_dict(sized=False)] * save
        return [*found, torch.rand(1).item()]

    assert values(save=True) == values(save=False)


class ReadAgain(DataLoader[Any]):
    """Has a state, but its dataset has none and is read again."""

    def state_dict(self) -> Any:
        return {}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("not exact")


def test_data_that_are_read_again_keep_the_batch_fetched_ahead() -> None:
    running = EpochIterators(ReadAgain(Draws(), None), seed=0).begin(epoch=0)
    found = [next(running)]
    running.state_dict(sized=False)
    torch.rand(1)
    assert len({*found, *running}) == 5


class Draws(IterableDataset[Any]):
    def __iter__(self):
        yield from torch.randperm(5).tolist()


def test_random_numbers_of_fetching_ahead_are_used_when_the_batch_is_yielded() -> None:
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


class LiveStream(Stream):
    """Its state is one object, which it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.live = {"place": 0}

    def __iter__(self):
        for number in super().__iter__():
            self.live["place"] = self.place
            yield number

    def state_dict(self) -> Any:
        return self.live


def test_a_state_that_the_data_changes_is_that_before_the_batch_fetched_ahead() -> None:
    running = EpochIterators(DataLoader(LiveStream(), None), seed=0).begin(epoch=0)
    assert [next(running), next(running)] == [0, 1]
    saved = running.state_dict(sized=False)
    later = EpochIterators(DataLoader(LiveStream(), None), seed=0).begin(0, 2, saved)
    assert list(later) == [2, 3, 4]
