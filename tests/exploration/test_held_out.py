"""Halves of evaluation data: disjoint, complete, and the same in each run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, TensorDataset

from composer.core.evaluator import Evaluator
from composer.exploration.held_out import keep_half


class _Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from (torch.tensor(number) for number in range(10))


def half(loader: Any, split: Any) -> list[int]:
    """The samples of one half."""
    evaluator = Evaluator(label="eval", dataloader=loader)
    assert keep_half([evaluator], split) == []
    batches = list(evaluator.dataloader.dataloader)
    return [int(value) for batch in batches for value in torch.as_tensor(batch).reshape(-1)]


def loaders(number: int) -> dict[str, Any]:
    data = list(range(number))
    batches = BatchSampler(SequentialSampler(data), 3, drop_last=False)
    tensors = torch.arange(number)
    return {
        "map": DataLoader(data, 3),
        "drop_last": DataLoader(data, 1, drop_last=True),
        "batched": DataLoader(tensors, batch_size=None, sampler=batches),
        "list": [torch.tensor([value]) for value in data],
    }


@given(st.integers(2, 40), st.sampled_from(["map", "drop_last", "batched", "list"]))
def test_the_halves_are_disjoint_and_complete(number: int, name: str) -> None:
    one, two = (half(loaders(number)[name], split) for split in ("selection", "confirmation"))
    assert sorted(one + two) == list(range(number))
    assert 0 <= len(one) - len(two) <= 1
    assert one == half(loaders(number)[name], "selection")


def test_a_stream_is_split_by_batch() -> None:
    halves = [half(DataLoader(_Stream(), 2), split) for split in ("selection", "confirmation")]
    assert halves == [[0, 1, 4, 5, 8, 9], [2, 3, 6, 7]]


def test_classes_in_turn_do_not_end_in_different_halves() -> None:
    found = half(DataLoader(list(range(400)), 10), "selection")
    assert 70 < sum(value % 2 for value in found) < 130


def test_one_batch_cannot_be_split() -> None:
    evaluator = Evaluator(label="test", dataloader=[torch.ones(3)])
    assert keep_half([evaluator], "confirmation") == ["test"]
    assert len(list(evaluator.dataloader.dataloader)) == 1


@pytest.mark.parametrize("split", ["selection", "confirmation"])
def test_counts_of_the_data_are_those_of_the_half(split: Any) -> None:
    evaluator = Evaluator(label="eval", dataloader=DataLoader(TensorDataset(torch.ones(9)), 2), subset_num_batches=5)
    keep_half([evaluator], split)
    number = 5 if split == "selection" else 4
    assert evaluator.dataloader.num_samples == number
    assert evaluator.subset_num_batches == len(evaluator.dataloader.dataloader)
