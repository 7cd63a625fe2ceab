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

from composer.core import DataSpec, data_spec
from composer.core.microbatches import as_microbatch, count_samples, split
from composer.warnings import ComposerWarning

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


WITHOUT_TENSORS = {
    "strings": ["a", "b", "c"],
    "tuple of numbers": (1, 2, 3),
    "columns": [["a", "b", "c"], (1, 2, 3)],
    "token lists": {"x": [[1, 2], [3], []], "y": [0, 1, 2]},
    "token lists alone": {"x": [[1, 2], [3, 4], [5, 6]]},
    "as many tokens as columns": {"x": [[1, 2], [3, 4], [5, 6]], "y": [[1], [2], [3]]},
    "with values of the batch": {"x": ["a", "b", "c"], "name": "train", "n": 7, "none": None},
    "nested": ({"x": ["a", "b", "c"]}, {"y": {"z": [1, 2, 3]}}),
    "dictionaries": [{"x": "a"}, {"x": "b"}, {"x": "c"}],
    "objects": [object(), object(), object()],
    "named": Pair(["a", "b", "c"], [[1], [2], [3]]),
    "dataclass": Example(["a", "b", "c"], "name"),  # pyright: ignore[reportArgumentType]
    "mapping of its own class": UserDict(x=["a", "b", "c"]),
    "scalar tensor": {"x": ["a", "b", "c"], "scale": torch.tensor(1.0)},
}
EMPTY = [torch.tensor(1.0), "text", 3, None, (), [], {}, {"n": 3}, ("a", 3), ({"n": 1.0}, {}), [torch.tensor(1.0)]]


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
            np.ones(3),
            {"x": np.ones((3, 2)), "y": np.ones(3)},
            (rows(3), np.ones(3)),
        ],
        ids=str,
    )
    def test_the_first_dimension(self, batch):
        assert count_samples(batch) == 3
        assert DataSpec([]).get_num_samples_in_batch(batch) == 3

    @pytest.mark.parametrize("batch", WITHOUT_TENSORS.values(), ids=WITHOUT_TENSORS)
    def test_lists_of_samples(self, batch):
        assert count_samples(batch) == 3

    @pytest.mark.parametrize(
        ("batch", "found"),
        [
            ((rows(3), rows(2)), "tensors with [2, 3] samples"),
            ({"x": rows(3), "y": [rows(1), rows(3)]}, "tensors with [1, 3] samples"),
            ((rows(3), np.ones(2)), "tensors with [2, 3] samples"),
            ({"x": [[1], [2]], "y": [0]}, "lists with [1, 2] samples"),
            ([[1, 2, 3], [4]], "lists with [1, 3] samples"),
            *(
                (batch, f"neither a tensor with rows nor a list of samples in a {type(batch).__name__}")
                for batch in EMPTY
            ),
        ],
        ids=str,
    )
    def test_uncountable_batches(self, batch, found):
        message = (
            f"Cannot determine the number of samples of a batch: found {found}. Pass "
            f"DataSpec(dataloader, get_num_samples_in_batch=...)."
        )
        with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
            count_samples(batch)

    def test_by_the_users_function(self):
        spec = DataSpec([], get_num_samples_in_batch=len)
        assert spec.get_num_samples_in_batch({"a": 1, "b": 2}) == 2


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
    "list of lists": ([["a", "b", "c"], [1, 2, 3]], [(["a", "b"], [1, 2]), (["c"], [3])]),
    "token lists": ({"x": [[1, 2], [3, 4], [5]]}, [{"x": [[1, 2], [3, 4]]}, {"x": [[5]]}]),
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
        of_columns = type(batch) is list and isinstance(batch[0], (Tensor, list))
        assert all(type(part) is (tuple if of_columns else type(batch)) for part in parts)

    @pytest.mark.parametrize("batch", WITHOUT_TENSORS.values(), ids=WITHOUT_TENSORS)
    def test_without_tensors(self, batch):
        parts = split(batch, 2)
        assert [count_samples(part) for part in parts] == [2, 1]

    @pytest.mark.parametrize(
        "batch", [*WITHOUT_TENSORS.values(), *(batch for batch, _ in CASES.values())], ids=[*WITHOUT_TENSORS, *CASES]
    )
    def test_one_microbatch_is_of_the_same_class_as_each_of_several(self, batch):
        (one,) = split(batch, 9)
        whole = as_microbatch(batch)
        assert type(whole) is type(one) is type(split(batch, 1)[0])
        assert plain(whole) == plain(one) == plain(batch)

    def test_arrays(self):
        first, second = split({"x": np.arange(6).reshape(3, 2), "y": ["a", "b", "c"]}, 2)
        assert (first["x"].tolist(), first["y"]) == ([[0, 1], [2, 3]], ["a", "b"])
        assert (second["x"].tolist(), second["y"]) == ([[4, 5]], ["c"])

    def test_attributes_of_an_encoding_survive(self):
        first, second = split(Encoding(input_ids=rows(3), labels=rows(3)), 2)
        assert first.input_ids.tolist() == [0, 1]
        assert second.labels.tolist() == [2]

    def test_no_bytes_are_copied(self):
        x = rows(4)
        assert [part[0].data_ptr() for part in split((x, x), 2)] == [x.data_ptr(), x[2:].data_ptr()]

    @pytest.mark.parametrize("size", [3, 4, 100])
    def test_a_batch_that_fits_is_not_split(self, size):
        (part,) = split({"x": rows(3), "y": ["a", "b", "c"]}, size)
        assert plain(part) == {"x": [0, 1, 2], "y": ["a", "b", "c"]}

    @pytest.mark.parametrize("size", [0, -1, 0.5, 2.0, "2", None])
    def test_invalid_sizes(self, size):
        message = f"microbatch_size must be a positive integer; got {size!r}."
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            split(rows(3), size)

    def test_a_number_of_numpy_is_a_size(self):
        assert len(split(rows(3), np.int64(2))) == 2

    def test_a_shorter_tensor_goes_to_all_with_a_warning(self):
        message = (
            "A tensor in the batch has 1 rows, but there are 4 samples; every microbatch gets all of it. Pass "
            "DataSpec(dataloader, split_batch=...) to split it."
        )
        with pytest.warns(ComposerWarning, match=f"^{re.escape(message)}$"):
            parts = split({"scale": rows(1), "x": rows(4)}, 2)
        assert plain(parts) == [{"scale": [0], "x": [0, 1]}, {"scale": [0], "x": [2, 3]}]

    @pytest.mark.parametrize("batch", [*EMPTY, {"x": [[1], [2]], "y": [0]}], ids=str)
    def test_nothing_to_split(self, batch):
        message = (
            f"Cannot split a batch of type {type(batch).__name__}: it contains neither a tensor nor a list of "
            f"samples, or lists of different lengths. Pass DataSpec(dataloader, split_batch=...)."
        )
        with pytest.raises(NotImplementedError, match=f"^{re.escape(message)}$"):
            split(batch, 2)

    def test_by_the_users_function(self):
        spec = DataSpec([], split_batch=lambda batch, size: [batch, size])
        assert spec.split_batch("batch", 2) == ["batch", 2]


class TestOlderNames:
    """The predecessor's helpers, which scripts give to data specs of their own."""

    def test_the_default(self):
        assert data_spec._default_split_batch is data_spec.default_split_batch
        assert plain(data_spec.default_split_batch([rows(3), rows(3)], 2)) == [[[0, 1], [0, 1]], [[2], [2]]]
        with pytest.raises(ValueError, match="microbatch_size must be a positive integer"):
            data_spec.default_split_batch(rows(3), 1.5)

    def test_legacy_split_names(self):
        assert data_spec._split_list(["a", "b", "c"], 2) == [["a", "b"], ["c"]]
        assert data_spec._split_list([(rows(2), {"box": rows(1)})] * 3, 2)[1][0][1]["box"].tolist() == [0]
        assert plain(data_spec._split_tensor(rows(3), 2)) == [[0, 1], [2]]
        assert plain(data_spec._split_mapping({"x": rows(3), "s": "a"}, 2)) == [
            {"x": [0, 1], "s": "a"},
            {"x": [2], "s": "a"},
        ]
        assert data_spec._check_list_is_primitives(["a", "b"]) is data_spec._check_list_is_primitives([]) is True
        assert data_spec._check_list_is_primitives([1, "b"]) is data_spec._check_list_is_primitives([[1]]) is False

    @pytest.mark.parametrize(
        "name, batch",
        [
            ("default_split_batch", {"x": rows(2)}),
            ("default_split_batch", ["a", "b"]),
            ("_split_list", ["a", "b"]),
            ("_split_tensor", rows(2)),
        ],
    )
    def test_a_batch_that_is_smaller_warns(self, name, batch):
        with pytest.warns(UserWarning, match="Cannot split .* of length 2 into batches of size 3"):
            (part,) = getattr(data_spec, name)(batch, 3)
        assert plain(part) == plain(batch)
        assert len(getattr(data_spec, name)(batch, 2)) == 1


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
def test_law_microbatches_concatenate_to_the_batch(case):
    n, batch, size = case
    parts = split(batch, size)
    assert plain(_concatenated(list(parts))) == plain(batch)
    sizes = [len(part[0]) for part in parts]
    assert sizes[:-1] == [size] * (len(sizes) - 1)
    assert sizes[-1] == n - size * (len(sizes) - 1)
    assert 0 < sizes[-1] <= size
