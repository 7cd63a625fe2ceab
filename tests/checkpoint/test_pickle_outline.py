"""Pickles are parsed into an outline, and no object is created."""

from __future__ import annotations

import collections
import contextlib
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from composer.checkpoint.pickle_nodes import Call, Named, nodes_of
from composer.checkpoint.pickle_outline import CodeError, outline

leaves = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text() | st.binary()
keys = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.text(), st.integers())
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner, inner) | st.dictionaries(keys, inner) | st.sets(st.integers())
    ),
    max_leaves=20,
)


@given(values, st.sampled_from([4, 5]))
def test_plain_values_round_trip(value, protocol) -> None:
    described = outline(b"before" + pickle.dumps(value, protocol=protocol), 6)
    assert described.root == value
    assert described.names == set()
    assert described.end == 6 + len(pickle.dumps(value, protocol=protocol))


@given(st.lists(st.integers() | st.text()))
def test_torch_pickle_protocol(value) -> None:
    assert outline(pickle.dumps(value, protocol=2)).root == value


def test_calls_are_not_made() -> None:
    made = outline(pickle.dumps(collections.OrderedDict(a=1), protocol=2))
    root: Call = made.root
    assert (root.name, root.args, root.items) == ("collections.OrderedDict", (), ["a", 1])
    assert made.names == {"collections.OrderedDict"}


def test_python_2_names() -> None:
    assert outline(b"\x80\x02c__builtin__\neval\n.").root.name == "builtins.eval"
    assert outline(b"\x80\x02cUserString\nOrderedDict\n.").root.name == "collections.OrderedDict"


@pytest.mark.parametrize(
    "code", [b"(ios\nsystem\n.", b"(N\x6f.", b"\x82\x01.", b"\x83\x01\x00.", b"\x84\x01\x00\x00\x00.", b"P1\n."]
)
def test_object_creating_opcodes(code) -> None:
    with pytest.raises(CodeError, match="which torch does not write"):
        outline(b"\x80\x02" + code)


def test_depth() -> None:
    assert outline(b"\x80\x02" + b"]" * 100 + b"a" * 99 + b".").root
    with pytest.raises(ValueError, match="nested more than 128 deep"):
        outline(b"\x80\x02" + b"]" * 200 + b"a" * 199 + b".")
    # Deep only by what was seen in another place before.
    shallow: Any = []
    for _ in range(100):
        shallow = [shallow]
    with pytest.raises(ValueError, match="nested more than 128 deep"):
        nodes_of([shallow, [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[shallow]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]])


def test_self_references() -> None:
    held: list[Any] = [1]
    held.append([held])
    for value in (held, {"a": held}, (held,), Call(Named("x"), (held,))):
        with pytest.raises(ValueError, match="contains itself"):
            nodes_of(value)


def test_shared_references() -> None:
    shared = [1, 2]
    assert nodes_of([shared, shared, shared]).count(shared) == 1
    value: Any = [1]
    for _ in range(40):
        value = [value, value]
    with pytest.raises(ValueError, match="refers too often"):
        nodes_of(value)


@given(st.binary(max_size=60))
def test_arbitrary_bytes(content) -> None:
    with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError):  # the reader names the file
        outline(b"\x80\x02" + content)
