from __future__ import annotations

import dataclasses
import re
from collections import UserDict, UserList, deque, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from composer.core import DataSpec, ensure_data_spec
from composer.core.data import count_samples, split
from composer.warnings import ComposerWarning
from tests.common import Unsized

Pair = namedtuple("Pair", ["x", "y"])
Tensor = torch.Tensor


@dataclasses.dataclass
class Example:
    x: Tensor
    name: str


class Encoding(UserDict):
    """As the tokenizers of transformers return it: a mapping with attributes."""

    def __getattr__(self, name):
        if name == "data" or name not in self.data:
            raise AttributeError(name)
        return self.data[name]


class Stream(IterableDataset):
    def __iter__(self):
        return iter(range(10))

    def __len__(self):
        return 5


def rows(n: int, *shape: int) -> Tensor:
    size = torch.Size([n, *shape])
    return torch.arange(size.numel()).reshape(size)


def plain(value: Any) -> Any:
    """The same with tensors as lists, for comparisons."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, (dict, UserDict)):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque, UserList)):
        return [plain(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


class TestCount:
    @pytest.mark.parametrize(
        "batch",
        [
            rows(3),
            rows(3, 2),
            (rows(3, 2), rows(3)),
            [rows(3), rows(3)],
            (rows(3), torch.tensor(1.0)),
            (rows(3), "name", 5, None),
            {"x": rows(3), "y": (rows(3), {"z": rows(3, 4)})},
            Encoding(input_ids=rows(3, 5), labels=rows(3, 5)),
            Pair(rows(3), rows(3)),
            Example(rows(3), "name"),
            (rows(3), ["a", "b", "c", "d"]),
        ],
        ids=str,
    )
    def test_the_first_dimension(self, batch):
        assert count_samples(batch) == 3
        assert DataSpec([]).get_num_samples_in_batch(batch) == 3

    @pytest.mark.parametrize(
        ("batch", "found"),
        [
            ((rows(3), rows(2)), "tensors with [2, 3] samples"),
            ({"x": rows(3), "y": [rows(1), rows(3)]}, "tensors with [1, 3] samples"),
            (torch.tensor(1.0), "no tensor with rows in a Tensor"),
            (["a", "b"], "no tensor with rows in a list"),
            ((), "no tensor with rows in a tuple"),
            (np.ones(3), "no tensor with rows in a ndarray"),
        ],
        ids=str,
    )
    def test_what_it_cannot_tell(self, batch, found):
        message = (
            f"Cannot tell the number of samples of a batch: found {found}. Give "
            f"DataSpec(dataloader, get_num_samples_in_batch=...)."
        )
        with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
            count_samples(batch)

    def test_by_the_users_function(self):
        spec = DataSpec([], get_num_samples_in_batch=len)
        assert spec.get_num_samples_in_batch(["a", "b"]) == 2


OTHERS = {"n": 4, "f": 0.5, "b": True, "s": "text", "none": None}
CASES = {
    "tensor": (rows(3, 2), [rows(3, 2)[:2], rows(3, 2)[2:]]),
    "pair": ((rows(3), rows(3)), [([0, 1], [0, 1]), ([2], [2])]),
    "named": (Pair(rows(3), rows(3)), [([0, 1], [0, 1]), ([2], [2])]),
    "list": ([rows(3), rows(3)], [([0, 1], [0, 1]), ([2], [2])]),
    "deque": (deque([rows(3), "s"]), [([0, 1], "s"), ([2], "s")]),
    "user list": (UserList([rows(3), "s"]), [([0, 1], "s"), ([2], "s")]),
    "mapping": ({"x": rows(3), **OTHERS}, [{"x": [0, 1], **OTHERS}, {"x": [2], **OTHERS}]),
    "encoding": (Encoding(ids=rows(3), n=1), [{"ids": [0, 1], "n": 1}, {"ids": [2], "n": 1}]),
    "dataclass": (Example(rows(3), "abc"), [{"x": [0, 1], "name": "abc"}, {"x": [2], "name": "abc"}]),
    "nested": (
        ({"a": rows(3), "deep": [rows(3), {"b": rows(3)}]}, rows(3)),
        [
            ({"a": [0, 1], "deep": [[0, 1], {"b": [0, 1]}]}, [0, 1]),
            ({"a": [2], "deep": [[2], {"b": [2]}]}, [2]),
        ],
    ),
    "scalar tensor": ((rows(3), torch.tensor(7)), [([0, 1], 7), ([2], 7)]),
    "list of samples": ((rows(3), ["a", "b", "c"]), [([0, 1], ["a", "b"]), ([2], ["c"])]),
    "tuple of samples": ({"x": rows(3), "t": (*"abc",)}, [{"x": [0, 1], "t": ["a", "b"]}, {"x": [2], "t": ["c"]}]),
    "nested list of samples": (
        {"x": rows(3), "m": {"t": ["a", "b", "c"]}},
        [{"x": [0, 1], "m": {"t": ["a", "b"]}}, {"x": [2], "m": {"t": ["c"]}}],
    ),
    "named, not samples": (({"x": rows(2)}, Pair(5, 6)), [({"x": [0, 1]}, (5, 6))]),
    "list of another length": ((rows(3), ["a", "b"]), [([0, 1], ["a", "b"]), ([2], ["a", "b"])]),
    "only samples": (["a", "b", "c"], [["a", "b"], ["c"]]),
    "only lists of samples": ((["a", "b", "c"], [1, 2, 3]), [(["a", "b"], [1, 2]), (["c"], [3])]),
    "mapping of samples": ({"t": ["a", "b", "c"]}, [{"t": ["a", "b"]}, {"t": ["c"]}]),
    "ragged": (
        (rows(3), [rows(5), rows(1), rows(3)]),
        [([0, 1], [[0, 1, 2, 3, 4], [0]]), ([2], [[0, 1, 2]])],
    ),
    "ragged mappings": (
        (rows(3), [{"box": rows(n, 1)} for n in (1, 0, 2)]),
        [([0, 1], [{"box": [[0]]}, {"box": []}]), ([2], [{"box": [[0], [1]]}])],
    ),
    "nothing": (rows(0), [[]]),
}


class TestSplit:
    @pytest.mark.parametrize(("batch", "expected"), CASES.values(), ids=CASES)
    def test_two_at_a_time(self, batch, expected):
        parts = split(batch, 2)
        assert [plain(part) for part in parts] == plain(expected)
        assert all(type(part) is type(batch) for part in parts)

    def test_attributes_of_an_encoding_survive(self):
        first, second = split(Encoding(input_ids=rows(3), labels=rows(3)), 2)
        assert first.input_ids.tolist() == [0, 1]
        assert second.labels.tolist() == [2]

    def test_no_bytes_are_copied(self):
        x = rows(4)
        assert [part[0].data_ptr() for part in split((x, x), 2)] == [x.data_ptr(), x[2:].data_ptr()]

    @pytest.mark.parametrize("size", [3, 4, 100])
    def test_a_batch_that_fits_is_whole(self, size):
        (part,) = split({"x": rows(3), "y": ["a", "b", "c"]}, size)
        assert plain(part) == {"x": [0, 1, 2], "y": ["a", "b", "c"]}

    @pytest.mark.parametrize("size", [0, -1, 0.5, 2.0, "2", None])
    def test_what_is_no_size(self, size):
        message = f"microbatch_size must be a positive whole number; got {size!r}."
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            split(rows(3), size)

    def test_a_number_of_numpy_is_a_size(self):
        assert len(split(rows(3), np.int64(2))) == 2

    def test_a_shorter_tensor_goes_to_all_with_a_warning(self):
        message = (
            "A tensor in the batch has 1 rows, but there are 4 samples; every microbatch gets all of it. Give "
            "DataSpec(dataloader, split_batch=...) if it is to be split."
        )
        with pytest.warns(ComposerWarning, match=f"^{re.escape(message)}$"):
            parts = split({"scale": rows(1), "x": rows(4)}, 2)
        assert plain(parts) == [{"scale": [0], "x": [0, 1]}, {"scale": [0], "x": [2, 3]}]

    @pytest.mark.parametrize("batch", [torch.tensor(1.0), "text", 3, None, {"n": 3}, ({"n": 1.0}, {})], ids=str)
    def test_nothing_to_split(self, batch):
        message = (
            f"Cannot split a batch of type {type(batch).__name__} in which there is no tensor. Give "
            f"DataSpec(dataloader, split_batch=...)."
        )
        with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
            split(batch, 2)

    def test_by_the_users_function(self):
        spec = DataSpec([], split_batch=lambda batch, size: [batch, size])
        assert spec.split_batch("batch", 2) == ["batch", 2]


def _concatenated(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat(parts)
    if isinstance(first, dict):
        return {key: _concatenated([part[key] for part in parts]) for key in first}
    if isinstance(first, tuple):
        return tuple(_concatenated(list(items)) for items in zip(*parts, strict=True))
    return [item for part in parts for item in part]


def batches(n: int) -> st.SearchStrategy[Any]:
    """Batches of n samples; lists hold samples, tuples and mappings hold parts of a batch."""
    tensors = st.lists(st.integers(0, 3), max_size=2).map(lambda shape: rows(n, *shape))
    samples = st.lists(st.text(max_size=2), min_size=n, max_size=n)
    ragged = st.lists(st.integers(0, 4).map(rows), min_size=n, max_size=n).filter(
        lambda found: {len(t) for t in found} != {n}
    )
    inner = st.recursive(
        tensors | samples | ragged,
        lambda part: st.dictionaries(st.sampled_from("abc"), part, min_size=1, max_size=3),
        max_leaves=4,
    )
    return st.tuples(tensors, inner, inner)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), batches(n), st.integers(1, 10))))
def test_law_parts_together_are_the_batch(case):
    n, batch, size = case
    parts = split(batch, size)
    assert plain(_concatenated(list(parts))) == plain(batch)
    sizes = [len(part[0]) for part in parts]
    assert sizes[:-1] == [size] * (len(sizes) - 1)
    assert sizes[-1] == n - size * (len(sizes) - 1)
    assert 0 < sizes[-1] <= size


class TestTokens:
    IDS = torch.ones(2, 3)
    LABELS = torch.tensor([[1, 2, -100], [1, -100, -100]])

    def test_all_of_the_input_ids(self):
        for batch in ({"input_ids": self.IDS}, Encoding(input_ids=self.IDS)):
            assert DataSpec([]).get_num_tokens_in_batch(batch) == 6
            assert DataSpec([]).get_num_tokens_in_batch(batch, "loss_generating") == 6

    def test_those_with_a_label_stay_on_the_device(self):
        count = DataSpec([]).get_num_tokens_in_batch({"labels": self.LABELS}, "loss_generating")
        assert isinstance(count, Tensor)
        assert count == 3

    def test_of_the_length_of_sequences(self):
        dataset = TensorDataset(rows(4))
        dataset.max_seq_len = 16
        spec = DataSpec(DataLoader(dataset, batch_size=2))
        assert spec.get_num_tokens_in_batch((rows(2), rows(2))) == 32
        assert spec.get_num_tokens_in_batch({"x": rows(2)}) == 32

    def test_none(self):
        assert DataSpec([]).get_num_tokens_in_batch((rows(2),)) == 0

    def test_by_the_users_function(self):
        assert DataSpec([], get_num_tokens_in_batch=len).get_num_tokens_in_batch("abc", "loss_generating") == 3
        spec = DataSpec([], get_num_tokens_in_batch=lambda batch: {"total": 5, "other": 1})
        assert spec.get_num_tokens_in_batch(None) == 5
        message = (
            "get_num_tokens_in_batch returned a mapping without 'loss_generating'; it has ['other', 'total']. Add "
            "that entry, or return a number."
        )
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            spec.get_num_tokens_in_batch(None, "loss_generating")


class TestSpec:
    def test_sizes(self):
        spec = DataSpec(DataLoader(TensorDataset(rows(7)), batch_size=2))
        assert (spec.num_samples, spec.num_tokens, spec.__length__, spec.__batch_size__) == (7, None, 4, 2)
        assert DataSpec(DataLoader(TensorDataset(rows(7))), num_samples=3, num_tokens=9).num_samples == 3

    def test_unsized(self):
        for loader in (Unsized([1]), DataLoader(TensorDataset(rows(7)), batch_size=2).__iter__(), iter([1])):
            spec = DataSpec(loader)
            assert (spec.num_samples, spec.__batch_size__) == (None, None)
        assert DataSpec(Unsized([1])).__length__ is DataSpec(iter([1])).__length__ is None

    def test_the_length_of_a_stream_says_nothing_of_its_samples(self):
        assert DataSpec(DataLoader(Stream(), batch_size=2)).num_samples is None

        class Endless(IterableDataset):
            def __iter__(self):
                return iter(int, 1)

        assert DataSpec(DataLoader(Endless(), batch_size=2)).__length__ is None

    @pytest.mark.parametrize("given", [3, None, "data/train", {"x": 1}], ids=str)
    def test_what_is_no_loader(self, given):
        message = f"dataloader must be iterable, such as a torch DataLoader; got {given!r}."
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            ensure_data_spec(given)

    def test_a_data_set_in_place_of_a_loader(self):
        dataset = TensorDataset(rows(3))
        message = f"Got the data set {dataset!r} itself; give a DataLoader(dataset, batch_size=...) of it."
        with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
            ensure_data_spec(dataset)

    def test_forms(self):
        loader = DataLoader(TensorDataset(rows(3)))
        spec = DataSpec(loader)
        assert ensure_data_spec(spec) is spec
        assert ensure_data_spec(loader).dataloader is loader
        spec = ensure_data_spec({"dataloader": loader, "num_tokens": 9, "batch_transforms": len})
        assert (spec.dataloader, spec.num_tokens, spec.batch_transforms) == (loader, 9, len)
        assert ensure_data_spec({"dataloader": loader, "microbatch_transforms": len}).microbatch_transforms is len
        with pytest.raises(TypeError, match="num_token"):
            ensure_data_spec({"dataloader": loader, "num_token": 9})

    def test_device_transforms_is_the_old_name_of_batch_transforms(self):
        loader = DataLoader(TensorDataset(rows(3)))
        assert DataSpec(loader, device_transforms=len).batch_transforms is len
        with pytest.raises(ValueError, match="device_transforms is an old name of batch_transforms"):
            DataSpec(loader, batch_transforms=len, device_transforms=len)

    def test_the_older_module(self):
        from composer.core import data_spec

        assert data_spec.DataSpec is DataSpec
        assert data_spec.ensure_data_spec is ensure_data_spec
