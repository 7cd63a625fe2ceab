"""Saved values can be loaded by composer and by torch, or are rejected by name before writing."""

from __future__ import annotations

import array
import collections
import datetime
import enum
import pathlib
import types
from collections.abc import MutableMapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer import Callback, State, Trainer
from composer.callbacks import CheckpointSaver
from composer.checkpoint import file_format
from composer.checkpoint.async_writer import CheckpointWriter
from composer.checkpoint.load import read_checkpoint
from composer.checkpoint.plain_values import _KEPT, plain
from composer.checkpoint.save import collect, save_checkpoint
from composer.checkpoint.staging import DICTS, HostCopy
from tests.checkpoint.content import same
from tests.common import Regression, trainer_of


class ListLike(Sequence[Any]):
    """As a ``ListConfig`` of OmegaConf: a sequence that is no list."""

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __getitem__(self, index: Any) -> Any:
        return self.values[index]

    def __len__(self) -> int:
        return len(self.values)


class DictLike(MutableMapping[Any, Any]):
    """As a ``DictConfig``: a mapping that is no dict, and raises where a value is missing."""

    def __init__(self, **values: Any) -> None:
        self.values_ = values

    def __getitem__(self, key: Any) -> Any:
        if self.values_[key] == "???":
            raise ValueError(f"Missing mandatory value: {key}")
        return self.values_[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.values_[key] = value

    def __delitem__(self, key: Any) -> None:
        del self.values_[key]

    def __iter__(self) -> Any:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)


class Text(str):
    def __str__(self) -> str:
        return "something else"


class Integer(int):
    pass


class Floating(float):
    pass


class Items(list):
    pass


class Table(dict):
    pass


class Pair(NamedTuple):
    a: int
    b: Any


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Word(enum.StrEnum):
    HI = "hi"


class Sub(torch.Tensor):
    pass


CONVERTED: dict[str, tuple[Any, Any]] = {
    "ListConfig": (ListLike(0.9, ListLike(1)), [0.9, [1]]),
    "DictConfig": (DictLike(a=DictLike(b=1)), {"a": {"b": 1}}),
    "list": (Items([1, Items()]), [1, []]),
    "dict": (Table(a=Table()), {"a": {}}),
    "defaultdict": (collections.defaultdict(list, a=[1]), {"a": [1]}),
    "proxy": (types.MappingProxyType({"a": 1}), {"a": 1}),
    "UserDict": (collections.UserDict({"a": Floating(1)}), {"a": 1.0}),
    "UserList": (collections.UserList([1]), [1]),
    "deque": (collections.deque([1, 2], maxlen=2), [1, 2]),
    "array": (array.array("i", [1, 2]), [1, 2]),
    "range": (range(3), [0, 1, 2]),
    "named tuple": (Pair(1, Items([2])), (1, [2])),
    "frozenset": (frozenset({1}), {1}),
    "str": (Text("a"), "a"),
    "numpy str": (np.str_("a"), "a"),
    "int": (Integer(3), 3),
    "float": (Floating(0.5), 0.5),
    "numpy float": (np.float64(0.5), 0.5),
    "numpy half": (np.float16(0.5), 0.5),
    "numpy int": (np.int64(3), 3),
    "numpy bool": (np.bool_(True), True),
    "enum": (Color.RED, "red"),
    "int enum": (Level.LOW, 1),
    "str enum": (Word.HI, "hi"),
    "path": (pathlib.PurePosixPath("/data"), "/data"),
    "version": (torch.__version__, str(torch.__version__)),
    "keys": ({np.int64(1): 1, Color.RED: 2, Text("a"): 3, (Integer(1), 2): 4}, {1: 1, "red": 2, "a": 3, (1, 2): 4}),
    "tensor": (torch.ones(2).as_subclass(Sub), torch.ones(2)),
}

KEPT: dict[str, Any] = {
    "none": None,
    "bytes": b"ab",
    "bytearray": bytearray(b"ab"),
    "complex": 1 + 2j,
    "huge": -(10**400),
    "ordered": collections.OrderedDict(a=1),
    "counts": collections.Counter("aab"),
    "set": {1, 2},
    "nested": [(1, {"a": [None, True, "x"]}), float("inf")],
    "dtype": torch.bfloat16,
    "device": torch.device("cpu"),
    "size": torch.Size([1, 2]),
    "half": torch.ones(2, dtype=torch.bfloat16),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "sparse": torch.eye(2).to_sparse(),
}

REFUSED: dict[str, Any] = {
    "function": print,
    "class": int,
    "object": object(),
    "module": torch.nn.Linear(1, 1),
    "decimal": Decimal(1),
    "date": datetime.datetime(2020, 1, 1),
    "numpy date": np.datetime64("2020"),
    "text array": np.array(["a"]),
    "object array": np.array([None]),
    "complex array": np.array([1j]),
    "masked array": np.ma.masked_array([1.0], [True]),
    "long double": np.longdouble(1),
    "iterator": iter([1]),
    "view": {}.keys(),
    "meta tensor": torch.ones(1, device="meta"),
    "nested tensor": torch.nested.nested_tensor([torch.ones(1)], layout=torch.jagged),
    "slice": slice(1),
    "missing value": DictLike(a="???"),
    "enum of an object": enum.Enum("Odd", {"A": object()}).A,
    "equal keys": {1: "a", Integer(2): "b", np.int64(2): "c", Level.LOW: "d", "1": "e"} | {Color.RED: 1, "red": 2},
    "mapping key": {enum.Enum("Odd", {"A": frozenset({1})}).A: 1},
}


class Holder(Callback):
    """Saves what it is given."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


def with_value(value: Any) -> State:
    state = State(model=Regression())
    state.callbacks = [Holder(value)]
    return state


def read_by_both(path: Any) -> Any:
    ours = read_checkpoint(path)["state"]["callbacks"]["Holder"]["value"]
    theirs = torch.load(path, weights_only=True)["state"]["callbacks"]["Holder"]["value"]
    assert type(ours) is type(theirs)
    return ours


@pytest.mark.parametrize("kind", CONVERTED)
def test_values_converted_to_plain(kind, tmp_path) -> None:
    value, expected = CONVERTED[kind]
    path = save_checkpoint(with_value(value), str(tmp_path / "a.pt"))
    read = read_by_both(path)
    assert type(read) is type(expected)
    assert same(read, expected)
    assert repr(plain(value)) == repr(expected)  # also inside: 1 and True, [] and () are different


@pytest.mark.parametrize("kind", KEPT)
def test_values_kept_unchanged(kind, tmp_path) -> None:
    path = save_checkpoint(with_value(KEPT[kind]), str(tmp_path / "a.pt"))
    read = read_by_both(path)
    assert type(read) is type(KEPT[kind])
    assert repr(read) == repr(KEPT[kind])


@pytest.mark.parametrize("background", [False, True])
def test_values_kept_unchanged_in_background_writes(background, tmp_path) -> None:
    """And in either case what else becomes of values is the same."""
    weight = torch.ones(2, requires_grad=True)
    more = {
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "empty": torch.nn.Parameter(torch.ones(0)),
        "leaf": weight,
        "deep": collections.OrderedDict(a=[collections.Counter("a"), weight]),
        "result": weight * 2,
    }
    content = plain(KEPT | more | {name: value for name, (value, _) in CONVERTED.items() if name != "keys"})
    writer = CheckpointWriter(background=background)
    writer.write({"state": content}, tmp_path / "a.pt")
    writer.close()
    read = torch.load(tmp_path / "a.pt", weights_only=True)["state"]
    content["result"] = (weight * 2).detach().requires_grad_()
    assert [(name, type(value), repr(value)) for name, value in read.items()] == [
        (name, type(value), repr(value)) for name, value in content.items()
    ]


@pytest.mark.parametrize("kind", sorted(_KEPT | DICTS | {dict, list, set}, key=repr))
def test_kept_mutable_values_are_copied(kind) -> None:
    values: dict[type, Any] = {torch.dtype: torch.int8, torch.device: torch.device("cpu"), torch.layout: torch.strided}
    value = None if kind is type(None) else values[kind] if kind in values else kind()
    assert type(value) is kind
    kept = plain(value)
    assert type(kept) is kind
    copy = HostCopy().copy({"value": kept})["value"]
    assert type(copy) is kind
    assert copy == value
    try:
        hash(value)
    except TypeError:
        assert copy is not value, "holds a later moment's value"


@pytest.mark.parametrize("value", [np.arange(3.0), np.arange(4, dtype=">i4"), datetime.timedelta(1, 2, 3)])
def test_types_torch_needs_as_safe_globals(value, tmp_path) -> None:
    path = save_checkpoint(with_value(value), str(tmp_path / "a.pt"))
    read = read_checkpoint(path)["state"]["callbacks"]["Holder"]["value"]
    assert type(read) is type(value)
    assert np.array_equal(read, value)


@pytest.mark.parametrize("kind", REFUSED)
def test_unsupported_values_are_named_on_save(kind, tmp_path) -> None:
    with pytest.raises(TypeError, match=r"^'state/callbacks/Holder/value.*' cannot be saved"):
        save_checkpoint(with_value([REFUSED[kind]] if kind == "slice" else REFUSED[kind]), str(tmp_path / "a.pt"))
    assert not list(tmp_path.iterdir())


def test_self_referencing_values_are_rejected() -> None:
    ring: list[Any] = []
    ring.append(ring)
    table: dict[str, Any] = {}
    table["a"] = {"b": table}
    for value in (ring, table):
        with pytest.raises(TypeError, match="has more than 100 levels, or contains itself"):
            collect(with_value(value))


def test_saved_nesting_depth_can_be_loaded(tmp_path) -> None:
    value: Any = 1
    for depth in range(200):
        value = [value] if depth % 2 else {"a": value}
        try:
            path = save_checkpoint(with_value(value), str(tmp_path / "a.pt"))
        except TypeError:
            break
    assert depth > 90
    assert read_by_both(path) is not None


def test_error_names_the_path_and_remedy(tmp_path) -> None:
    said = r"'state/callbacks/Holder/value/a/1' .* is builtins.builtin_function.*save_ignore_keys=\['state/callbacks/Ho"
    with pytest.raises(TypeError, match=said):
        collect(with_value({"a": [1, print]}))
    state = with_value({"a": [1, print]})
    path = save_checkpoint(state, str(tmp_path / "a.pt"), ignore_keys=["state/callbacks/Holder/value/a/1"])
    assert read_by_both(path) == {"a": [1]}


def test_saving_does_not_modify_the_run() -> None:
    value = ListLike(0.9)
    state = with_value(value)
    collect(state)
    assert state.callbacks[0].value is value


leaves = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3) | st.binary(max_size=2)
)
odd = st.recursive(
    leaves | leaves.filter(lambda x: type(x) is float).map(np.float64) | st.sampled_from([Color.RED, Level.LOW]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda values: ListLike(*values))
        | st.lists(inner, max_size=3).map(collections.deque)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3).map(Table)
    ),
    max_leaves=8,
)


def is_plain(node: Any) -> bool:
    if type(node) is dict:
        return all(is_plain(key) and is_plain(value) for key, value in node.items())
    if type(node) in (list, tuple):
        return all(map(is_plain, node))
    return type(node) in (type(None), bool, int, float, str, bytes)


@given(odd)
def test_nested_values_become_and_stay_plain(value) -> None:
    once = plain(value)
    assert is_plain(once)
    assert plain(once) == once


# ------------------------------------------------------------------------------------------------ in each part


class Counting(torch.utils.data.IterableDataset[Any]):
    """Its place is a value of some library."""

    def __iter__(self):
        for _ in range(8):
            yield torch.ones(4), torch.ones(1)

    def state_dict(self):
        return DictLike(epoch=np.int64(0), kind=Color.RED)

    def load_state_dict(self, state):
        assert is_plain(state)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_run_with_third_party_values_in_every_section(tmp_path, asynchronous) -> None:
    def make(**arguments: Any) -> Trainer:
        model = Regression()
        groups = [{"params": list(model.parameters()), "name": Text("all"), "where": pathlib.PurePosixPath("/a")}]
        optimizer = torch.optim.AdamW(groups, lr=np.float64(0.1), betas=ListLike(0.9, 0.95))
        optimizer.param_groups[0]["betas"] = ListLike(0.9, np.float32(0.5))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, Integer(2), gamma=np.float64(0.5))
        return trainer_of(
            model, optimizers=optimizer, schedulers=schedule, callbacks=arguments.pop("callbacks"), **arguments
        )

    saver = CheckpointSaver(tmp_path, "a.pt", asynchronous=asynchronous, overwrite=True)
    make(callbacks=[Holder(DictLike(a=Level.LOW)), saver], max_duration="1ep").fit()
    content = torch.load(tmp_path / "a.pt", weights_only=True)["state"]
    (group,) = content["optimizers"]["AdamW"]["param_groups"]
    assert (group["betas"], group["name"], group["where"]) == ([0.9, 0.5], "all", "/a")
    assert type(group["lr"]) is float
    resumed = make(callbacks=[Holder()], max_duration="2ep", load_path=str(tmp_path / "a.pt"))
    resumed.fit()
    assert resumed.state.callbacks[0].value == {"a": 1}
    assert isinstance(resumed.state.optimizers[0].param_groups[0]["betas"], list)
    file_format.check(tmp_path / "a.pt")


def test_dataset_position(tmp_path) -> None:
    loader = torch.utils.data.DataLoader(Counting(), batch_size=2)
    saver = CheckpointSaver(tmp_path, "ba{batch}.pt", save_interval="1ba")
    trainer = trainer_of(data=loader, callbacks=[saver], max_duration="2ba", train_subset_num_batches=4)
    trainer.fit()
    place = torch.load(tmp_path / "ba1.pt", weights_only=True)["state"]["dataset_state"]["train"]
    assert place["state"] == {"epoch": 0, "kind": "red"}
    trainer_of(data=loader, load_path=str(tmp_path / "ba1.pt"), max_duration="2ba", train_subset_num_batches=4).fit()
