"""Documents as they come from data sets: dtypes of files, masks, columns of text, and wrong arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from composer.algorithms import SequencePacking, pack_sequences
from composer.algorithms.sequence_packing import block_diagonal_mask, document_block_mask, document_offsets


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_of_small_integers_are_ignored_where_they_should(dtype: torch.dtype) -> None:
    packed = pack_sequences([torch.tensor([5, 6, 7], dtype=dtype)], 5)
    assert packed["input_ids"].dtype == dtype
    assert packed["labels"].dtype == torch.int64
    assert packed["labels"].tolist() == [[-100, 6, 7, -100, -100]]
    # A byte cannot be -100: it would be class 156.
    losses = F.cross_entropy(torch.zeros(5, 256), packed["labels"][0], reduction="none")
    assert losses.bool().tolist() == [False, True, True, False, False]


@pytest.mark.parametrize("causal", [False, True])
def test_given_labels(causal: bool) -> None:
    first = -100 if causal else 1
    for labels in ([True, False], np.array([1, 0], dtype=np.uint8), np.array([1, 0], dtype=np.uint32)):
        packed = pack_sequences([{"input_ids": [1, 2], "labels": labels}], 3, causal=causal)
        assert packed["labels"].dtype == torch.int64
        assert packed["labels"].tolist() == [[first, 0, -100]]
        assert packed["loss_weights"].tolist() == [[float(not causal), 1, 0]]
    assert pack_sequences([{"input_ids": [1], "labels": [0.5]}], 2, causal=False)["labels"].tolist() == [[0.5, -100]]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.uint64])
def test_tokens_of_a_memory_mapped_file(dtype: Any, tmp_path: Any) -> None:
    np.arange(1, 7, dtype=dtype).tofile(tmp_path / "tokens.bin")
    tokens = np.memmap(tmp_path / "tokens.bin", dtype=dtype, mode="r")
    rows = [[1, 2, 3, 4], [5, 6, 0, 0]]
    for documents in ([tokens[:4], tokens[4:]], [torch.tensor(tokens[:4]), torch.tensor(tokens[4:])]):
        packed = pack_sequences(documents, 4)
        assert packed["input_ids"].dtype == torch.int64
        assert packed["input_ids"].tolist() == rows
    mixed = pack_sequences([torch.tensor(tokens[:4]), [5, 6]], 4)
    assert mixed["input_ids"].tolist() == rows
    masked = {"input_ids": tokens[:4], "attention_mask": np.array([1, 1, 1, 0], dtype=dtype)}
    assert pack_sequences([masked], 4)["input_ids"].tolist() == [[1, 2, 3, 0]]


def test_columns_that_are_not_kept_are_not_read() -> None:
    documents = [
        {"input_ids": [1, 2], "text": "ab", "label": None, "labels": [3, -100]},
        {"input_ids": [4], "text": "c", "labels": [5]},
    ]
    packed = SequencePacking(3, causal=False, keep=["input_ids", "loss_weights"])(documents)
    assert {key: value.tolist() for key, value in packed.items()} == {
        "input_ids": [[1, 2, 4]],
        "loss_weights": [[1, 0, 1]],
    }
    with pytest.raises(ValueError, match=r"'txt', which is not among input_ids, text, .*Did you mean 'text'"):
        SequencePacking(3, keep=["txt"])(documents)


@pytest.mark.parametrize(
    ("documents", "error", "message"),
    [
        (
            [[1], {"input_ids": [1], "text": "ab"}],
            TypeError,
            r"documents\[1\]\['text'\].* 'ab'.*Leave the key out.*keep=",
        ),
        ([{"input_ids": [1], "labels": None}], TypeError, r"documents\[0\]\['labels'\].* None.*Leave the key out"),
        ([{"input_ids": [[1], [1, 2]]}], TypeError, r"documents\[0\]\['input_ids'\].*\[\[1\], \[1, 2\]\]"),
        (
            ["ab"],
            TypeError,
            r"documents\[0\]\['input_ids'\] must have one number for each token, but is 'ab'.*token ids",
        ),
        ([[1, 2], [1.5, 2.0]], TypeError, r"documents\[1\]\['input_ids'\] must be integers, but is \[1.5, 2.0\].*long"),
        ([torch.ones(2)], TypeError, r"documents\[0\]\['input_ids'\] must be integers, but is .* of torch.float32"),
        ({"input_ids": torch.ones(2, 3), "attention_mask": torch.ones(2, 3)}, TypeError, "padded batch.*one mapping"),
        ([{"input_ids": [1, 2], "attention_mask": [0, -1e9]}], ValueError, r"-1e\+09.*attention_mask == 0"),
        ([{"input_ids": [1, 2], "attention_mask": [1, np.nan]}], ValueError, "contain nan. Compute the mask"),
        ([5, 6, 7], ValueError, r"documents\[0\] must be a sequence .* the shape \(\). Pass \[input_ids\]"),
        (torch.tensor([5, 6]), ValueError, r"documents\[0\] must be a sequence .* the shape \(\). Pass \[input_ids\]"),
        ([torch.ones(2, 3).long()], ValueError, r"documents\[0\] .* the shape \(2, 3\). Pass its rows as documents"),
        (3, TypeError, r"documents must be a sequence of documents, but got 3. Pass a list"),
        (torch.tensor(3), TypeError, r"documents must be a sequence of documents, but got tensor\(3\)"),
    ],
)
def test_wrong_documents(documents: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        pack_sequences(documents, 4)


@pytest.mark.parametrize(
    ("padding", "message"),
    [
        ({"inputids": 7}, "key 'inputids', which is not among .*Did you mean 'input_ids'"),
        ({"position_ids": 7}, r"padding\['position_ids'\] is 7, but packing adds position_ids"),
        ({"input_ids": 1.5}, r"padding\['input_ids'\] must be a value of torch.int64.*not 1.5"),
        ({"input_ids": "x"}, r"padding\['input_ids'\] must be a value of torch.int64.*not 'x'"),
        ({"input_ids": 2**63}, r"padding\['input_ids'\] must be a value of torch.int64"),
        ({"half": 1e9}, r"padding\['half'\] must be a value of torch.float16.*not 1000000000.0"),
        ({"byte": -1}, r"padding\['byte'\] must be a value of torch.uint8.*not -1"),
    ],
)
def test_wrong_padding(padding: Any, message: str) -> None:
    document = {"input_ids": [1, 2], "byte": torch.tensor([1, 2], dtype=torch.uint8), "half": torch.ones(2).half()}
    with pytest.raises(ValueError, match=message):
        pack_sequences([document], 4, padding=padding)


def test_padding_that_suits() -> None:
    document = {"input_ids": [1], "weight": [0.5]}
    packed = pack_sequences([document], 2, padding={"input_ids": 7.0, "weight": 0.1, "labels": -1, "position_ids": 0})
    assert packed["input_ids"].tolist() == [[1, 7]]
    assert packed["weight"].tolist() == [pytest.approx([0.5, 0.1])]
    assert packed["labels"].tolist() == [[-100, -1]]


def test_padding_of_no_mapping_and_of_labels_that_there_are_not() -> None:
    for make in (lambda: pack_sequences([[1]], 2, padding=0), lambda: SequencePacking(2, padding=0)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"padding must be a mapping from .* but got 0. Pass {'input_ids': 0}"):
            make()
    with pytest.raises(ValueError, match=r"the key 'labels', which is not among input_ids, .*Leave it out"):
        pack_sequences([[1]], 2, causal=False, padding={"labels": -1})
    infinite = pack_sequences([{"input_ids": [1], "score": [0.5]}], 2, padding={"score": float("-inf")})
    assert infinite["score"].tolist() == [[0.5, float("-inf")]]


def test_keys_to_keep_from_a_generator() -> None:
    """Each batch has them, not only the first."""
    collate = SequencePacking(4, keep=(key for key in ("input_ids", "position_ids")))
    for _ in range(2):
        assert list(collate([[5, 6]])) == ["input_ids", "position_ids"]
    for keep, found in ((3, "3"), ([3], "3"), (["input_ids", None], "None")):
        with pytest.raises(TypeError, match=rf"keep must be a list of strings, but .* ?{found}\. Pass"):
            SequencePacking(4, keep=keep)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["input_ids", "hash"])
def test_integers_that_int64_cannot_hold(key: str) -> None:
    largest = np.array([1, 2**63 - 1], dtype=np.uint64)
    for values in (largest + 1, torch.tensor(largest + 1), [1, 2**63]):
        documents = [{"input_ids": [1, 2], key: values}]
        with pytest.raises(ValueError, match=rf"documents\[0\]\['{key}'\] has an integer of 2\*\*63 or more"):
            pack_sequences(documents, 2)
    with pytest.raises(ValueError, match=r"documents\[1\]\['input_ids'\] has an integer of 2\*\*63"):
        pack_sequences([torch.tensor(largest), torch.tensor(largest + 1)], 2)
    assert pack_sequences([{"input_ids": [1, 2], key: largest}], 2)[key].tolist() == [largest.tolist()]


@pytest.mark.parametrize("function", [block_diagonal_mask, document_block_mask, document_offsets])
def test_document_ids_of_another_shape(function: Any) -> None:
    with pytest.raises(
        ValueError, match=r"document_ids must have the shape \(B, S\).* \(3,\). Pass document_ids\[None\]"
    ):
        function(torch.tensor([1, 1, 2]))
    with pytest.raises(ValueError, match=r"document_ids must have the shape \(B, S\).* \(1, 2, 3\). Pass one id"):
        function(torch.ones(1, 2, 3, dtype=torch.long))
    with pytest.raises(TypeError, match=r"document_ids must be a tensor of shape .* but is a list. Convert it"):
        function([[1, 1, 2]])
    if function is not block_diagonal_mask:
        with pytest.raises(ValueError, match=r"but has the shape \(2, 0\)"):
            function(torch.ones(2, 0, dtype=torch.long))
