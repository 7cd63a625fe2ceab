"""Data sharded among ranks: each sample goes to one rank, in the steps of a single process."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler

from composer.core.data_sharding import DataShard, check_sharded_data, is_data_sharded
from composer.core.data_spec import DataSpec
from composer.core.epoch_iterators import EpochIterators
from composer.core.sample_order import SampleOrder


def data(n: int) -> TensorDataset:
    return TensorDataset(torch.arange(n))


class CustomSampler(Sampler[int]):
    """Samples from a generator that differs between ranks."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self):
        return iter(random.sample(range(self.n), self.n))

    def __len__(self) -> int:
        return self.n


class CustomBatches(Sampler[list[int]]):
    """Makes batches of different sizes."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self):
        order = torch.randperm(self.n).tolist()
        while order:
            yield [order.pop() for _ in range(min(len(order), 1 + len(order) % 3))]

    def __len__(self) -> int:
        return len(list(iter(self)))


def distributed(n: int, **more: Any) -> DistributedSampler[Any]:
    return DistributedSampler(data(n), num_replicas=1, rank=0, **more)


LOADERS: dict[str, Any] = {
    "in order": lambda n, **size: DataLoader(data(n), **size),
    "shuffled": lambda n, **size: DataLoader(data(n), shuffle=True, **size),
    "weighted": lambda n, **size: DataLoader(data(n), sampler=WeightedRandomSampler(range(1, n + 1), 2 * n), **size),
    "custom": lambda n, **size: DataLoader(data(n), sampler=CustomSampler(n), **size),
    "distributed": lambda n, **size: DataLoader(data(n), sampler=distributed(n, seed=5), **size),
    "batch sampler": lambda n, batch_size, drop_last=False: DataLoader(
        data(n), batch_sampler=BatchSampler(RandomSampler(data(n)), batch_size, drop_last)
    ),
    "distributed, in order": lambda n, **size: DataLoader(data(n), sampler=distributed(n, shuffle=False), **size),
}


def rest(loader: Any, shard: DataShard, start: int = 0, **more: Any) -> list[list[int]]:
    """The batches of a rank, whose random generators have different states."""
    random.seed(100 + shard.rank)
    torch.manual_seed(100 + shard.rank)
    indices = SampleOrder(loader, shard, **more)
    indices.seed, indices.epoch, indices.start = 3, 1, start
    return [list(batch) for batch in indices]


def flat(batches: Iterable[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


def steps(make: Any, n: int, size: int, parts: int, start: int = 0, drop_last: bool = False) -> list[list[int]]:
    """The samples that all ranks together consume in each step, by rank."""
    found = [rest(make(n, batch_size=size, drop_last=drop_last), DataShard(r, parts), start) for r in range(parts)]
    assert all(len(batch) <= size and batch for one in found for batch in one)
    return [flat(one[step] for one in found if step < len(one)) for step in range(max(len(one) for one in found))]


@pytest.mark.parametrize("kind", LOADERS)
@settings(max_examples=40)
@given(n=st.integers(1, 40), size=st.integers(1, 5), parts=st.integers(1, 5), drop_last=st.booleans())
def test_steps_match_single_process_with_larger_batches(kind, n, size, parts, drop_last) -> None:
    make = LOADERS[kind]
    one = rest(make(n, batch_size=size * parts, drop_last=drop_last), DataShard())
    several = steps(make, n, size, parts, drop_last=drop_last) if one else []
    assert [sorted(step) for step in several] == [sorted(step) for step in one]
    loader = make(n, batch_size=size, drop_last=drop_last)
    spec = DataSpec(loader)
    assert {spec.__length_of__(DataShard(rank, parts)) for rank in range(parts)} == {len(one)}


@pytest.mark.parametrize("kind", LOADERS)
@settings(max_examples=30)
@given(
    n=st.integers(1, 40),
    sizes=st.tuples(*[st.integers(1, 5)] * 2),
    parts=st.tuples(*[st.integers(1, 4)] * 2),
    stop=st.integers(0, 6),
)
def test_WorldResize_the_samples_of_an_epoch_are_exact(kind, n, sizes, parts, stop) -> None:
    make = LOADERS[kind]
    before = steps(make, n, sizes[0], parts[0])[:stop]
    after = steps(make, n, sizes[1], parts[1], start=stop * sizes[0] * parts[0])
    whole = rest(make(n, batch_size=n), DataShard())
    assert sorted(flat(before + after)) == sorted(flat(whole))


@settings(max_examples=40)
@given(n=st.integers(1, 30), size=st.integers(1, 4), parts=st.integers(1, 4))
def test_complete_batches_are_sharded_round_robin(n, size, parts) -> None:
    one = rest(LOADERS["shuffled"](n, batch_size=size), DataShard())
    for rank in range(parts):
        mine = rest(LOADERS["shuffled"](n, batch_size=size), DataShard(rank, parts), shard_batches=True)
        assert mine == one[rank::parts]
        mine = rest(LOADERS["weighted"](n, batch_size=size), DataShard(rank, parts), shard_batches=True)
        assert mine == rest(LOADERS["weighted"](n, batch_size=size), DataShard())[rank::parts]


@settings(max_examples=40)
@given(n=st.integers(1, 30), parts=st.integers(1, 4))
def test_custom_batches_are_sharded_round_robin(n, parts) -> None:
    def make() -> DataLoader[Any]:
        return DataLoader(data(n), batch_sampler=CustomBatches(n))

    one = rest(make(), DataShard())
    assert sorted(flat(one)) == list(range(n))
    assert [rest(make(), DataShard(rank, parts)) for rank in range(parts)] == [one[r::parts] for r in range(parts)]


class BatchesOfOwn(BatchSampler):
    """Makes batches as torch does."""


class Alternating(Sampler[int]):
    """Yields an index of each of two halves in turn."""

    def __init__(self, n: int) -> None:
        self.n, self.halves = n, [SubsetRandomSampler(range(n // 2)), SubsetRandomSampler(range(n // 2, n))]

    def __iter__(self):
        for pair in zip(*self.halves, strict=True):
            yield from pair

    def __len__(self) -> int:
        return self.n


class Flat:
    """Yields the indices of batches; not derived from torch's class."""

    def __init__(self, batches: Any) -> None:
        self.batches = batches

    def __iter__(self):
        return (index for batch in self.batches for index in batch)

    def __len__(self) -> int:
        return 24


class Endless(Sampler[int]):
    """Yields random indices, and has no length."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self):
        while True:
            yield random.randrange(self.n)
            yield int(torch.randint(self.n, ()))


def _as_entries(sampler: Any) -> DataLoader[Any]:
    """A loader whose sampler yields the batches."""
    return DataLoader(data(24), batch_size=None, sampler=BatchSampler(sampler, 3, drop_last=True))


# Samplers that draw from the random generators of the process, or of samplers that they wrap.
WRAPPED: dict[str, Any] = {
    "random": lambda: _as_entries(RandomSampler(data(24))),
    "replaced": lambda: _as_entries(RandomSampler(data(24), replacement=True)),
    "a subset": lambda: _as_entries(SubsetRandomSampler(range(24))),
    "weighted": lambda: _as_entries(WeightedRandomSampler(range(1, 25), 24)),
    "custom": lambda: _as_entries(CustomSampler(24)),
    "two": lambda: _as_entries(Alternating(24)),
    "two levels": lambda: _as_entries(Flat(BatchesOfOwn(Alternating(24), 4, True))),
    "own class": lambda: DataLoader(data(24), batch_sampler=BatchesOfOwn(RandomSampler(data(24)), 3, True)),
    "own class, custom": lambda: DataLoader(data(24), batch_sampler=BatchesOfOwn(CustomSampler(24), 3, True)),
    "endless": lambda: _as_entries(Endless(24)),
}


def _eight(make: Any, shard: DataShard, start: int = 0, epoch: int = 0) -> list[list[int]]:
    """The first eight batches of an epoch, as far as this rank has them, without a change of its generators."""
    random.seed(100 + shard.rank)
    torch.manual_seed(100 + shard.rank)
    before = random.getstate(), torch.get_rng_state().tolist()
    indices = SampleOrder(make(), shard)
    indices.seed, indices.epoch, indices.start = 3, epoch, start
    found = [list(batch) for batch in itertools.islice(indices, (8 - start) // shard.size)]
    assert (random.getstate(), torch.get_rng_state().tolist()) == before
    return found


@pytest.mark.parametrize("kind", WRAPPED)
def test_wrapped_samplers_are_seeded_equally_on_all_ranks(kind) -> None:
    make = WRAPPED[kind]
    one = _eight(make, DataShard())
    assert len(one) == 8
    assert [_eight(make, DataShard(rank, 2)) for rank in range(2)] == [one[rank::2] for rank in range(2)]
    assert [_eight(make, DataShard(rank, 2), start=4) for rank in range(2)] == [one[4 + r :: 2] for r in range(2)]
    assert _eight(make, DataShard(), start=3) == one[3:]
    assert _eight(make, DataShard(), epoch=1) != one
    if kind not in ("replaced", "weighted", "endless"):
        assert sorted(flat(one)) == list(range(24))


def test_samplers_that_one_combines_differ() -> None:
    one = flat(_eight(WRAPPED["two"], DataShard()))
    assert one[1::2] != [index + 12 for index in one[::2]]


def test_the_generator_of_a_wrapped_sampler_determines_the_order() -> None:
    def order(own: int, seed: int, epoch: int = 0) -> list[Any]:
        indices = SampleOrder(_as_entries(RandomSampler(data(24), generator=torch.Generator().manual_seed(own))))
        indices.seed, indices.epoch = seed, epoch
        return list(indices)

    assert order(5, 1) == order(5, 2)
    assert order(5, 1) != order(6, 1)
    assert order(5, 1) != order(5, 1, epoch=1)


def test_samplers_that_shard_are_found_in_others() -> None:
    sharded = _as_entries(DistributedSampler(data(24), num_replicas=2, rank=1, shuffle=False))
    assert is_data_sharded(sharded, DataShard(1, 2))
    assert flat(SampleOrder(sharded, DataShard(1, 2))) == list(range(1, 24, 2))
    check_sharded_data(OwnLoader(data(4), sampler=BatchesOfOwn(ShardedData(0), 2, False)), DataShard(0, 2), "data")


def test_single_items_are_sharded_round_robin() -> None:
    loader = DataLoader(data(5), batch_size=None)
    indices = [SampleOrder(loader, DataShard(rank, 2)) for rank in range(2)]
    assert [list(one) for one in indices] == [[0, 2, 4], [1, 3]]
    assert len(indices[1]) == 3


@pytest.mark.parametrize(("n", "drop_last"), [(24, False), (26, True), (13, True)])
def test_distributed_sampler_is_unchanged(n, drop_last) -> None:
    """But for the samples that it repeats."""
    for rank in range(2):
        sampler = DistributedSampler(data(n), num_replicas=2, rank=rank, seed=4, drop_last=drop_last)
        sampler.set_epoch(3)
        loader = DataLoader(data(n), batch_size=3, sampler=sampler)
        assert rest(loader, DataShard(rank, 2)) == list(BatchSampler(sampler, 3, drop_last=False))


def test_a_distributed_sampler_repeats_nothing() -> None:
    def mine(rank: int) -> list[list[int]]:
        sampler = DistributedSampler(data(7), num_replicas=3, rank=rank, shuffle=False)
        return rest(DataLoader(data(7), batch_size=2, sampler=sampler), DataShard(rank, 3))

    assert [mine(rank) for rank in range(3)] == [[[0, 3], [6]], [[1, 4]], [[2, 5]]]


class ShardedData(Sampler[int]):
    """Gives a process its part by itself."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def __iter__(self):
        return iter(range(self.rank, 8, 2))

    def __len__(self) -> int:
        return 4


class Stream(IterableDataset[int]):
    def __iter__(self):
        yield from range(3)


class OwnLoader(DataLoader[Any]):
    """May do more than fetch what its sampler says."""


def test_sharded_data_is_unchanged() -> None:
    shard = DataShard(1, 2)
    loader = DataLoader(data(8), batch_size=2, sampler=ShardedData(1))
    assert is_data_sharded(loader, shard)
    assert rest(loader, shard) == [[1, 3], [5, 7]]
    assert DataSpec(loader).__length_of__(shard) == 2
    others = DataLoader(data(8), sampler=DistributedSampler(data(8), num_replicas=4, rank=3))
    assert all(is_data_sharded(one, shard) for one in (others, [1], DataLoader(Stream()), OwnLoader(data(4))))
    plain = DataLoader(data(8), batch_sampler=BatchSampler(RandomSampler(data(8)), 2, drop_last=False))
    assert not is_data_sharded(plain, shard)
    assert list(EpochIterators(DataLoader(Stream(), None), 0, shard).begin(epoch=0)) == [0, 1, 2]


def test_data_that_cannot_be_sharded_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"train_dataloader: a OwnLoader yields the same samples on each of 2 .*get_sampler\(dataset"
    ):
        check_sharded_data(OwnLoader(data(4)), DataShard(0, 2), "train_dataloader")
    for loader in (OwnLoader(data(4), sampler=ShardedData(0)), OwnLoader(Stream()), DataLoader(data(4)), [1]):
        check_sharded_data(loader, DataShard(0, 2), "train_dataloader")
    check_sharded_data(OwnLoader(data(4)), DataShard(), "train_dataloader")


def test_per_rank_generators_are_unchanged() -> None:
    loader = LOADERS["custom"](9, batch_size=2)
    random.seed(1)
    before = random.getstate()
    list(SampleOrder(loader, DataShard(0, 2)))
    assert random.getstate() == before


# ----------------------------------------------------------------------------------------------- the place in a pass


def passed(n: int, shard: DataShard, size: int, batch: int = 0, saved: Any = None) -> Any:
    loader = DataLoader(data(n), batch_size=size, shuffle=True)
    return EpochIterators(loader, 3, shard).begin(epoch=0, batch=batch, saved=saved)


def test_the_position_is_global() -> None:
    two = [passed(20, DataShard(rank, 2), 3) for rank in range(2)]
    done = [int(x) for one in two for _ in range(2) for x in next(one)[0]]
    saved = two[0].state_dict()
    assert saved == {"kind": "indices", "place": 12} == two[1].state_dict()
    alone = passed(20, DataShard(), 3, batch=2, saved=saved)
    assert alone.length == 2 + 3
    assert sorted(done + [int(x) for batch in alone for x in batch[0]]) == list(range(20))
    assert alone.state_dict()["place"] >= 20
    over = passed(20, DataShard(1, 4), 3, batch=5, saved=alone.state_dict())
    assert (over.length, list(over)) == (5, [])


def test_position_without_sample_count_counts_batches() -> None:
    assert next(passed(20, DataShard(), 3, batch=2, saved={"kind": "indices"}))[0].tolist() == (
        next(passed(20, DataShard(), 3, batch=2, saved={"kind": "indices", "place": 6}))[0].tolist()
    )


@pytest.mark.parametrize(("ranks", "size"), [(2, 1), (1, 2), (2, 4)])
def test_a_position_in_separate_data_requires_the_same_number_of_ranks(ranks, size) -> None:
    place = {"kind": "replay", "rng": None}
    saved = place if ranks == 1 else {"kind": "replay", "ranks": [place] * ranks}
    with pytest.raises(ValueError, match=rf"saved by {ranks} rank.* has {size} rank.*spin_dataloaders=False"):
        EpochIterators([1, 2], 0, DataShard(0, size)).begin(epoch=0, batch=1, saved=saved)


def test_legacy_position_is_per_rank() -> None:
    saved = {"kind": "any", "rng": None}
    assert list(EpochIterators([1, 2, 3], 0, DataShard(1, 2)).begin(epoch=0, batch=2, saved=saved)) == [3]
    loader = DataLoader(data(9), batch_size=2)
    (rest_of_pass,) = EpochIterators(loader, 0, DataShard(1, 2)).begin(epoch=0, batch=1, saved=saved)
    assert rest_of_pass[0].tolist() == [5, 7]


def test_batch_order_is_not_accidentally_sorted() -> None:
    """The laws above compare sets; here is the order within a step."""
    loader = DataLoader(data(8), batch_size=2, sampler=SequentialSampler(data(8)))
    assert [rest(loader, DataShard(rank, 2)) for rank in range(2)] == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
