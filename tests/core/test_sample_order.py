"""The sample indices of an epoch, starting at any batch."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from composer.core import sample_order as module
from composer.core.sample_order import SampleOrder, SeededIndices, resumable_loader


def data(n: int) -> TensorDataset:
    return TensorDataset(torch.arange(n))


class Backwards(Sampler[int]):
    """A custom sampler."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self):
        return iter(range(self.n - 1, -1, -1))

    def __len__(self) -> int:
        return self.n


class Pairs(Sampler[list[int]]):
    """A custom batch sampler that uses random state."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.generator = None

    def __iter__(self):
        order = torch.randperm(self.n, generator=self.generator).tolist()
        return iter([order[i : i + 2] for i in range(0, self.n, 2)])

    def __len__(self) -> int:
        return (self.n + 1) // 2


SAMPLERS: dict[str, Any] = {
    "in order": lambda n, **size: DataLoader(data(n), **size),
    "shuffled": lambda n, **size: DataLoader(data(n), shuffle=True, **size),
    "with replacement": lambda n, **size: DataLoader(
        data(n), sampler=RandomSampler(data(n), replacement=True, num_samples=2 * n), **size
    ),
    "a part": lambda n, **size: DataLoader(data(n), sampler=RandomSampler(data(n), num_samples=max(1, n // 2)), **size),
    "more than there are": lambda n, **size: DataLoader(
        data(n), sampler=RandomSampler(data(n), num_samples=n + n // 2 + 1), **size
    ),
    "weighted": lambda n, **size: DataLoader(data(n), sampler=WeightedRandomSampler(range(1, n + 1), n), **size),
    "a subset": lambda n, **size: DataLoader(data(n), sampler=SubsetRandomSampler(range(0, n, 2)), **size),
    "one's own": lambda n, **size: DataLoader(data(n), sampler=Backwards(n), **size),
    "batches of one's own": lambda n, **size: DataLoader(data(n), batch_sampler=Pairs(n)),
    "a batch sampler": lambda n, batch_size, drop_last=False, **more: DataLoader(
        data(n), batch_sampler=BatchSampler(RandomSampler(data(n)), batch_size, drop_last), **more
    ),
    "no batches": lambda n, **size: DataLoader(data(n), batch_size=None, shuffle=True),
}


def one_epoch(loader: Any, start: int = 0, epoch: int = 0, seed: int = 3) -> list[Any]:
    made = SampleOrder(loader)
    made.seed, made.epoch, made.start = seed, epoch, start
    return [list(batch) if isinstance(batch, list) else batch for batch in made]


@pytest.mark.parametrize("kind", SAMPLERS)
@settings(max_examples=50)
@given(
    n=st.integers(1, 30),
    size=st.integers(1, 7),
    drop_last=st.booleans(),
    epoch=st.integers(0, 3),
    chunk=st.integers(1, 9),
)
def test_resume_from_every_batch(kind, n, size, drop_last, epoch, chunk) -> None:
    loader = SAMPLERS[kind](n, batch_size=size, drop_last=drop_last)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CHUNK", chunk)
        whole = one_epoch(loader, epoch=epoch)
        assert len(whole) == len(SampleOrder(loader)) == len(loader)
        step = SampleOrder(loader).step
        for done in range(len(whole) + 2):
            assert one_epoch(loader, done * step, epoch) == whole[done:]


@given(n=st.integers(1, 50), size=st.integers(1, 9), drop_last=st.booleans())
def test_every_sample_once(n, size, drop_last) -> None:
    for kind in ("in order", "shuffled"):
        batches = one_epoch(SAMPLERS[kind](n, batch_size=size, drop_last=drop_last))
        flat = [index for batch in batches for index in batch]
        assert len(flat) == (n - n % size if drop_last else n)
        assert len(set(flat)) == len(flat)
        assert all(len(batch) == size for batch in batches[:-1])
        assert kind == "shuffled" or flat == list(range(len(flat)))


@pytest.mark.parametrize(
    "kind", ["shuffled", "weighted", "a subset", "batches of one's own", "a batch sampler", "no batches"]
)
def test_epochs_and_seeds_differ_and_repeat(kind) -> None:
    loader = SAMPLERS[kind](40, batch_size=4)
    passes = [one_epoch(loader, epoch=epoch, seed=seed) for epoch in (0, 1) for seed in (1, 2)]
    assert all(one != other for i, one in enumerate(passes) for other in passes[:i])
    assert one_epoch(SAMPLERS[kind](40, batch_size=4), epoch=1, seed=2) == passes[3]


def test_a_batch_sampler_of_torch_keeps_its_order() -> None:
    batches = BatchSampler(RandomSampler(data(20)), 4, drop_last=True)
    assert one_epoch(DataLoader(data(20), batch_sampler=batches)) == one_epoch(SAMPLERS["shuffled"](20, batch_size=4))
    backwards = DataLoader(data(20), batch_sampler=BatchSampler(Backwards(20), 4, drop_last=True))
    assert one_epoch(backwards)[0] == [19, 18, 17, 16]


def test_a_custom_generator_determines_the_order() -> None:
    def loader(seed: int) -> DataLoader[Any]:
        return DataLoader(data(20), 4, shuffle=True, generator=torch.Generator().manual_seed(seed))

    assert one_epoch(loader(5), seed=1) == one_epoch(loader(5), seed=2)
    assert one_epoch(loader(5)) != one_epoch(loader(6))


@pytest.mark.parametrize("kind", SAMPLERS)
def test_generators_are_unchanged(kind) -> None:
    loader = SAMPLERS[kind](20, batch_size=4, generator=torch.Generator().manual_seed(5))
    own = [owner.generator for owner in (loader, loader.sampler) if getattr(owner, "generator", None) is not None]
    before = [random.getstate(), torch.get_rng_state().tolist(), *[one.get_state().tolist() for one in own]]
    one_epoch(loader)
    assert [random.getstate(), torch.get_rng_state().tolist(), *[one.get_state().tolist() for one in own]] == before


def test_sampler_generator_is_restored_if_an_epoch_is_abandoned() -> None:
    loader = SAMPLERS["weighted"](20, batch_size=4)
    iterator = iter(SampleOrder(loader))
    next(iterator)
    assert loader.sampler.generator is not None
    iterator.close()
    assert loader.sampler.generator is None


def test_subclasses_are_called() -> None:
    class Twice(RandomSampler):
        def __iter__(self):
            return iter([0, 0])

    class Ends(BatchSampler):
        def __iter__(self):
            return iter([[7]])

    assert one_epoch(DataLoader(data(8), 2, sampler=Twice(data(8)))) == [[0, 0]]
    assert one_epoch(DataLoader(data(8), batch_sampler=Ends(SequentialSampler(data(8)), 2, False))) == [[7]]


# ---------------------------------------------------------------------------------------------- in workers


class Numbers(Dataset[Any]):
    """Gives what the three generators draw."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index):
        return index, random.random(), float(np.random.rand()), float(torch.rand(()))


def drawn(workers: int, start: int = 0, **options: Any) -> list[Any]:
    loader = DataLoader(Numbers(), 3, shuffle=True, num_workers=workers, **options)
    made = SampleOrder(loader)
    made.seed, made.start = 3, start
    return [[part.tolist() for part in batch] for batch in resumable_loader(loader, made, seed=3)]


def test_random_state_in_workers_depends_only_on_the_batch() -> None:
    whole = drawn(1)
    assert len({number for batch in whole for number in batch[1] + batch[2] + batch[3]}) == 36
    assert drawn(2) == whole
    assert drawn(2, start=3, persistent_workers=True) == whole[1:]


def test_seeds_travel_with_the_indices() -> None:
    made = pickle.loads(pickle.dumps(SeededIndices([3, 1], seed=9)))
    assert (type(made), list(made), made.seed) == (SeededIndices, [3, 1], 9)


def test_iterating_indices_in_the_main_process_samples_and_seeds_nothing() -> None:
    before = torch.get_rng_state()
    assert list(SeededIndices([3, 1], seed=9)) == [3, 1]
    assert torch.equal(torch.get_rng_state(), before)


def test_a_loader_keeps_its_settings() -> None:
    def collate(batch):
        return len(batch)

    def init(worker):
        pass

    loader = DataLoader(
        data(9), 2, num_workers=2, collate_fn=collate, worker_init_fn=init, timeout=5, prefetch_factor=3,
        persistent_workers=True, drop_last=True, multiprocessing_context="fork",
    )  # fmt: skip
    made = resumable_loader(loader, SampleOrder(loader), seed=0)
    kept = (
        "num_workers",
        "collate_fn",
        "worker_init_fn",
        "timeout",
        "prefetch_factor",
        "persistent_workers",
        "pin_memory",
    )
    assert {name: getattr(made, name) for name in kept} == {name: getattr(loader, name) for name in kept}
    assert made.multiprocessing_context.get_start_method() == "fork"
    assert len(made) == len(loader) == 4


def test_beginning_an_epoch_samples_nothing() -> None:
    loader = DataLoader(data(9), 2, shuffle=True)
    before = torch.get_rng_state()
    assert len(list(resumable_loader(loader, SampleOrder(loader), seed=0))) == 5
    assert torch.equal(torch.get_rng_state(), before)
