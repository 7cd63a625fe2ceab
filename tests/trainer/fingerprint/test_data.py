"""The fingerprint of the data tells changed attributes, and calls no code of the program."""

from __future__ import annotations

import functools
import random
import threading
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, TensorDataset, WeightedRandomSampler, random_split

from composer import DataSpec
from composer.trainer.fingerprint.data import fingerprint_of_data


def of(dataset: Any, **arguments: Any) -> dict[str, list[str]]:
    return fingerprint_of_data(DataSpec(DataLoader(dataset, **arguments)))


def changed(one: dict[str, list[str]], other: dict[str, list[str]]) -> list[str]:
    assert one.keys() == other.keys()
    return [path for path in one if one[path] != other[path]]


def split(seed: int, length: int = 8) -> Any:
    data = TensorDataset(torch.arange(60.0).reshape(10, 6), torch.arange(10))
    return random_split(data, [length, 10 - length], torch.Generator().manual_seed(seed))[0]


def test_indices_weights_and_settings() -> None:
    assert changed(of(split(1)), of(split(1))) == []
    assert changed(of(split(1)), of(split(2))) == ["dataset.indices"]
    assert changed(of(split(1)), of(split(1, 7))) == ["num_samples", "dataset.indices"]
    assert changed(of(split(1), batch_size=2), of(split(1), batch_size=4)) == ["batch_sampler.batch_size", "batch_size"]
    samplers = [WeightedRandomSampler(weights, 8) for weights in ([1.0] * 8, [0.5] * 8)]
    assert changed(*(of(split(1), sampler=each) for each in samplers)) == ["sampler.weights"]
    assert "dataloader" in changed(*(fingerprint_of_data(DataSpec(each)) for each in ([1], [2])))


class Held(Dataset[Any]):
    """Has about everything, and complains if any of its code is called."""

    __slots__ = ("slot",)
    looked_up = 0

    def __init__(self, value: Any = 1, root: str = "/data/train") -> None:
        self.value, self.slot = value, value
        self.root, self.files = root, [f"{root}/{index}.png" for index in range(40)]
        self._private = value
        self.row_cache, self._lock, self.file = {1: value}, threading.Lock(), None
        self.generator, self.random, self.numpy = torch.Generator(), random.Random(), np.random.default_rng()
        self.me = self
        self.transform = nn.Sequential(nn.Linear(2, 2)).requires_grad_(False)
        for parameter in self.transform.parameters():
            parameter.fill_(0)

    def __getattr__(self, name: str) -> Any:
        Held.looked_up += 1
        raise AttributeError(name)

    @property
    def expensive(self) -> int:
        raise AssertionError

    def __getitem__(self, index: int) -> Any:
        raise AssertionError

    def __len__(self) -> int:
        return 9

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    __hash__ = None  # type: ignore[assignment]


def test_no_code_is_called() -> None:
    spec, before = DataSpec([Held()]), Held.looked_up
    found = fingerprint_of_data(spec)
    assert Held.looked_up == before
    assert found["dataloader.0.value"] == ["number", "1"]
    assert {"dataloader.0.slot", "dataloader.0._private", "dataloader.0.transform.0.weight"} <= found.keys()
    names = {path.rpartition(".")[2] for path in found}
    assert not {"row_cache", "_lock", "generator", "random", "numpy", "root", "expensive"} & names
    assert len(found) < 25


def test_what_is_no_difference() -> None:
    """A folder that was moved, caches, and random generators."""
    one, other = of(Held(root="/data/train")), of(Held(root=str(Path("here", "train"))))
    assert changed(one, other) == []
    assert changed(of(Held(1)), of(Held(2))) == ["dataset.slot", "dataset.value", "dataset._private"]


def test_nothing_is_drawn() -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]
    of(split(1), shuffle=True)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[union-attr]


def test_functions_and_what_they_hold() -> None:
    def collate(vocabulary: Any) -> Any:
        return lambda rows: [vocabulary[row] for row in rows]

    paths = changed(*(of([1], collate_fn=collate(dict.fromkeys(words))) for words in ("abc", "acb")))
    assert paths == ["collate_fn.vocabulary"]
    partials = [of([1], collate_fn=functools.partial(print, end)) for end in ("a", "b")]
    assert changed(*partials) == ["collate_fn.args"]


def test_wrapped_data_and_shared_parts() -> None:
    parts = ConcatDataset([split(1), split(1)])
    found = of(parts, shuffle=True)
    assert {"dataset.datasets.0.indices", "dataset.datasets.1.indices"} <= found.keys()
    assert "sampler.data_source.datasets" not in found


def test_hugging_face_data() -> None:
    made = [datasets.Dataset.from_dict({"x": list(range(30))}) for _ in range(2)]
    splits = [one.train_test_split(0.2, seed=seed)["train"] for one, seed in zip(made, (1, 1), strict=True)]
    assert changed(*map(of, splits)) == []
    splits[1] = made[1].train_test_split(0.2, seed=2)["train"]
    assert changed(*map(of, splits)) == ["dataset._indices.table"]


def test_no_data() -> None:
    assert fingerprint_of_data(None) == {}


def test_size_is_limited() -> None:
    deep: Any = [1]
    for _ in range(50):
        deep = [deep, {"a": deep, "b": [object()] * 10}]
    assert len(fingerprint_of_data(DataSpec(deep))) <= 256
