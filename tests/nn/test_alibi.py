from __future__ import annotations

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from composer.nn.alibi import NoPositions, NoRotation, add_alibi, alibi_bias, alibi_slopes, has_alibi, scores_dtype


def test_slopes_of_eight_heads_are_those_of_the_paper():
    assert alibi_slopes(8).tolist() == [2.0**-k for k in range(1, 9)]


def test_slopes_of_twelve_heads_are_eight_and_every_second_of_sixteen():
    sixteen = alibi_slopes(16).tolist()
    assert alibi_slopes(12).tolist() == [*alibi_slopes(8).tolist(), *sixteen[0:8:2]]


def test_slopes_are_the_nearest_numbers_whatever_the_device():
    for num_heads in range(1, 200):
        lower = 2 ** (num_heads.bit_length() - 1)
        powers = [8 * head / lower for head in range(1, lower + 1)]
        powers += [8 * head / (2 * lower) for head in range(1, 2 * (num_heads - lower), 2)]
        assert torch.equal(alibi_slopes(num_heads), torch.tensor([2.0**-power for power in powers]))
    with torch.device("meta"):
        assert alibi_slopes(3).device.type == "meta"
        assert alibi_slopes(3, "cpu").tolist() == [2.0**-4, 2.0**-8, 2.0**-2]


@given(num_heads=st.integers(1, 200))
def test_slopes_are_distinct_and_between_0_and_1(num_heads):
    slopes = alibi_slopes(num_heads)
    assert slopes.shape == (num_heads,)
    assert len(set(slopes.tolist())) == num_heads
    assert slopes.min() > 0
    assert slopes.max() < 1


@pytest.mark.parametrize("num_heads", [0, -1])
def test_wrong_number_of_heads(num_heads):
    with pytest.raises(ValueError, match="num_heads"):
        alibi_slopes(num_heads)


@given(num_heads=st.integers(1, 9), queries=st.integers(1, 9), keys=st.integers(1, 9), shift=st.integers(0, 50))
def test_bias_knows_nothing_but_distance(num_heads, queries, keys, shift):
    q, k = torch.arange(queries), torch.arange(keys)
    bias = alibi_bias(num_heads, q, k)
    assert torch.equal(bias, alibi_bias(num_heads, q + shift, k + shift))
    slopes = alibi_slopes(num_heads)
    for i in range(queries):
        for j in range(keys):
            assert torch.equal(bias[:, i, j], -slopes * abs(i - j))


def test_bias_near_a_token_is_exact_in_half_precision():
    positions = torch.arange(4096)
    half, full = (alibi_bias(8, positions[-1:], positions, dtype) for dtype in (torch.bfloat16, torch.float32))
    assert torch.equal(half[..., -128:].float(), full[..., -128:])


def _attention(**arguments):
    torch.manual_seed(0)
    return nn.MultiheadAttention(8, 2, **arguments).eval()


def _by_hand(attention, x, allowed):
    """Attention written out; x (B, L, E), allowed (B or 1, 1, L, L)."""
    queries, keys, values = F.linear(x, attention.in_proj_weight, attention.in_proj_bias).chunk(3, -1)
    queries, keys, values = (projection.unflatten(-1, (2, 4)).transpose(1, 2) for projection in (queries, keys, values))
    scores = queries @ keys.transpose(-1, -2) / 4**0.5
    positions = torch.arange(x.shape[1])
    scores = scores - alibi_slopes(2)[:, None, None] * (positions[:, None] - positions).abs()
    scores = scores.masked_fill(~allowed, -torch.inf)
    return attention.out_proj((scores.softmax(-1) @ values).transpose(1, 2).flatten(-2))


CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()
EVERY = torch.ones(1, 1, 5, 5, dtype=torch.bool)
PADDING = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])


@pytest.mark.parametrize("gradients", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize(
    ("arguments", "allowed"),
    [
        ({}, EVERY),
        ({"attn_mask": ~CAUSAL}, CAUSAL),
        ({"attn_mask": ~CAUSAL, "is_causal": True, "need_weights": False}, CAUSAL),
        ({"attn_mask": torch.zeros(5, 5).masked_fill(~CAUSAL, -torch.inf)}, CAUSAL),
        ({"attn_mask": (~CAUSAL).expand(6, 5, 5)}, CAUSAL),
        ({"key_padding_mask": PADDING}, ~PADDING[:, None, None]),
        ({"key_padding_mask": PADDING, "attn_mask": ~CAUSAL}, ~PADDING[:, None, None] & CAUSAL),
    ],
    ids=["none", "bool", "causal", "float", "heads", "padding", "both"],
)
def test_attention_equals_the_formula(arguments, allowed, gradients):
    attention = _attention(batch_first=True)
    x = torch.randn(3, 5, 8)
    plain = attention(x, x, x, **arguments)[0]
    add_alibi(attention)
    with torch.set_grad_enabled(gradients):
        outputs = attention(x, x, x, **arguments)[0]
    torch.testing.assert_close(outputs, _by_hand(attention, x, allowed))
    assert not torch.allclose(outputs, plain, atol=1e-3)


def test_sequence_first_and_no_batch():
    x = torch.randn(3, 5, 8)
    batch_first, sequence_first = _attention(batch_first=True), _attention()
    for attention in (batch_first, sequence_first):
        add_alibi(attention)
    expected = batch_first(x, x, x)[0]
    y = x.transpose(0, 1)
    torch.testing.assert_close(sequence_first(y, y, y)[0].transpose(0, 1), expected)
    torch.testing.assert_close(batch_first(x[0], x[0], x[0])[0], expected[0])


def test_last_query_of_a_sequence():
    """As in generation with a cache of keys."""
    attention = _attention(batch_first=True)
    add_alibi(attention)
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(attention(x[:, -1:], x, x)[0], attention(x, x, x)[0][:, -1:])


def test_promise_of_a_mask_without_one_stays_an_error():
    attention = _attention(batch_first=True)
    add_alibi(attention)
    x = torch.randn(3, 5, 8)
    with pytest.raises(RuntimeError, match="attn_mask"):
        attention(x, x, x, is_causal=True)


def test_weights_copies_and_second_time():
    attention = _attention(batch_first=True)
    names = list(attention.state_dict())
    add_alibi(attention)
    add_alibi(attention)
    assert len(attention._forward_pre_hooks) == 1
    assert list(attention.state_dict()) == names
    x = torch.randn(3, 5, 8)
    expected = attention(x, x, x)[0]
    for twin in (copy.deepcopy(attention), pickle.loads(pickle.dumps(attention))):
        assert has_alibi(twin)
        assert torch.equal(twin(x, x, x)[0], expected)


def test_under_autocast_without_a_warning():
    attention = _attention(batch_first=True).train()
    add_alibi(attention)
    x = torch.randn(3, 5, 8)
    expected = attention(x, x, x, key_padding_mask=PADDING)[0]
    with warnings.catch_warnings(), torch.autocast("cpu", torch.bfloat16):
        warnings.simplefilter("error")
        outputs = attention(x, x, x, key_padding_mask=PADDING)[0]
        assert scores_dtype(x) == torch.bfloat16
    torch.testing.assert_close(outputs.float(), expected, atol=0.02, rtol=0.02)


def test_modules_in_place_of_positions():
    embeddings = torch.randn(2, 3, 4, dtype=torch.bfloat16)
    assert torch.equal(embeddings + NoPositions()(torch.arange(3)[None]), embeddings)

    class Rotation(nn.Module):
        def forward(self, x, position_ids, scale=1.0):
            return scale * x.cos(), scale * x.sin()

    cosines, sines = NoRotation(Rotation())(embeddings, position_ids=None, scale=2.0)
    assert torch.equal(cosines, torch.ones_like(embeddings))
    assert torch.equal(sines, torch.zeros_like(embeddings))


def test_the_dtype_of_scores_of_meta_tensors():
    with torch.autocast("cpu", torch.bfloat16):
        assert scores_dtype(torch.empty(1, device="meta")) == torch.float32
        assert scores_dtype(torch.empty(1)) == torch.bfloat16
