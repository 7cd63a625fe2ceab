"""Epochs are resumed at the position that another process saved."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, IterableDataset, TensorDataset

from composer.core.data_sharding import DataShard, samplers_of
from composer.core.epoch_iterator import EpochIterator
from composer.core.epoch_iterators import EpochIterators

BATCHES = 5


class Place:
    """Keeps a place."""

    def __init__(self) -> None:
        self.place = 0

    def state_dict(self) -> Any:
        return {"place": self.place}

    def load_state_dict(self, state: Any) -> None:
        self.place = state["place"]


class Loader(Place):
    def __iter__(self):
        self.place %= BATCHES
        while self.place < BATCHES:
            self.place += 1
            yield self.place - 1


class Stream(Place, IterableDataset[Any]):
    def __iter__(self):
        while self.place < BATCHES:
            self.place += 1
            yield self.place - 1
        self.place = 0


class Counting(Place, IterableDataset[Any]):
    """Its state is asked for with the number of samples, as streaming's is."""

    def state_dict(self, num_samples: int, from_beginning: bool) -> Any:
        return {"place": num_samples, "from_beginning": from_beginning}

    def __iter__(self):
        first, self.place = self.place % BATCHES, 0
        yield from range(first, BATCHES)


class Mapped(Place, Dataset[Any]):
    """Has indices, and a state of its own that is no place."""

    def __len__(self) -> int:
        return BATCHES

    def __getitem__(self, index: int) -> int:
        return index


class OwnLoader(DataLoader[Any]):
    """May do more than fetch what its sampler says."""


class Plain:
    def __init__(self, numbers: Any = None) -> None:
        self.numbers = range(BATCHES) if numbers is None else numbers

    def __iter__(self):
        return iter(list(self.numbers))


KINDS: dict[str, tuple[str, Any]] = {
    "list": ("replay", lambda: list(range(BATCHES))),
    "plain": ("replay", Plain),
    "class of one's own": ("replay", lambda: OwnLoader(range(BATCHES), None)),
    "loader": ("loader", Loader),
    "torch": ("indices", lambda: DataLoader(range(BATCHES), None)),
    "shuffled": ("indices", lambda: DataLoader(TensorDataset(torch.arange(BATCHES)), 1, shuffle=True)),
    "mapped with a state": ("indices", lambda: DataLoader(Mapped(), None)),
    "stream": ("dataset", lambda: DataLoader(Stream(), None)),
    "counting": ("dataset", lambda: DataLoader(Counting(), None)),
    "stream without state": ("replay", lambda: DataLoader(Iterable(), None)),
    "stream in workers": ("replay", lambda: DataLoader(Stream(), None, num_workers=1)),
    "counting in workers": ("dataset", lambda: DataLoader(Counting(), None, num_workers=1)),
}


class Iterable(IterableDataset[Any]):
    def __iter__(self):
        yield from range(BATCHES)


@pytest.fixture(autouse=True)
def _expected_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="composer")


def plain(batches: Any) -> list[Any]:
    return [batch[0].item() if isinstance(batch, list) else batch for batch in batches]


@pytest.mark.parametrize("name", KINDS)
def test_types(name) -> None:
    kind, make = KINDS[name]
    assert EpochIterators(make(), seed=0).resume_by == kind


@pytest.mark.parametrize("name", [name for name in KINDS if "workers" not in name])
@pytest.mark.parametrize("sized", [True, False])
def test_resume_from_every_position(name, sized) -> None:
    _, make = KINDS[name]
    whole = plain(EpochIterators(make(), seed=3).begin(epoch=0))
    assert sorted(whole) == list(range(BATCHES))
    for done in range(1, BATCHES + (not sized)):
        running = EpochIterators(make(), seed=3).begin(epoch=0)
        before = plain(next(running) for _ in range(done))
        saved = running.state_dict(done, sized=sized)
        rest = plain(running)
        assert before + rest == whole  # to be asked for its place changes nothing
        later = EpochIterators(make(), seed=3)
        assert plain(later.begin(epoch=0, batch=done, saved=saved)) == rest
        # The next epoch is complete again.
        assert sorted(plain(later.begin(epoch=1))) == list(range(BATCHES))


def test_end_of_an_epoch_of_unknown_length() -> None:
    running = EpochIterators(DataLoader(Stream(), None), seed=0).begin(epoch=0)
    for _ in range(BATCHES):
        next(running)
    saved = running.state_dict(BATCHES, sized=False)
    assert saved["over"]
    assert list(EpochIterators(DataLoader(Stream(), None), seed=0).begin(epoch=0, batch=BATCHES, saved=saved)) == []


def test_a_state_that_counts_samples_receives_their_number() -> None:
    running = EpochIterators(DataLoader(Counting(), None), seed=0).begin(epoch=0)
    assert running.state_dict(7)["state"] == {"place": 7, "from_beginning": True}


@pytest.mark.parametrize("saved", [{"kind": "any", "rng": None}])
@pytest.mark.parametrize("name", ["list", "shuffled", "class of one's own"])
def test_position_with_batch_count_only(name, saved) -> None:
    _, make = KINDS[name]
    whole = plain(EpochIterators(make(), seed=3).begin(epoch=0))
    assert plain(EpochIterators(make(), seed=3).begin(epoch=0, batch=2, saved=saved)) == whole[2:]


def test_another_type_of_data_is_refused() -> None:
    saved = EpochIterators(Loader(), seed=0).begin(epoch=0).state_dict()
    with pytest.raises(
        ValueError, match="saved by the state_dict of the loader, but the current data resumes by fetching"
    ):
        EpochIterators([1, 2], seed=0).begin(epoch=0, batch=1, saved=saved)


class Random:
    """Draws its order when it begins."""

    def __iter__(self):
        return iter(torch.randperm(20).tolist())


@given(st.integers(1, 20), st.integers(0, 1000))
def test_fetching_again_samples_the_same_values(done, seed) -> None:
    torch.manual_seed(seed)
    running = EpochIterators(Random(), seed=0).begin(epoch=0)
    for _ in range(done):
        next(running)
    saved = running.state_dict()
    rest = list(running)
    torch.manual_seed(seed + 1)
    assert list(EpochIterators(Random(), seed=0).begin(epoch=0, batch=done, saved=saved)) == rest


def test_fetching_again_is_logged(caplog) -> None:
    caplog.set_level(logging.WARNING, logger="composer")
    EpochIterators([1, 2, 3], seed=0).begin(epoch=0, batch=2, saved={"kind": "replay", "rng": None})
    assert "Fetching the first 2 batches again" in caplog.text


def test_set_epoch_of_distributed_samplers() -> None:
    class Told:
        def __init__(self) -> None:
            self.epochs: list[int] = []
            self.sampler = self

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

        def __iter__(self):
            return iter([1])

    loader = Told()
    factory = EpochIterators(loader, seed=0)
    for epoch in (0, 1):
        factory.begin(epoch=epoch)
    assert loader.epochs == [0, 1]


def test_prefetched_batches_are_not_lost() -> None:
    running = EpochIterator("dataset", iter([1, 2]), stateful=Stream())
    assert not running._is_over()
    assert not running._is_over()
    assert list(running) == [1, 2]
    assert running._is_over()


@pytest.mark.parametrize("name", ["loader", "stream"])
def test_position_saved_twice_is_equal(name: str) -> None:
    kind, make = KINDS[name]
    running = EpochIterators(make(), seed=0).begin(epoch=0)
    assert [next(running), next(running)] == [0, 1]
    saved = [running.state_dict(2, sized=False) for _ in range(3)]
    assert saved[0]["kind"] == kind
    assert saved[1:] == saved[:1] * 2
    assert list(running) == [2, 3, 4]
    for one in saved:
        assert list(EpochIterators(make(), seed=0).begin(0, 2, one)) == [2, 3, 4]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("fetched", [True, False])
def test_a_batch_is_yielded_again(name: str, fetched: bool) -> None:
    kind, make = KINDS[name]
    torch.manual_seed(0)
    expected = plain(EpochIterators(make(), seed=0).begin(epoch=1))
    for done in range(BATCHES - 1):
        torch.manual_seed(0)
        factory = EpochIterators(make(), seed=0)
        running = factory.begin(epoch=1)
        found = plain(next(running) for _ in range(done))
        if fetched:
            again = next(running)
            assert factory.rewind(running, 1, done, (again if kind != "indices" else None,))
        elif not factory.rewind(running, 1, done, ()):
            assert kind in ("loader", "dataset")
        if kind == "indices":
            assert running.state_dict() == {
                "kind": kind,
                "place": done,
                **({"state": {"place": 0}} if "mapped" in name else {}),
            }
        assert found + plain(running) == expected


def test_failed_iterator_is_not_restarted() -> None:
    factory = EpochIterators(iter(range(BATCHES)), seed=0)
    running = factory.begin(epoch=0)
    assert next(running) == 0
    assert not factory.rewind(running, 0, 1, ())
    assert factory.rewind(running, 0, 0, (0,))
    assert list(running) == [0, 1, 2, 3, 4]


def test_position_before_a_returned_batch_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="composer")
    factory = EpochIterators(Loader(), seed=0)
    running = factory.begin(epoch=0)
    factory.rewind(running, 0, 0, (next(running),))
    assert running.state_dict() == {"kind": "loader", "state": {"place": 1}}
    assert "A run that resumes from here skips that batch" in caplog.text
    counting = DataLoader(Counting(), None)
    factory = EpochIterators(counting, seed=0)
    running = factory.begin(epoch=0)
    caplog.clear()
    factory.rewind(running, 0, 0, (next(running),))
    assert running.state_dict(0)["state"]["place"] == 0
    assert not caplog.text


class OwnPlaceLoader(DataLoader[Any]):
    """Keeps a place, as torchdata's does."""

    def state_dict(self) -> Any:
        return {}

    def load_state_dict(self, state: Any) -> None:
        raise AssertionError("the data set's place is the one that fits any number of processes")


def test_global_sample_count_takes_precedence_over_loader_position() -> None:
    factory = EpochIterators(OwnPlaceLoader(Counting(), None), seed=0)
    assert (factory.resume_by, factory.is_per_rank) == ("dataset", False)
    saved = factory.begin(epoch=0).state_dict(2)
    assert list(EpochIterators(OwnPlaceLoader(Counting(), None), seed=0).begin(0, 2, saved)) == [2, 3, 4]


def test_set_epoch_of_data_and_loaders() -> None:
    class Told(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.epochs: list[int] = []
            self.dataset = Numbered()

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    class Numbered:
        next_epoch = 0

    loader = Told()
    factory = EpochIterators(loader, seed=0)
    for epoch in (3, 4):
        factory.begin(epoch=epoch)
        assert loader.dataset.next_epoch == epoch
    assert loader.epochs == [3, 4]


class Drawing(Place):
    """Its next order follows from those before."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return iter([self.passes * 10 + i for i in range(2)])

    def state_dict(self) -> Any:
        return {"passes": self.passes}

    def load_state_dict(self, state: Any) -> None:
        self.passes = state["passes"]


def test_state_between_two_epochs() -> None:
    loader = Drawing()
    factory = EpochIterators(loader, seed=0)
    ended = factory.begin(epoch=0)
    assert list(ended) == [10, 11]
    ended.stop()
    place = factory.position_after(ended, 2, 2, sized=False)
    assert place == {"kind": "loader", "state": {"passes": 1}, "over": True, "ended": 2}
    later = EpochIterators(Drawing(), seed=0)
    later.restore_after(0, place)
    assert list(later.begin(epoch=1)) == list(factory.begin(epoch=1)) == [20, 21]


def test_other_data_restart_between_epochs(caplog) -> None:
    caplog.set_level(logging.WARNING, logger="composer")
    factory = EpochIterators([1, 2], seed=0)
    factory.restore_after(0, {"kind": "loader", "state": {}, "ended": 2})
    assert "it starts from the beginning" in caplog.text
    assert list(factory.begin(epoch=1)) == [1, 2]
    ended = factory.begin(epoch=2)
    assert factory.position_after(ended, 2, 2) is None


def test_wrapped_samplers_get_the_epoch() -> None:
    class Fifth(DistributedSampler[Any]):
        """Counts epochs on its own."""

        def set_epoch(self, epoch: int) -> None:
            super().set_epoch(epoch + 5)

    data = TensorDataset(torch.arange(24))
    inner = Fifth(data, num_replicas=1, rank=0)
    loader = DataLoader(data, batch_size=None, sampler=BatchSampler(inner, 3, drop_last=True))
    assert samplers_of(loader) == [loader.sampler, inner]
    EpochIterators(loader, 3, DataShard()).begin(epoch=2)
    assert inner.epoch == 7
