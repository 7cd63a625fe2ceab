"""Test copies of the containers of a batch."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections import OrderedDict, UserDict, UserList, defaultdict, deque
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.data import TensorDataset

from composer._containers import copy_containers


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Data:
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    x: Any
    y: Any


class Plain:
    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


class Slots:
    __slots__ = "x", "y"

    def __init__(self, x: Any, y: Any) -> None:
        self.x, self.y = x, y


class Named(dict[str, Any]):
    pass


def _items(tree: Any) -> Any:
    return tree if hasattr(tree, "__getitem__") else {name: getattr(tree, name) for name in ("x", "y")}


_KINDS = {
    "dict": lambda x, y: {"x": x, "y": y},
    "OrderedDict": lambda x, y: OrderedDict(x=x, y=y),
    "subclass": lambda x, y: Named(x=x, y=y),
    "UserDict": lambda x, y: UserDict(x=x, y=y),
    "defaultdict": lambda x, y: defaultdict(list, x=x, y=y),
    "list": lambda x, y: [x, y],
    "tuple": lambda x, y: (x, y),
    "deque": lambda x, y: deque([x, y], maxlen=2),
    "UserList": lambda x, y: UserList([x, y]),
    "namedtuple": Pair,
    "dataclass": Data,
    "frozen": Frozen,
    "plain": Plain,
    "slots": Slots,
    "namespace": lambda x, y: SimpleNamespace(x=x, y=y),
}


@pytest.mark.parametrize("outer", _KINDS)
@pytest.mark.parametrize("inner", _KINDS)
def test_edits_at_any_depth_do_not_affect_the_copy(outer: str, inner: str) -> None:
    x, y = torch.ones(2), torch.zeros(1)
    nested = _KINDS[inner]([x], y)
    batch = _KINDS[outer](y, nested)
    kept, cloned = copy_containers(batch), copy_containers(batch, with_tensors=True)
    place: Any = "x" if hasattr(_items(nested), "keys") else 0
    _items(nested)[place][0] = None
    y.add_(7)
    for found, is_clone in ((kept, False), (cloned, True)):
        first, second = (_items(found)[key] for key in (("x", "y") if hasattr(_items(found), "keys") else (0, 1)))
        assert type(found) is type(batch)
        assert type(second) is type(nested)
        assert first.item() == (0 if is_clone else 7)
        assert torch.equal(_items(second)[place][0], torch.ones(2))
        assert (_items(second)[place][0] is x) is not is_clone
    if outer == "defaultdict":
        assert kept.default_factory is list


def test_what_is_found_twice_is_copied_once() -> None:
    x = torch.ones(2)
    batch: dict[str, Any] = {"a": x, "b": [x]}
    batch["c"] = batch["b"]
    copied = copy_containers(batch, with_tensors=True)
    assert copied["a"] is copied["b"][0] is not x
    assert copied["c"] is copied["b"] is not batch["b"]


def test_containers_that_contain_themselves() -> None:
    node: Any = SimpleNamespace(x=torch.ones(1), children=[SimpleNamespace(x=torch.ones(1))])
    node.children[0].parent = node
    loop: list[Any] = [{"node": node}]
    loop.append(loop)
    copied = copy_containers(loop)
    assert copied[1] is copied
    assert copied[0]["node"] is not node
    assert copied[0]["node"].children[0].parent is copied[0]["node"]
    mapping: Any = OrderedDict()
    mapping["self"] = mapping
    assert copy_containers(mapping) is not mapping


def test_tensors_keep_what_they_are() -> None:
    x: Any = torch.ones(1, 3, 2, 2).to(memory_format=torch.channels_last).requires_grad_()
    x.mark = "dynamic"
    copied: Any = copy_containers(x, with_tensors=True)
    assert copied.is_leaf
    assert copied.requires_grad
    assert copied.is_contiguous(memory_format=torch.channels_last)
    assert copied.mark == "dynamic"
    (3 * copied).sum().backward()
    assert float(copied.grad.sum()) == 36
    assert x.grad is None
    augmented = copy_containers(x * 2, with_tensors=True)  # its gradient reaches what made the batch
    assert torch.equal(torch.autograd.grad(augmented.sum(), x)[0], torch.full_like(x, 2))
    packed = pack_sequence([torch.ones(2), torch.ones(1)])
    other = copy_containers(packed, with_tensors=True)
    assert type(other) is PackedSequence
    other.data.zero_()
    assert torch.equal(packed.data, torch.ones(3))


def test_arrays_and_sets() -> None:
    batch: dict[str, Any] = {"a": np.ones(2), "s": {1}}
    kept, cloned = copy_containers(batch), copy_containers(batch, with_tensors=True)
    batch["a"] *= 2
    batch["s"].add(2)
    assert kept["a"] is batch["a"]
    assert cloned["a"].tolist() == [1, 1]
    assert kept["s"] == cloned["s"] == {1}


def test_objects_that_are_no_part_of_the_batch_are_kept() -> None:
    dataset, module, lock = TensorDataset(torch.ones(2)), torch.nn.Linear(1, 1), threading.Lock()
    info = SimpleNamespace(words=["a"])  # without tensors: such as an image or a tokenizer
    batch = {"rest": [dataset, module, lock, info, torch.nn.Linear, time, "text", None, 1.5, len], "x": torch.ones(1)}
    for with_tensors in (False, True):
        copied = copy_containers(batch, with_tensors=with_tensors)
        assert all(new is old for new, old in zip(copied["rest"], batch["rest"], strict=True))
    assert copy_containers(info) is not info  # the batch itself


def test_objects_that_cannot_be_copied() -> None:
    class Refuses:
        def __init__(self) -> None:
            self.x = torch.ones(1)

        def __copy__(self) -> Any:
            raise TypeError("no")

    refuses = Refuses()
    assert copy_containers([refuses])[0] is refuses
    proxy = MappingProxyType({"x": [1]})
    copied = copy_containers({"proxy": proxy})["proxy"]
    assert copied == {"x": [1]}
    assert copied["x"] is not proxy["x"]
