"""Loaders whose iterators share a position, and copies of them that do not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from composer.core.shared_data import KeptStarts, independent_copy, positioned
from composer.datasets import TensorLoader
from tests.core.test_epoch_iterator import BATCHES, Counting, Loader, Mapped, OwnLoader, Plain, Stream

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata


class OwnStateful(OwnLoader):
    """Keeps its state in ways of its own."""

    def state_dict(self) -> Any:
        return {}

    def load_state_dict(self, state: Any) -> None: ...


def test_what_has_a_position() -> None:
    stream = Stream()
    for loader in (Loader(), TensorLoader([torch.arange(3)], 1, device="cpu"), OwnStateful(range(3))):
        assert positioned(loader) is loader
    for loader in (DataLoader(stream, None), StatefulDataLoader(stream, None), OwnLoader(stream, None)):
        assert positioned(loader) is stream
    for loader in (
        Plain(),
        [1, 2],
        DataLoader(range(3)),
        DataLoader(stream, None, num_workers=1),
        DataLoader(Counting(), None),
        OwnStateful(Counting(), None),
        DataLoader(Mapped(), None),
        StatefulDataLoader(range(3)),
    ):
        assert positioned(loader) is None


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader, OwnLoader])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_copy_is_independent(kind: Any, workers: int) -> None:
    loader = kind(Stream(), None, num_workers=workers, persistent_workers=workers > 0)
    starts = KeptStarts(DataLoader(loader.dataset, None))  # without workers, so that it has a position here
    starts.keep()
    iterator = iter(loader)
    found = [next(iterator), next(iterator)]
    assert list(independent_copy(loader, starts)) == list(range(BATCHES))
    assert found + list(iterator) == list(range(BATCHES))


def test_a_copy_without_a_known_start_begins_where_the_dataset_is() -> None:
    loader = DataLoader(Stream(), None)
    loader.dataset.place = 2
    assert list(independent_copy(loader)) == list(range(2, BATCHES))
    assert loader.dataset.place == 2


def test_mapped_files_are_not_read_into_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "tokens.npy", np.arange(6))
    tokens = np.load(tmp_path / "tokens.npy", mmap_mode="r")
    stream = Stream()
    stream.tokens, stream.shards, stream.by_name = tokens, [tokens[:3]], {"rest": tokens[3:]}
    stream.mine = np.arange(3)
    copied = independent_copy(DataLoader(stream, None)).dataset
    assert copied is not stream and copied.tokens is tokens and np.shares_memory(copied.shards[0], tokens)
    assert np.shares_memory(copied.by_name["rest"], tokens)
    assert not np.shares_memory(copied.mine, stream.mine)


def test_a_stateful_loader_that_was_not_begun() -> None:
    loader = StatefulDataLoader(range(6), 2)
    next(iter(loader))
    later = StatefulDataLoader(range(6), 2)
    later.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in independent_copy(later)] == [[0, 1], [2, 3], [4, 5]]
    assert [batch.tolist() for batch in later] == [[2, 3], [4, 5]]


def test_samplers_with_a_state_are_copied() -> None:
    sampler = StatefulDistributedSampler(range(6), num_replicas=1, rank=0, shuffle=False)
    loader = StatefulDataLoader(range(6), 2, sampler=sampler)
    iterator = iter(loader)
    next(iterator)
    assert [batch.tolist() for batch in independent_copy(loader)] == [[0, 1], [2, 3], [4, 5]]
    assert loader.state_dict()["_num_yielded"] == 1
    assert [batch.tolist() for batch in iterator] == [[2, 3], [4, 5]]


def test_what_cannot_be_copied() -> None:
    locked = Stream()
    locked.lock = threading.Lock()
    for loader in (Loader(), Plain(), DataLoader(Counting(), None), OwnStateful(range(3)), DataLoader(locked, None)):
        assert independent_copy(loader) is None
