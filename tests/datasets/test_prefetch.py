"""DevicePrefetcher: prefetched batches, and resuming from the position of the yielded ones."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from composer import dist
from composer.core import device_transfer
from composer.core.epoch_iterators import EpochIterators
from composer.datasets import DevicePrefetcher, NormalizationFn
from tests.common import Onward
from tests.core.test_epoch_iterator import Counting, Loader, Plain, Stream
from tests.streams import FakeCuda

N = 10


def shuffled(**more: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(N)), 2, shuffle=True, **more)


KINDS: dict[str, Any] = {
    "shuffled": shuffled,
    "loader with a place": Loader,
    "data with a place": lambda: DataLoader(Stream(), None),
    "data that counts": lambda: DataLoader(Counting(), 1),
    "list": Plain,
}


def plain(batches: Any) -> list[Any]:
    return [torch.as_tensor(batch[0] if isinstance(batch, list) else batch).tolist() for batch in batches]


def prefetcher(kind: str, **more: Any) -> DevicePrefetcher:
    return DevicePrefetcher(KINDS[kind](), device="cpu", **more)


@pytest.fixture(autouse=True)
def _expected_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, logger="composer")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_resume_from_every_batch(kind, ahead, monkeypatch) -> None:
    """Batches are prefetched as on CUDA; the state is that of the yielded batches."""
    monkeypatch.setattr(DevicePrefetcher, "_num_ahead", property(lambda self: self.ahead))
    straight = prefetcher(kind, ahead=ahead)
    passes = [plain(straight), plain(straight)]
    assert straight.epoch == 2
    for epoch in (0, 1):
        for done in range(1, 6):
            running = prefetcher(kind, ahead=ahead)
            for _ in range(epoch):
                plain(running)
            iterator = iter(running)
            before = plain(next(iterator) for _ in range(done))
            later = prefetcher(kind, ahead=ahead)
            later.load_state_dict(running.state_dict())
            assert later.epoch == epoch
            assert before + plain(later) == passes[epoch]
            assert later.epoch == epoch + 1
            if epoch == 0:
                assert plain(later) == passes[1]


@given(st.integers(0, 50))
def test_the_seed_determines_the_order(seed) -> None:
    found = prefetcher("shuffled", seed=seed)
    expected = EpochIterators(shuffled(), seed)
    for epoch in range(2):
        assert plain(found) == plain(expected.begin(epoch))


def test_an_epoch_that_was_left_early_is_over() -> None:
    straight = prefetcher("shuffled")
    plain(straight)
    second = plain(straight)
    running = prefetcher("shuffled")
    next(iter(running))
    assert plain(running) == second


def test_length_and_transform() -> None:
    assert len(prefetcher("shuffled")) == 5
    with pytest.raises(TypeError, match="Plain has no length"):
        len(prefetcher("list"))
    images = DataLoader(TensorDataset(torch.full((2, 1, 2, 2), 5, dtype=torch.uint8), torch.zeros(2)), 2)
    ((x, _),) = DevicePrefetcher(images, device="cpu", transform=NormalizationFn((1,), (2,)))
    assert x.eq(2).all()


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="ahead must be 0 or greater"):
        prefetcher("shuffled", ahead=-1)
    state = prefetcher("shuffled", seed=1).state_dict()
    with pytest.raises(ValueError, match="seed=1, but this prefetcher has seed=2"):
        prefetcher("shuffled", seed=2).load_state_dict(state)


def test_data_go_on_from_epoch_to_epoch() -> None:
    """Also after loading, and after an epoch that was left early, of which no batch that was fetched ahead is lost."""
    running = DevicePrefetcher(Onward(), "cpu")
    states = [running.state_dict()]
    assert plain(running) == [1, 2, 3]
    states.append(running.state_dict())
    assert next(iter(running)) == 4
    running.set_epoch(2)
    states.append(running.state_dict())
    assert plain(running) == [5, 6]
    for loaded in (running, DevicePrefetcher(Onward(), "cpu")):
        for state, expected in zip(states, ([1, 2, 3], [4, 5, 6], [5, 6]), strict=True):
            loaded.load_state_dict(state)
            assert loaded.state_dict() == state
            assert plain(loaded) == expected


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (1, False), (1, True)])
def test_resume_torchdata_between_epochs(workers: int, persistent: bool) -> None:
    """A loop that reads an epoch to its end leaves the loader where its next iterator begins the next order."""
    loaders = pytest.importorskip("torchdata.stateful_dataloader")

    def made() -> DevicePrefetcher:
        torch.manual_seed(0)  # the sampler draws a seed when it is created
        more = {"num_workers": workers, "persistent_workers": persistent}
        return DevicePrefetcher(loaders.StatefulDataLoader(torch.arange(N), 2, shuffle=True, **more), "cpu")

    running = made()
    plain(running)
    state, random_state = running.state_dict(), torch.get_rng_state()
    expected = [plain(running), plain(running)], torch.rand(2).tolist()
    later = made()
    later.load_state_dict(state)
    torch.set_rng_state(random_state)
    assert ([plain(later), plain(later)], torch.rand(2).tolist()) == expected


def test_a_sized_loader_that_begins_an_epoch_where_it_is() -> None:
    class Sized(Onward):
        def __len__(self) -> int:
            return 3

    running = DevicePrefetcher(Sized(), "cpu")
    next(iter(running))
    batches = iter(running)
    assert plain([next(batches), next(batches)]) == [2, 3]
    later = DevicePrefetcher(Sized(), "cpu")
    later.load_state_dict(running.state_dict())
    assert plain(later) == []
    assert plain(later) == [4, 5, 6]


@pytest.mark.parametrize("kind", KINDS)
def test_an_epoch_that_is_over_yields_nothing_more(kind) -> None:
    running = prefetcher(kind)
    batches = iter(running)
    for _ in range(len(plain(prefetcher(kind)))):
        next(batches)
    later = prefetcher(kind)
    later.load_state_dict(running.state_dict())
    assert (later.epoch, plain(later), later.epoch) == (0, [], 1)


def _uneven(state: Any) -> tuple[Any, list[Any]]:
    """One batch fewer on rank 0 than on rank 1, of which the state is taken after two batches, when rank 0 is done."""
    running = DevicePrefetcher(_OfRank(), "cpu")
    if state is not None:
        running.load_state_dict(state)
        return None, plain(running)
    batches = iter(running)
    seen = plain(batch for _, batch in zip(range(2), batches, strict=False))
    return running.state_dict(), seen


class _OfRank(Onward):
    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield batch
            if self.place % 3 == 1 and dist.get_global_rank() == 0:
                return


def test_epochs_of_separate_data_end_earlier_on_some_ranks(two_ranks) -> None:
    (state, seen), (other_state, other_seen) = two_ranks.run(_uneven, None)
    assert state == other_state
    assert (seen, other_seen) == ([1], [1, 2])
    (_, rest), (_, other_rest) = two_ranks.run(_uneven, state)
    assert (rest, other_rest) == ([2, 3], [3])  # the next epoch of rank 0
    with pytest.raises(ValueError, match="saved by 2 ranks"):
        DevicePrefetcher(Onward(), "cpu").load_state_dict(state)


def flat(batches: list[list[int]]) -> list[int]:
    return sorted(itertools.chain.from_iterable(batches))


def _parts(kind: str, state: Any) -> tuple[list[Any], Any]:
    running = prefetcher(kind)
    if state is not None:
        running.load_state_dict(state)
        return plain(running), None
    iterator = iter(running)
    return plain(next(iterator) for _ in range(2)), running.state_dict()


@pytest.mark.parametrize("kind", ["shuffled", "loader with a place"])
def test_ranks_shard_the_samples(kind, two_ranks) -> None:
    (one, state), (other, same) = two_ranks.run(_parts, kind, None)
    assert state == same
    (rest, _), (other_rest, _) = two_ranks.run(_parts, kind, state)
    if kind == "shuffled":
        assert flat(one + other + rest + other_rest) == list(range(N))
        # One rank resumes from two, and two resume from one at half of its batches.
        (alone, _) = _parts(kind, state)
        assert flat(alone) == flat(rest + other_rest)
        for done in range(1, 6):
            single = prefetcher(kind)
            seen = plain(batch for _, batch in zip(range(done), single, strict=False))
            (first, _), (second, _) = two_ranks.run(_parts, kind, single.state_dict())
            assert flat(seen + first + second)[:N] == list(range(N)), done
    else:
        assert one + rest == other + other_rest == plain(Loader())


@pytest.mark.gpu
def test_batches_are_complete_for_any_number_of_prefetched_batches() -> None:
    data = [torch.full((512, 1024), float(i)).pin_memory() for i in range(20)]
    for ahead in (0, 1, 3):
        sums = []
        for batch in DevicePrefetcher(data, ahead=ahead):
            assert batch.is_cuda
            sums.append((batch * 1.0).sum())
        assert [total.item() for total in sums] == [512 * 1024.0 * i for i in range(20)]


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_prefetched_copies_have_no_race(ahead: int) -> None:
    device_transfer._side_stream.cache_clear()
    with FakeCuda() as device:
        batches = DevicePrefetcher(shuffled(), device="cuda", ahead=ahead, transform=lambda batch: [batch[0] * 2.0])
        total = sum(batch[0].sum() for batch in batches)
        assert total.item() == 2 * sum(range(N))
        assert [stream.name for stream in device.streams] == ["default", "side 1"]
