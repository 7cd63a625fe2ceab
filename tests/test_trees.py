"""Nested data."""

from __future__ import annotations

import dataclasses
from collections import ChainMap, OrderedDict, UserDict, UserList, defaultdict, deque
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_sequence

from composer.trees import batch_get, batch_set, ensure_tuple, leaves, map_collection, map_leaves, map_tensors


class Pair(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Record:
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    y: Any


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any
    y: Any = dataclasses.field(init=False, default=0)


class Triple(list):
    """A kind of list."""


ONE = torch.ones(1)

CONTAINERS = [
    (ONE, "a"),
    [ONE, "a"],
    {"x": ONE, "y": "a"},
    Pair(ONE, "a"),
    Record(ONE, "a"),
    Frozen(ONE, "a"),
    Slotted(ONE),
    OrderedDict(x=ONE, y="a"),
    UserDict(x=ONE, y="a"),
    defaultdict(list, x=ONE, y="a"),
    deque([ONE, "a"], maxlen=2),
    UserList([ONE, "a"]),
    Triple([ONE, "a"]),
]


@pytest.mark.parametrize("tree", CONTAINERS, ids=lambda tree: type(tree).__name__)
def test_map_tensors_keeps_the_type(tree):
    nested = [tree, {"deep": tree}]
    mapped = map_tensors(lambda t: t + 1, nested)
    assert type(mapped[0]) is type(tree)
    assert type(mapped[1]["deep"]) is type(tree)
    seen = [leaf.item() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves(mapped[0])]
    assert seen[0] == 2.0
    assert seen[1:] in (["a"], [0])
    assert next(leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor)).item() == 1.0


@pytest.mark.parametrize("tree", [*CONTAINERS, ONE, None, 3, "text", torch.Size([2]), range(3), {}, ()], ids=repr)
def test_unchanged_values_are_not_copied(tree):
    assert map_tensors(lambda t: t, tree) is tree
    nested = [(tree,), {"deep": tree}]
    assert map_tensors(lambda t: t, nested) is nested


def test_only_the_changed_branch_is_copied():
    tree = {"a": [torch.zeros(1)], "b": [torch.ones(1)]}
    mapped = map_tensors(lambda t: t + 1 if t.item() else t, tree)
    assert mapped["a"] is tree["a"]
    assert mapped["b"] is not tree["b"]
    assert list(mapped) == ["a", "b"]


def test_special_mappings_and_leaves():
    frozen = MappingProxyType({"x": ONE})
    assert map_tensors(lambda t: t + 1, frozen) == {"x": torch.tensor([2.0])}
    packed = pack_sequence([torch.ones(2), torch.ones(1)])
    assert map_tensors(lambda t: t + 1, packed) is packed
    assert list(leaves({"p": packed})) == [packed]
    parameter = torch.nn.Parameter(torch.zeros(1))
    assert map_tensors(lambda t: t + 1, [parameter])[0].item() == 1.0
    bounded = map_tensors(lambda t: t + 1, deque([ONE], maxlen=5))
    assert bounded.maxlen == 5


def test_map_leaves_sees_everything():
    assert map_leaves(repr, {"a": (1, None), "b": [Record, "s"]}) == {"a": ("1", "None"), "b": [repr(Record), "'s'"]}


def test_leaves_are_depth_first():
    assert list(leaves([1, {"a": Pair(2, Record(3, (4,)))}, 5])) == [1, 2, 3, 4, 5]
    assert list(leaves(7)) == [7]


def test_ensure_tuple():
    assert ensure_tuple(()) == ()
    assert ensure_tuple((1, 2)) == (1, 2)
    assert ensure_tuple(b"ab") == (b"ab",)
    assert ensure_tuple(0) == (0,)
    tensor = torch.ones(3)
    assert ensure_tuple(tensor)[0] is tensor


def test_map_collection():
    assert map_collection([1, 2], str) == ["1", "2"]
    assert map_collection(Pair(1, 2), str) == Pair("1", "2")


GETS = [
    ((1, 2), 1, 2),
    ([1, 2], -1, 2),
    ({"a": 1}, "a", 1),
    ({3: "int"}, 3, "int"),
    (Pair(1, 2), "y", 2),
    (Pair(1, 2), 0, 1),
    (Record(1, 2), "y", 2),
    (SimpleNamespace(a=1), "a", 1),
    ([1, 2, 3], slice(1, 3), [2, 3]),
    ({"a": {"b": 1}}, "a.b", 1),
    ({"a.b": 2, "a": {"b": 1}}, "a.b", 2),
    ({"a": [10, {"b": 1}]}, "a.1.b", 1),
    ((Record({"k": 5}, 0),), "0.x.k", 5),
    ({"0": {"b": 4}}, "0.b", 4),
    ((1, 2, 3), [0, 2], (1, 3)),
    ({"a": 1, "b": 2}, ("b", "a"), (2, 1)),
    ({("a", "b"): 9, "a": 1, "b": 2}, ("a", "b"), 9),
    ([5, 6], lambda batch: batch[0], 5),
    ([5, 6], (lambda batch: batch[1], None.__class__), 6),
    (UserDict(a=1), "a", 1),
]


@pytest.mark.parametrize(("batch", "key", "value"), GETS)
def test_batch_get(batch, key, value):
    assert batch_get(batch, key) == value


def test_arrays_are_indexed_by_what_they_accept():
    tensor = torch.arange(6).reshape(2, 3)
    assert batch_get(tensor, 1).tolist() == [3, 4, 5]
    assert batch_get(tensor, (0, 1)).item() == 1
    assert batch_get(tensor, [1, 0]).tolist() == [[3, 4, 5], [0, 1, 2]]
    assert batch_get(np.arange(3), [2, 0]).tolist() == [2, 0]
    assert batch_get(tensor, "shape") == (2, 3)


def test_batch_get_errors():
    with pytest.raises(KeyError, match=r"no key 'imge'\. Did you mean 'image'\? Its keys: image, label"):
        batch_get({"image": 1, "label": 2}, "imge")
    with pytest.raises(IndexError, match="tuple of 2 elements, has no index 5"):
        batch_get((1, 2), 5)
    with pytest.raises(TypeError, match=r"no element 'yy'\. Did you mean 'y'"):
        batch_get(Record(1, 2), "yy")
    with pytest.raises(KeyError, match=r"'a.c'"):
        batch_get({"a": {"b": 1}}, "a.c")
    for container in ({"a": 1}, [1], (1,)):  # methods of containers are not parts of a batch
        with pytest.raises((KeyError, TypeError)):
            batch_get(container, "copy")


def test_a_mapping_with_defaults_does_not_grow():
    batch = defaultdict(list)
    with pytest.raises(KeyError):
        batch_get(batch, "x")
    assert not batch


SETS = [
    ((1, 2), 1, (1, "v")),
    ([1, 2], -1, [1, "v"]),
    ({"a": 1}, "a", {"a": "v"}),
    (defaultdict(int, a=1), "new", defaultdict(int, a=1, new="v")),
    (Pair(1, 2), "y", Pair(1, "v")),
    (Pair(1, 2), 0, Pair("v", 2)),
    (Record(1, 2), "x", Record("v", 2)),
    (Frozen(1, 2), "x", Frozen("v", 2)),
    (SimpleNamespace(a=1), "a", SimpleNamespace(a="v")),
    ({"a": {"b": 1, "c": 2}}, "a.b", {"a": {"b": "v", "c": 2}}),
    ({"a": (1, {"b": 1})}, "a.1.b", {"a": (1, {"b": "v"})}),
    ({"a.b": 1, "a": {"b": 2}}, "a.b", {"a.b": "v", "a": {"b": 2}}),
    (OrderedDict(a=1), "a", OrderedDict(a="v")),
    (UserDict(a=1), "a", UserDict(a="v")),
    ({("a", "b"): 1}, ("a", "b"), {("a", "b"): "v"}),
]


@pytest.mark.parametrize(("batch", "key", "expected"), SETS)
def test_batch_set(batch, key, expected):
    before = repr(batch)
    result = batch_set(batch, key, "v")
    assert result == expected
    assert type(result) is type(batch)
    assert repr(batch) == before, "the given batch was edited"
    assert batch_get(result, key) == "v"


def test_batch_set_multiple():
    assert batch_set((1, 2, 3), [2, 0], ["c", "a"]) == ("a", 2, "c")
    assert batch_set({"a": 1, "b": 2}, ("a", "b"), (3, 4)) == {"a": 3, "b": 4}
    assert batch_set([1, 2, 3], slice(0, 2), [7, 8]) == [7, 8, 3]
    assert batch_set(Pair(1, 2), slice(0, 2), [7, 8]) == Pair(7, 8)


@pytest.mark.parametrize(("key", "value"), [([0, 1], [1]), ([0, 1], 5), (slice(0, 2), [1]), (slice(0, 2), 5)])
def test_batch_set_rejects_other_numbers_of_values(key, value):
    with pytest.raises(ValueError, match="value must be a list or tuple"):
        batch_set([1, 2, 3], key, value)


def test_batch_set_by_functions():
    def replace(batch, value):
        return {**batch, "x": value}

    def in_place(batch, value):
        batch["x"] = value

    assert batch_set({"x": 1}, (lambda b: b["x"], replace), 2) == {"x": 2}
    assert batch_set({"x": 1}, (lambda b: b["x"], in_place), 2) == {"x": 2}
    assert batch_set({"x": 1}, replace, 2) == {"x": 2}
    with pytest.raises(TypeError, match="can only read"):
        batch_set({"x": 1}, lambda batch: batch["x"], 2)


@pytest.mark.parametrize("number", [1, 3])
def test_functions_that_are_not_a_pair(number):
    keys = (lambda batch: batch,) * number
    with pytest.raises(ValueError, match=r"must be a pair \(get, set\), or one function"):
        batch_get([1, 2], keys)
    with pytest.raises(ValueError, match=r"must be a pair \(get, set\), or one function"):
        batch_set([1, 2], keys, 3)


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("make", [torch.tensor, np.asarray])
def test_multiple_slices_of_an_array(make, kind):
    batch = make([3, 4, 5, 6, 7, 8, 9, 10])
    key = kind([slice(1, 4), slice(5, 7)])
    assert [part.tolist() for part in batch_get(batch, key)] == [[4, 5, 6], [8, 9]]
    edited = batch_set(batch, key, [make([0, 1, 2]), make([3, 4])])
    assert edited.tolist() == [3, 0, 1, 2, 7, 3, 4, 10]
    table = make([[0, 1, 2], [3, 4, 5], [6, 7, 8]])  # which has as many dimensions as there are slices
    assert batch_get(table, kind([slice(1, 3), slice(0, 2)])).tolist() == [[3, 4], [6, 7]]
    edited = batch_set(table, kind([slice(1, 3), slice(0, 2)]), make([[9, 9], [9, 9]]))
    assert edited.tolist() == [[0, 1, 2], [9, 9, 5], [9, 9, 8]]


@pytest.mark.parametrize("values", [np.asarray([11, 13]), torch.tensor([11, 13]), (11, 13)])
def test_values_in_an_array(values):
    assert [int(value) for value in batch_set([1, 2, 3], [0, 2], values)] == [11, 2, 13]
    with pytest.raises(ValueError, match="one value for each of the 3 keys, but got 2 values"):
        batch_set([1, 2, 3], [0, 1, 2], values)


@pytest.mark.parametrize(
    "batch, key",
    [
        ({"image": 1}, "imge"),
        ({"image": 1}, "no.path"),
        ({"image": {"x": 1}}, "image.y"),
        (OrderedDict(a=1), 0),
        (UserDict(a=1), "b"),
        (ChainMap({"a": 1}, {"b": 2}), "c"),
    ],
)
def test_batch_set_rejects_a_new_key(batch, key):
    before = repr(batch)
    with pytest.raises(KeyError, match="has no key"):
        batch_set(batch, key, 2)
    assert repr(batch) == before
    assert batch_set(batch, lambda batch, value: {**batch, "new": value}, 2)["new"] == 2


def test_batch_set_errors():
    with pytest.raises(IndexError, match="no index 3"):
        batch_set((1, 2), 3, 0)
    for batch, key in ((Record(1, 2), "z"), ((1, 2), "z"), (5, 0), (object(), "a"), ([1, 2], 1.5), (range(3), 0)):
        with pytest.raises(RuntimeError, match="Cannot set"):
            batch_set(batch, key, 0)

    class Locked:
        @property
        def part(self):
            return 1

    with pytest.raises(RuntimeError, match="Cannot set 'part'"):
        batch_set(Locked(), "part", 0)


def test_batch_set_copies_arrays():
    tensor, array = torch.zeros(2), np.zeros(2)
    assert batch_set(tensor, 0, 5.0).tolist() == [5.0, 0.0]
    assert batch_set(array, [1], 5.0).tolist() == [0.0, 5.0]
    assert tensor.sum() == array.sum() == 0


VALUES = st.one_of(st.integers(), st.text(max_size=3), st.none())
NAMES = st.text("abc.01", min_size=1, max_size=4)


@given(
    st.data(), st.one_of(st.dictionaries(NAMES, VALUES, min_size=1), st.lists(VALUES, min_size=1).map(tuple)), VALUES
)
def test_get_after_set(data, batch, value):
    keys = list(batch) if isinstance(batch, dict) else list(range(len(batch)))
    key = data.draw(st.sampled_from(keys))
    for container in (batch, list(batch)) if isinstance(batch, tuple) else (batch, UserDict(batch)):
        edited = batch_set(container, key, value)
        assert batch_get(edited, key) == value
        assert len(edited) == len(container)
        assert all(batch_get(edited, other) == batch_get(container, other) for other in keys if other != key)


@given(st.dictionaries(NAMES, VALUES), NAMES, VALUES)
def test_a_new_key_comes_back(batch, key, value):
    edited = batch_set(defaultdict(int, batch), key, value)
    assert batch_get(edited, key) == value
    assert {k: v for k, v in edited.items() if k != key} == {k: v for k, v in batch.items() if k != key}


TREES = st.recursive(
    st.one_of(st.integers(), st.just(None), st.integers(0, 9).map(torch.tensor)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.builds(Pair, inner, inner),
        st.builds(Frozen, inner, inner),
    ),
    max_leaves=8,
)


@given(TREES)
def test_map_is_a_functor(tree):
    once = map_tensors(lambda t: t + 2, tree)
    twice = map_tensors(lambda t: t + 1, map_tensors(lambda t: t + 1, tree))
    assert repr(once) == repr(twice)
    assert map_tensors(lambda t: t, tree) is tree
