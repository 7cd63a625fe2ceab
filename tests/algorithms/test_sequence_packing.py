from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.data import DataLoader

from composer.algorithms import (
    SequencePacking,
    block_diagonal_mask,
    document_block_mask,
    document_offsets,
    pack_sequences,
)


def test_closed_form():
    packed = pack_sequences([[5, 6], [7, 8, 9], [4]], max_seq_length=4, padding={"input_ids": 1})
    expected = {
        "input_ids": [[7, 8, 9, 4], [5, 6, 1, 1]],
        "labels": [[-100, 8, 9, -100], [-100, 6, -100, -100]],
        "position_ids": [[0, 1, 2, 0], [0, 1, 0, 0]],
        "document_ids": [[1, 1, 1, 2], [1, 1, 0, 0]],
        "loss_weights": [[0, 1, 1, 0], [0, 1, 0, 0]],
    }
    assert {key: value.tolist() for key, value in packed.items()} == expected


def test_labels_masks_and_further_keys():
    documents = [
        {"input_ids": [5, 6, 0], "labels": [-100, 3, -100], "attention_mask": [1, 1, 0], "kind": [1, 2, 0]},
        {"input_ids": [7], "labels": [4], "attention_mask": [1], "kind": [3]},
    ]
    packed = pack_sequences(documents, 3, causal=False)
    assert packed["input_ids"].tolist() == [[5, 6, 7]]
    assert packed["labels"].tolist() == [[-100, 3, 4]]
    assert packed["kind"].tolist() == [[1, 2, 3]]
    assert packed["loss_weights"].tolist() == [[0, 1, 1]]
    assert "attention_mask" not in packed
    assert "labels" not in pack_sequences([[1, 2]], 2, causal=False)


lists_of_documents = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=12)


@given(documents=lists_of_documents)
def test_every_document_is_complete_and_unique(documents):
    packed = pack_sequences(documents, 8)
    found = []
    for row in range(len(packed["input_ids"])):
        ids, numbers = packed["input_ids"][row], packed["document_ids"][row]
        for number in range(1, int(numbers.max()) + 1):
            positions = (numbers == number).nonzero()[:, 0]
            assert positions.tolist() == list(range(int(positions[0]), int(positions[-1]) + 1))
            assert packed["position_ids"][row, positions].tolist() == list(range(len(positions)))
            found.append(ids[positions].tolist())
    assert sorted(found) == sorted(documents)
    assert int((packed["document_ids"] > 0).sum()) == sum(map(len, documents))


@given(documents=lists_of_documents)
def test_no_two_rows_could_be_one(documents):
    used = (pack_sequences(documents, 8)["document_ids"] > 0).sum(1).sort().values
    assert len(used) == 1 or int(used[0] + used[1]) > 8


@given(documents=lists_of_documents, seed=st.integers(0, 99))
def test_mean_over_documents_is_that_of_separate_rows(documents, seed):
    packed = pack_sequences(documents, 8, causal=False, weights="document")
    # Any loss that depends on the token and its position alone.
    losses = torch.rand(10, 8, generator=torch.Generator().manual_seed(seed))
    weighted = packed["loss_weights"] * losses[packed["input_ids"], packed["position_ids"]]
    mean = weighted.sum() / packed["loss_weights"].sum()
    expected = torch.stack([losses[torch.tensor(ids), torch.arange(len(ids))].mean() for ids in documents]).mean()
    torch.testing.assert_close(mean, expected)


@pytest.mark.parametrize("causal", [False, True])
def test_mask(causal):
    ids = torch.tensor([[1, 1, 2, 2, 0, 0]])
    mask = block_diagonal_mask(ids, causal)
    assert mask.shape == (1, 1, 6, 6)
    for i in range(6):
        for j in range(6):
            assert bool(mask[0, 0, i, j]) == (bool(ids[0, i] == ids[0, j]) and (j <= i or not causal))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_in_a_row_is_that_of_each_document_alone(causal):
    torch.manual_seed(0)
    documents = [list(range(n)) for n in (5, 2, 3, 6)]
    packed = pack_sequences(documents, 8, causal)
    queries, keys, values = torch.randn(3, 6, 4)  # by token, which here is the position in the document
    projections = [table[packed["input_ids"]].unsqueeze(1) for table in (queries, keys, values)]
    mask = block_diagonal_mask(packed["document_ids"], causal)
    outputs = F.scaled_dot_product_attention(*projections, attn_mask=mask)[:, 0]
    assert outputs.isfinite().all()  # of padding too
    for row, numbers in enumerate(packed["document_ids"]):
        for number in range(1, int(numbers.max()) + 1):
            length = int((numbers == number).sum())
            alone = [table[:length][None, None] for table in (queries, keys, values)]
            expected = F.scaled_dot_product_attention(*alone, is_causal=causal)[0, 0]
            torch.testing.assert_close(outputs[row, numbers == number], expected)


def attention_inputs(causal):
    torch.manual_seed(0)
    ids = pack_sequences([list(range(n)) for n in (5, 2, 3, 6, 1, 4)], 8, causal)["document_ids"]
    return ids, [torch.randn(len(ids), 2, 8, 16, requires_grad=True) for _ in range(3)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_attention_by_blocks(causal):
    ids, inputs = attention_inputs(causal)
    inputs = [tensor.detach() for tensor in inputs]  # FlexAttention has no backward pass on the CPU
    expected = F.scaled_dot_product_attention(*inputs, attn_mask=block_diagonal_mask(ids, causal))
    torch.testing.assert_close(flex_attention(*inputs, block_mask=document_block_mask(ids, causal)), expected)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_by_offsets_has_the_same_outputs_and_gradients(causal):
    ids, inputs = attention_inputs(causal)
    offsets, longest = document_offsets(ids)
    # Of the concatenated rows, (B * S, H, D), as varlen_attn takes them on a GPU; each document by itself here.
    tensors = [tensor.transpose(1, 2).flatten(0, 1) for tensor in inputs]
    parts = [
        F.scaled_dot_product_attention(*(tensor[begin:end].transpose(0, 1) for tensor in tensors), is_causal=causal)
        for begin, end in itertools.pairwise(offsets.tolist())
    ]
    assert longest == max(part.shape[1] for part in parts)
    found = torch.cat(parts, dim=1).unflatten(1, (len(ids), -1)).transpose(0, 1)
    expected = F.scaled_dot_product_attention(*inputs, attn_mask=block_diagonal_mask(ids, causal))
    gradients = [torch.autograd.grad(output.square().sum(), inputs) for output in (expected, found)]
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients[1], gradients[0])


@given(lists_of_documents)
def test_offsets_are_where_documents_begin(documents):
    ids = pack_sequences(documents, 8)["document_ids"]
    offsets, longest = document_offsets(ids)
    assert offsets.dtype == torch.int32
    assert (offsets[0], offsets[-1]) == (0, ids.numel())
    flat = ids.flatten()
    for begin, end in itertools.pairwise(offsets.tolist()):
        assert len(set(flat[begin:end].tolist())) == 1
        assert begin // 8 == (end - 1) // 8  # never over the end of a row
        assert end - begin <= longest
    empty = int((ids == 0).any(1).sum())
    assert len(offsets) == len(documents) + empty + 1


def test_rows_of_a_given_number():
    packed = pack_sequences([[1, 2, 3], [4]], 4, num_rows=3)
    assert packed["input_ids"].shape == (3, 4)
    assert not packed["document_ids"][1:].any()
    assert (packed["labels"][1:] == -100).all()
    with pytest.raises(ValueError, match="2 rows of 4 tokens, but num_rows is 1"):
        pack_sequences([[1, 2, 3], [4, 5]], 4, num_rows=1)


def test_in_a_loader():
    documents = [torch.arange(n) for n in (1, 3, 2, 4)]
    loader = DataLoader(documents, batch_size=2, collate_fn=SequencePacking(4, num_rows=2, keep=("input_ids",)))
    batches = list(loader)
    assert [list(batch) for batch in batches] == [["input_ids"], ["input_ids"]]
    assert batches[0]["input_ids"].tolist() == [[0, 1, 2, 0], [0, 0, 0, 0]]
    assert batches[1]["input_ids"].tolist() == [[0, 1, 2, 3], [0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "empty"),
        ([[]], r"documents\[0\] has 0 tokens"),
        ([[1], [1, 2, 3, 4, 5]], r"documents\[1\] has 5 tokens"),
        ([{"labels": [1]}], "no 'input_ids'"),
        ([{"input_ids": [1, 2], "label": 3}], "entire document"),
        ([{"input_ids": [1]}, {"input_ids": [1], "labels": [1]}], "same keys"),
    ],
)
def test_wrong_documents(documents, message):
    with pytest.raises(ValueError, match=message):
        pack_sequences(documents, 4)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="max_seq_length"):
        SequencePacking(0)
    with pytest.raises(ValueError, match=r"tokenn.*Did you mean 'token'"):
        SequencePacking(4, weights="tokenn")
    with pytest.raises(ValueError, match="num_rows"):
        SequencePacking(4, num_rows=0)
    with pytest.raises(ValueError, match="Did you mean 'position_ids'"):
        SequencePacking(4, keep=["positions_ids"])([[1]])
    with pytest.raises(TypeError, match=r"keep must be a list of strings, but got 'input_ids'; write \['input_ids'\]"):
        SequencePacking(4, keep="input_ids")


@pytest.mark.parametrize(
    "call",
    [
        lambda causal: SequencePacking(4, causal),
        lambda causal: pack_sequences([[1]], 4, causal),
        lambda causal: block_diagonal_mask(torch.ones(1, 2), causal),
        lambda causal: document_block_mask(torch.ones(1, 2), causal),
    ],
)
def test_causal_is_a_boolean(call):
    with pytest.raises(TypeError, match="causal must be True or False, but got 'no'"):
        call("no")


@pytest.mark.parametrize("by", ["positions", "mask"])
def test_llama_gives_each_document_what_it_gets_alone(by):
    """Causal models of transformers distinguish documents by their positions, or accept the mask.

    With a cache, which they use by default, they would silently mix documents.
    """
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, vocab_size=50
    )
    model = transformers.LlamaForCausalLM(config).eval()
    documents = [torch.randint(3, 50, (n,)) for n in (5, 2, 3, 6)]
    packed = pack_sequences(documents, 8)
    mask = None if by == "positions" else block_diagonal_mask(packed["document_ids"], causal=True)
    outputs = model(
        input_ids=packed["input_ids"], position_ids=packed["position_ids"], attention_mask=mask, use_cache=False
    ).logits
    found = {}
    for row, numbers in enumerate(packed["document_ids"]):
        for number in range(1, int(numbers.max()) + 1):
            ids = packed["input_ids"][row, numbers == number]
            found[len(ids)] = outputs[row, numbers == number]
    for ids in documents:
        torch.testing.assert_close(found[len(ids)], model(input_ids=ids[None]).logits[0], rtol=1e-4, atol=1e-5)


def test_documents_of_a_generator_some_with_masks():
    documents = ({"input_ids": ids, **mask} for ids, mask in [([1, 2, 0], {"attention_mask": [1, 1, 0]}), ([3], {})])
    packed = pack_sequences(documents, 3)
    assert packed["input_ids"].tolist() == [[1, 2, 3]]


def test_a_mask_of_another_length():
    with pytest.raises(ValueError, match=r"documents\[0\]\['attention_mask'\] must have one entry for each of its 2"):
        pack_sequences([{"input_ids": [1, 2], "attention_mask": [1]}], 4)


@given(documents=lists_of_documents, capacity=st.integers(8, 20))
def test_rows_are_filled_best(documents, capacity):
    """The reference: longest first, into the row with the least space that suffices."""
    rows: list[list[list[int]]] = []
    for document in sorted(documents, key=len, reverse=True):
        space = [capacity - sum(map(len, row)) for row in rows]
        suitable = [(left, row) for row, left in enumerate(space) if left >= len(document)]
        if suitable:
            rows[min(suitable)[1]].append(document)
        else:
            rows.append([document])
    expected = [[token for document in row for token in document] for row in rows]
    packed = pack_sequences(documents, capacity)
    assert [ids[: len(row)].tolist() for ids, row in zip(packed["input_ids"], expected, strict=True)] == expected
    assert [int((numbers > 0).sum()) for numbers in packed["document_ids"]] == [len(row) for row in expected]
