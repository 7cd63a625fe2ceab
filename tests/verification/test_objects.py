"""Names of objects, and whose they are."""

from __future__ import annotations

import functools
import random

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from composer import DataSpec
from composer.verification._data_facts import ignored_labels, names, rows
from composer.verification.objects import is_of_library, is_own, name_of


def make_class() -> type:
    class Local:
        class Inner:
            pass

    return Local


class OwnData(TensorDataset):
    pass


def test_names_are_without_the_function_of_a_class() -> None:
    local = make_class()
    assert name_of(local()) == name_of(local) == "Local"
    assert name_of(local.Inner()) == "Local.Inner"
    assert name_of(make_class) == "make_class"


@pytest.mark.parametrize(
    ("part", "own"),
    [
        (make_class, True),
        (make_class()(), True),
        (OwnData.__getitem__, False),
        (OwnData(torch.ones(1)), True),
        (functools.partial(make_class), False),
        (random.Random(1), False),
        (torch.nn.Linear(1, 1), False),
        (None, False),
    ],
)
def test_whose_an_object_is(part, own) -> None:
    assert is_own(part) == own


def test_modules_that_begin_like_a_library() -> None:
    assert [is_of_library(name) for name in ("torchvision.transforms", "random", "randomly", "torch_tools.x")] == [
        True,
        True,
        False,
        False,
    ]


def test_data_of_a_library_is_named_unless_it_is_of_torch(monkeypatch) -> None:
    assert names(DataSpec(DataLoader(TensorDataset(torch.ones(2))))) == []
    assert names(DataSpec(DataLoader(OwnData(torch.ones(2))))) == ["OwnData"]
    monkeypatch.setattr(OwnData, "__module__", "torchvision.datasets.mnist")
    assert names(DataSpec(DataLoader(OwnData(torch.ones(2))))) == ["OwnData"]


def test_wrong_counts_and_splits_have_the_name_of_the_function() -> None:
    def halves(batch, microbatch_size):
        return [batch[:1], batch[:1]]

    spec = DataSpec([], split_batch=halves, get_num_samples_in_batch=lambda batch: 3)
    problems = rows(spec, torch.arange(2)[:, None])[1]
    assert [problem for _, problem in problems] == [
        "get_num_samples_in_batch returns 3 for a batch of 2",
        "split_batch with microbatch_size=1 loses, repeats or changes rows",
    ]
    assert [name.partition(" ")[0] for name, _ in problems] == ["get_num_samples_in_batch", "split_batch"]


def test_ignored_labels() -> None:
    x, y = torch.ones(2, 3), torch.tensor([[1, -1, -1], [1, 2, 0]])
    assert ignored_labels([x, y]) == {"labels": "batch[1]", "ignored": -1, "counts": [1, 3]}
    assert ignored_labels({"x": y, "y": y[:, 0] - 2})["labels"] == "batch['x']"
    assert ignored_labels({"y": y[:, 1]})["counts"] == [0, 1]
    assert ignored_labels([x, y - 3]) is None  # negative values of several sizes are data
    assert ignored_labels(x) is None
