"""Joining batches is the reverse of splitting them, for every type of batch that can be split."""

from __future__ import annotations

import dataclasses
from collections import UserDict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from composer.core.microbatches import as_microbatch, join, split

Pair = namedtuple("Pair", ["x", "y"])
Tensor = torch.Tensor


@dataclasses.dataclass
class Example:
    x: Tensor
    name: str


def rows(n: int, *shape: int) -> Tensor:
    size = torch.Size([n, *shape])
    return torch.arange(size.numel()).reshape(size)


def padded(tokens: list[list[int]], token: int, *, on_the_left: bool) -> dict[str, Tensor]:
    """A batch of texts, padded to the longest."""
    longest = max(map(len, tokens))
    ids, mask = [], []
    for text in tokens:
        missing = longest - len(text)
        ids.append([token] * missing + text if on_the_left else text + [token] * missing)
        mask.append([0] * missing + [1] * len(text) if on_the_left else [1] * len(text) + [0] * missing)
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


@pytest.mark.parametrize("on_the_left", [False, True])
def test_texts_are_padded_as_their_batches_are(on_the_left) -> None:
    texts = [[1, 2], [3], [4, 5, 6, 7], [8, 9]]
    parts = [padded(texts[:2], 49, on_the_left=on_the_left), padded(texts[2:], 49, on_the_left=on_the_left)]
    expected = padded(texts, 49, on_the_left=on_the_left)
    assert flat(join(parts)) == flat(expected)


def test_texts_padded_on_both_sides_are_an_error() -> None:
    parts = [padded([[1, 2], [3]], 49, on_the_left=True), padded([[4, 5, 6], [7]], 49, on_the_left=False)]
    with pytest.raises(ValueError, match=r"attention_mask.*first and the last"):
        join(parts)


FORMS: dict[str, Any] = {
    "tensor": lambda n: rows(n, 2),
    "pair": lambda n: (rows(n, 3), rows(n)),
    "list of a loader": lambda n: [rows(n, 3), rows(n)],
    "mapping": lambda n: {"x": rows(n, 2), "inner": {"y": rows(n), "z": [rows(n), rows(n, 1)]}},
    "user mapping": lambda n: UserDict(x=rows(n, 2), y=rows(n)),
    "named tuple": lambda n: Pair(rows(n), (rows(n), rows(n))),
    "dataclass": lambda n: Example(rows(n, 2), "shared"),
    "deque": lambda n: deque([rows(n), rows(n, 2)]),
    "arrays": lambda n: {"x": np.arange(2 * n).reshape(n, 2), "y": rows(n)},
    "strings beside tensors": lambda n: {"text": [f"t{i}" for i in range(n)], "y": rows(n)},
    "strings": lambda n: [f"t{i}" for i in range(n)],
    "columns": lambda n: {"text": [f"t{i}" for i in range(n)], "label": list(range(n))},
    "ragged tensors": lambda n: {"tokens": [rows(i + 20) for i in range(n)], "y": rows(n)},
    "shared values": lambda n: {"x": rows(n, 2), "scale": 0.5, "name": "a", "none": None},
    "scalar tensors": lambda n: (rows(n), torch.tensor(2.0)),
}


def flat(value: Any) -> Any:
    """Values and types as plain objects, for comparisons."""
    if isinstance(value, (Tensor, np.ndarray)):
        return type(value).__name__, str(value.dtype), value.tolist()
    if isinstance(value, (dict, UserDict)):
        return type(value).__name__, {key: flat(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return type(value).__name__, [flat(item) for item in value]
    if dataclasses.is_dataclass(value):
        return type(value).__name__, {
            field.name: flat(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    return value


@pytest.mark.filterwarnings("ignore:A tensor in the batch has")
@pytest.mark.parametrize("form", FORMS)
@given(samples=st.integers(1, 12), size=st.integers(1, 13))
def test_joined_microbatches_are_the_batch(form, samples, size) -> None:
    batch = FORMS[form](samples)
    assert flat(join(split(batch, size))) == flat(as_microbatch(batch))


@pytest.mark.parametrize("form", FORMS)
def test_a_single_batch_is_returned_as_it_is(form) -> None:
    batch = FORMS[form](3)
    assert join([batch]) is batch


def test_lists_of_a_loader_stay_lists() -> None:
    joined = join([[rows(2), rows(2)], [rows(1), rows(1)]])
    assert flat(joined) == flat([torch.tensor([0, 1, 0])] * 2)


def test_batches_are_not_modified() -> None:
    batches = [{"x": rows(2), "text": ["a", "b"]}, {"x": rows(1), "text": ["c"]}]
    before = [flat(batch) for batch in batches]
    join(batches)["text"].append("d")
    assert [flat(batch) for batch in batches] == before


def test_keys_in_another_order() -> None:
    joined = join([{"x": rows(1), "y": rows(1) + 5}, {"y": rows(1) + 7, "x": rows(1)}])
    assert flat(joined) == flat({"x": torch.tensor([0, 0]), "y": torch.tensor([5, 7])})


def text_batch(samples: int, length: int) -> dict[str, Tensor]:
    ids = torch.full((samples, length), length)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids, "class": rows(samples)}


@given(sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9)), min_size=1, max_size=4))
def test_padded_text_keeps_its_tokens_and_targets(sizes) -> None:
    batches = [text_batch(*size) for size in sizes]
    joined = join(batches)
    longest = max(length for _, length in sizes)
    assert joined["input_ids"].shape == (sum(samples for samples, _ in sizes), longest)
    real = joined["attention_mask"].bool()
    assert joined["input_ids"][real].tolist() == [
        token for one in batches for token in one["input_ids"].flatten().tolist()
    ]
    assert torch.equal(joined["labels"] != -100, real)
    assert joined["class"].tolist() == [label for one in batches for label in one["class"].tolist()]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([{"x": rows(2, 3)}, {"x": rows(2, 4)}], r"batch\['x'\] has different shapes, such as \(2, 3\) and \(2, 4\)"),
        (
            [{"input_ids": rows(2, 3)}, {"input_ids": rows(2, 4)}],  # no mask, which would exclude the padding
            r"batch\['input_ids'\] has different shapes",
        ),
        ([{**text_batch(2, 3), "bias": rows(2, 3)}, {**text_batch(2, 4), "bias": rows(2, 4)}], r"batch\['bias'\] has"),
        ([{"x": rows(2), "scale": 1.0}, {"x": rows(2), "scale": 2.0}], r"batch\['scale'\] has one value per batch"),
        ([{"x": rows(2), "t": torch.ones(1)}, {"x": rows(2), "t": torch.zeros(1)}], r"batch\['t'\] has one value per"),
        ([(rows(2), {"a": 1}), (rows(2), {"b": 1})], r"batch\[1\] has different keys"),
        ([(rows(2), rows(2)), (rows(2),)], r"batch has different numbers of entries, \[1, 2\]"),
        ([(rows(2), rows(2)), [rows(2), rows(2)]], r"batch has different types, \['list', 'tuple'\]"),
        ([3, 4], r"batch contains neither a tensor nor a list of samples"),
    ],
)
def test_what_cannot_be_joined_names_the_place_and_the_remedy(batches, message) -> None:
    with pytest.raises(ValueError, match=message + r".*Pass DataSpec\(dataloader, join_batches=\.\.\.\)"):
        join(batches)


def test_ragged_lists_whose_lengths_happen_to_be_their_number() -> None:
    batches = [{"tokens": [rows(2), rows(2)], "y": rows(2)}, {"tokens": [rows(3), rows(5)], "y": rows(2)}]
    assert [len(one) for one in join(batches)["tokens"]] == [2, 2, 3, 5]  # four sequences, not two columns


def test_tensors_of_the_batch_rather_than_of_samples_stay() -> None:
    batches = [{"x": rows(5), "table": torch.ones(3)}, {"x": rows(4), "table": torch.ones(3)}]
    joined = join(batches)
    assert (len(joined["x"]), joined["table"].tolist()) == (9, [1.0] * 3)
