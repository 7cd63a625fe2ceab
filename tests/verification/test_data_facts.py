"""What is found out about the data: repeats of a sampler by mistake and on purpose, and data that a fetch changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Sampler

from composer.verification import Finding, _data_facts
from composer.verification._data_facts import names
from composer.verification._judges import _judge_data
from tests.verification.faults_data import FirstTwice, InPlace
from tests.verification.parts import BATCH, ROWS, Rows, build, loader


class Balanced(Sampler[int]):
    """Draws as many samples as there are, with replacement."""

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randint(ROWS, (ROWS,)).tolist())

    def __len__(self) -> int:
        return ROWS


class Groups(Sampler[list[int]]):
    """Batches of samples that are drawn for each batch anew."""

    def __iter__(self) -> Iterator[list[int]]:
        return (torch.randperm(ROWS)[:BATCH].tolist() for _ in range(len(self)))

    def __len__(self) -> int:
        return ROWS // BATCH


class ShuffledFirstTwice(Sampler[int]):
    """Yields the first index of a random order twice, in place of the last."""

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(ROWS).tolist()
        return iter([order[0], *order[:-1]])

    def __len__(self) -> int:
        return ROWS


class Filled(Rows):
    """Computes a sample at its first fetch, and counts fetches."""

    def __init__(self) -> None:
        super().__init__()
        self.cache, self.seen = torch.zeros(ROWS, len(super().__getitem__(0)[0])), np.zeros(ROWS, int)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        if not self.seen[index]:
            self.cache[index] = x.sin()
        self.seen[index] += 1
        return self.cache[index].clone(), y


def judged(data: Any) -> Finding:
    state = build(data=data).state
    facts = _data_facts.after(state, _data_facts.before(state))
    return _judge_data(facts, {"data_names": names(state.train_phase.loader), "in_place": []})


@pytest.mark.parametrize(
    ("arguments", "name"), [({"sampler": Balanced()}, "Balanced"), ({"batch_sampler": Groups()}, "Groups")]
)
def test_samplers_that_draw_with_repeats_are_expected(arguments: dict[str, Any], name: str) -> None:
    found = judged(loader(Rows(), **arguments))
    assert (found.status, found.cause, found.name) == ("expected", "drawn_with_repeats", name)
    assert name in found.explanation


@pytest.mark.parametrize(
    "arguments",
    [{"sampler": FirstTwice()}, {"sampler": ShuffledFirstTwice()}],
    ids=["the first twice", "the first of a random order twice"],
)
def test_samplers_that_repeat_by_mistake_fail(arguments: dict[str, Any]) -> None:
    found = judged(loader(**arguments))
    assert (found.status, found.cause) == ("failed", "repeated_samples")
    assert found.remedy.startswith(f"Yield every index once in an epoch from __iter__ of {found.name}")


def test_a_cache_and_a_count_of_fetches_change_no_sample() -> None:
    assert judged(loader(Filled())).status == "passed"


def test_samples_that_are_changed_in_place_fail() -> None:
    assert judged(loader(InPlace())).cause == "dataset_modified"
