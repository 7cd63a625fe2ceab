"""The instructions of a tensor, parsed in one step, give what they give one by one."""

from __future__ import annotations

import functools
import io
import random
import zipfile
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.checkpoint import pickle_outline
from composer.checkpoint.pickle_nodes import Call, Named, Persistent
from composer.checkpoint.pickle_outline import outline
from composer.checkpoint.pickle_tensors import push_tensor


def index_of(content: Any) -> bytes:
    """Return the pickle in the file that torch.save writes."""
    torch.save(content, file := io.BytesIO())
    with zipfile.ZipFile(file) as parts:
        return parts.read(next(name for name in parts.namelist() if name.endswith("/data.pkl")))


def described(node: Any, seen: dict[int, int]) -> Any:
    """Return a comparable form of an outline, in which objects that are shared have the same number."""
    if type(node) in (str, int, float, bool, bytes, type(None)):
        return type(node).__name__, node
    if type(node) is tuple and {int}.issuperset(map(type, node)):
        return "numbers", node  # shapes may be shared or not
    if id(node) in seen:
        return "again", seen[id(node)]
    seen[id(node)] = len(seen)
    if type(node) is Named:
        return "named", node.name
    if type(node) is Persistent:
        return "persistent", described(node.key, seen)
    if type(node) is Call:
        parts = (node.function, node.args, node.items, node.states)
        return "call", [described(part, seen) for part in parts]
    if type(node) is dict:
        return "dict", [(described(key, seen), described(value, seen)) for key, value in node.items()]
    return type(node).__name__, [described(one, seen) for one in node]


def result_of(data: bytes) -> Any:
    try:
        found = outline(data)
    except Exception as error:
        return type(error), str(error)
    return described(found.root, {}), found.end, found.names


def both_results(data: bytes) -> tuple[Any, Any]:
    with mock.patch.object(pickle_outline, "push_tensor", lambda *_: -1):
        one_by_one = result_of(data)
    return result_of(data), one_by_one


@st.composite
def contents(draw: st.DrawFn) -> dict[str, Any]:
    shapes = draw(st.lists(st.lists(st.sampled_from([0, 1, 2, 300, 70_000]), max_size=5), min_size=1, max_size=12))
    tensors = []
    for shape in shapes:
        count = torch.Size(shape).numel()
        base = torch.empty(min(count, 1000), dtype=draw(st.sampled_from([torch.float32, torch.int64, torch.bool])))
        # Expanded, so that large shapes need no memory.
        tensor = base[:1].reshape([1] * len(shape)).expand(shape) if count else torch.empty(shape)
        is_trained = draw(st.booleans()) and tensor.is_floating_point()
        tensors.append(tensor.requires_grad_(is_trained) if is_trained else tensor)
    tensors += draw(st.lists(st.sampled_from(tensors), max_size=3))  # tied
    return {f"layers.{number}.weight": tensor for number, tensor in enumerate(tensors)}


@given(contents())
def test_tensors_are_parsed_as_one_by_one(content) -> None:
    found, one_by_one = both_results(index_of(content))
    assert found == one_by_one


@functools.cache
def large_index() -> bytes:
    """Return an index with more than 256 memo entries, so that both widths of GET and PUT occur."""
    layers = {f"{number}.weight": torch.ones(number % 4 + 1, 2) for number in range(30)}
    steps = {number: {"step": torch.tensor(1.0), "exp_avg": torch.ones(2)} for number in range(10)}
    return index_of({"state": {"model": layers, "optimizers": steps, "rng": list(range(-300, 70_000, 1009))}})


def steps_of(data: bytes) -> list[bool]:
    """Return of each mark after a mark whether it began a tensor that was parsed in one step."""
    done: list[bool] = []

    def push(*args: Any) -> int:
        done.append((after := push_tensor(*args)) > 0)
        return after

    with mock.patch.object(pickle_outline, "push_tensor", push):
        outline(data)
    return done


def test_nearly_all_tensors_are_parsed_in_one_step() -> None:
    assert steps_of(large_index()) == [False] + [True] * 49  # the first one names its class and functions
    assert steps_of(a_tensor()) == [True]


@pytest.mark.parametrize("seed", range(20))
def test_damaged_indexes_are_parsed_as_one_by_one(seed) -> None:
    generator, data = random.Random(seed), large_index()
    for _ in range(150):
        damaged = bytearray(data)
        for _ in range(generator.choice([1, 1, 1, 2, 5])):
            where = generator.randrange(len(damaged))
            kind = generator.random()
            if kind < 0.4:
                damaged[where] ^= 1 << generator.randrange(8)
            elif kind < 0.7:  # an opcode, or a memo index, of another place
                damaged[where] = damaged[generator.randrange(len(damaged))]
            elif kind < 0.85:
                del damaged[where : where + generator.choice([1, 2, 5])]
            else:
                damaged = damaged[: where + 1]
        found, one_by_one = both_results(bytes(damaged))
        assert found == one_by_one


def a_tensor(**changes: bytes) -> bytes:
    """Return a pickle with one tensor in short form, whose parts can be changed."""
    parts = {
        "names": b"(X\x01\0\0\0sq\x00X\x01\0\0\0cq\x01X\x03\0\0\0cpuq\x02X\x01\0\0\0oq\x03",
        "function": b"cf\nf\n",
        "storage": b"((h\x00h\x01X\x01\0\0\x007q\x04h\x02K\x04tq\x05Q",
        "offset": b"K\x00",
        "shape": b"K\x02K\x02\x86q\x06",
        "strides": b"K\x02K\x01\x86q\x07",
        "rest": b"\x89h\x03)Rq\x08tq\x09Rq\x0at.",
    }
    return b"\x80\x02" + b"".join({**parts, **changes}.values())


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shape": b"K\x02K\x02\x85q\x06"},  # leaves a number on the stack
        {"shape": b"K\x02\x86q\x06"},  # takes the offset too
        {"shape": b")", "strides": b")"},
        {"shape": b"J\xff\xff\xff\xffM\x00\x01\x86q\x06"},
        {"storage": b"((h\x00h\x01X\x02\0\0\x007q\x04h\x02K\x04tq\x05Q"},  # the key is longer than its digits
        {"storage": b"((h\x00h\x01X\x01\0\0\x007q\x02h\x02K\x04tq\x05Q"},  # puts the key where the location is
        {"storage": b"((h\x00h\x09X\x01\0\0\x007q\x04h\x02K\x04tq\x05Q"},  # refers to what comes later
        {"rest": b"\x88h\x03)Rq\x08tq\x08Rq\x08h\x08t."},
        {"function": b""},  # calls a text
        {"rest": b"\x89h\x03)Rq\x08tq\x09Rq"},
    ],
)
def test_forms_at_the_border(changes) -> None:
    found, one_by_one = both_results(a_tensor(**changes))
    assert found == one_by_one
