"""TensorLoader: sharding, shuffling and resuming."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.datasets.tensor_loader import TensorLoader
from composer.warnings import ComposerWarning
from tests.common import FEATURES, weights
from tests.trainer.multi_rank import run_of

N = 22


def loader_of(n: int = N, batch_size: int = 4, **more: Any) -> TensorLoader:
    return TensorLoader((torch.arange(n),), batch_size, device="cpu", **more)


def flat(batches: Iterable[list[int]]) -> list[int]:
    return sorted(itertools.chain.from_iterable(batches))


def numbers(loader: TensorLoader) -> list[list[int]]:
    return [batch[0].tolist() for batch in loader]


@given(st.integers(1, 40), st.integers(1, 7), st.booleans(), st.booleans(), st.integers(1, 4))
def test_ranks_together_load_each_sample_once(n, batch_size, shuffle, drop_last, size) -> None:
    whole = numbers(loader_of(n, batch_size * size, shuffle=shuffle, drop_last=drop_last))
    loaders = [
        loader_of(n, batch_size, shuffle=shuffle, drop_last=drop_last, num_replicas=size, rank=rank)
        for rank in range(size)
    ]
    parts = [numbers(loader) for loader in loaders]
    # A distributed step has the samples of a single-rank step with the global batch size.
    steps = [flat(part[step] for part in parts if step < len(part)) for step in range(len(parts[0]))]
    assert steps == [sorted(step) for step in whole]
    assert len(whole) == len(loaders[0])
    if not drop_last:
        assert flat(whole) == list(range(n))


def test_each_epoch_is_shuffled_differently() -> None:
    loader = loader_of()
    first, second = numbers(loader), numbers(loader)
    assert first != second
    assert flat(first) == flat(second) == list(range(N))
    again = loader_of()
    assert [numbers(again), numbers(again)] == [first, second]
    assert numbers(loader_of(seed=1)) != first
    assert numbers(loader_of(shuffle=False)) == [list(range(i, min(i + 4, N))) for i in range(0, N, 4)]


@given(st.integers(0, 5), st.integers(0, 2), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4]))
def test_resume_anywhere_with_any_world_size(done, epoch, before, after) -> None:
    loader = loader_of(num_replicas=before, rank=0)
    for _ in range(epoch):
        numbers(loader)
    iterator = iter(loader)
    for _ in range(min(done, len(loader))):
        next(iterator, None)
    state = loader.state_dict()
    order = list(itertools.chain.from_iterable(numbers_of_epoch(epoch)))
    rest: list[list[int]] = []
    for rank in range(after):
        later = loader_of(num_replicas=after, rank=rank)
        later.load_state_dict(state)
        rest += numbers(later)
    # Where a pass is over, the next one is meant.
    expected = order[state["place"] :]
    assert flat(rest) == sorted(expected)


def numbers_of_epoch(epoch: int) -> list[list[int]]:
    loader = loader_of()
    loader.set_epoch(epoch)
    return numbers(loader)


def test_an_epoch_that_was_left_early_is_over() -> None:
    loader = loader_of()
    next(iter(loader))
    assert numbers(loader) == numbers_of_epoch(1)
    assert loader.epoch == 2


def test_batches_are_copies_in_the_structure_of_the_data() -> None:
    data = torch.zeros(4, 2)
    for shuffle in (True, False):
        loader = TensorLoader({"x": data, "y": torch.arange(4)}, 2, shuffle, device="cpu")
        for batch in loader:
            assert set(batch) == {"x", "y"}
            batch["x"] += 1
    assert data.eq(0).all()
    doubled = TensorLoader([torch.ones(4)], 2, device="cpu", transform=lambda batch: batch[0] * 2)
    assert [batch.tolist() for batch in doubled] == [[2, 2], [2, 2]]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"tensors": torch.ones(2)}, TypeError, r"use \(tensor,\)"),
        ({"tensors": ([1, 2],)}, TypeError, "got an entry of type list"),
        ({"tensors": (torch.ones(2), torch.ones(3))}, ValueError, "the same nonzero length"),
        ({"tensors": ()}, ValueError, "the same nonzero length"),
        ({"tensors": (torch.ones(0),)}, ValueError, "the same nonzero length"),
        ({"batch_size": 0}, ValueError, "batch_size must be greater than 0"),
        ({"num_replicas": 2, "rank": 2}, ValueError, "rank must be from 0 to 1"),
    ],
)
def test_wrong_arguments_are_refused(arguments, error, message) -> None:
    with pytest.raises(error, match=message):
        TensorLoader(**{"tensors": (torch.ones(2),), "batch_size": 1, "device": "cpu", **arguments})


def test_the_state_of_other_data_is_refused() -> None:
    with pytest.raises(ValueError, match="with 22 samples, but this loader has 23"):
        loader_of(23).load_state_dict(loader_of(22).state_dict())


@pytest.mark.gpu
def test_the_order_is_sampled_on_the_accelerator() -> None:
    loader = TensorLoader((torch.arange(N),), 4)
    batches = [batch[0] for batch in loader]
    assert {batch.device.type for batch in batches} == {loader.device.type} != {"cpu"}
    assert sorted(torch.cat(batches).tolist()) == list(range(N))


# ---------------------------------------------------------------------------------------------------- the trainer


def tensors(batch_size: int) -> TensorLoader:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(N, FEATURES, generator=generator, dtype=torch.float64)
    return TensorLoader([x, x.sum(1, keepdim=True), torch.arange(N)], batch_size, device="cpu", transform=list)


def _train(batch_size: int, folder: str, stop: str | None, load: str | None) -> tuple[Any, list[list[int]]]:
    more: dict[str, Any] = {} if load is None else {"load_path": load}
    if stop is not None:
        more |= {"save_folder": folder, "save_interval": "1ba", "save_filename": "at{batch}.pt"}
    trainer, watch = run_of("double", tensors(batch_size), max_duration=stop or "2ep", **more)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The random state was saved with", ComposerWarning)
        trainer.fit()
    found = weights(trainer), watch.numbers
    trainer.close()
    return found


def test_WorldResize_of_tensors(two_ranks, tmp_path) -> None:
    expected, straight = _train(8, str(tmp_path), None, None)
    halves = two_ranks.run(_train, 4, str(tmp_path), "2ba", None)
    pairs = zip(*[numbers for _, numbers in halves], strict=True)
    assert [sorted(one + other) for one, other in pairs] == [sorted(step) for step in straight[:2]]
    # One rank resumes from two, with the global batches of two ranks.
    found, rest = _train(8, str(tmp_path), None, str(tmp_path / "at2.pt"))
    assert [sorted(step) for step in rest] == [sorted(step) for step in straight[2:]]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
    # Two ranks resume from one.
    _train(8, str(tmp_path / "one"), "2ba", None)
    both = two_ranks.run(_train, 4, str(tmp_path), None, str(tmp_path / "one" / "at2.pt"))
    for vector, _ in both:
        torch.testing.assert_close(vector, expected, rtol=1e-9, atol=1e-9)
