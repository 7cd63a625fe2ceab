"""Attention within packed documents on a GPU: FlexAttention and variable lengths give what a mask gives."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from composer.algorithms.sequence_packing import (
    block_diagonal_mask,
    document_block_mask,
    document_offsets,
    pack_sequences,
)

pytestmark = pytest.mark.gpu

HEADS, FEATURES, LENGTH = 4, 64, 256


def document_ids() -> Tensor:
    lengths = torch.randint(5, 120, (40,), generator=torch.Generator().manual_seed(0)).tolist()
    packed = pack_sequences([[1] * length for length in lengths], LENGTH)
    return packed["document_ids"].cuda()


def by_mask(ids: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=block_diagonal_mask(ids, causal=True))


def by_flex(ids: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from torch.nn.attention.flex_attention import flex_attention

    attend: Any = torch.compile(flex_attention)
    return attend(q, k, v, block_mask=document_block_mask(ids, causal=True))


def by_offsets(ids: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    causal: dict[str, Any] = {"is_causal": True}
    if "window_size" in inspect.signature(varlen_attn).parameters:
        causal = {"window_size": (-1, 0)}
    offsets, longest = document_offsets(ids)
    # (B, H, S, D) to (B * S, H, D), as it takes them
    flat = [each.transpose(1, 2).flatten(0, 1) for each in (q, k, v)]
    mixed = varlen_attn(*flat, offsets, offsets, longest, longest, **causal)
    return mixed.unflatten(0, ids.shape).transpose(1, 2)


@pytest.mark.parametrize("attend", [by_flex, by_offsets], ids=["flex", "variable lengths"])
def test_output_and_gradients_are_those_with_a_mask(attend: Any) -> None:
    ids = document_ids()
    size = len(ids), HEADS, LENGTH, FEATURES
    inputs = [torch.randn(size, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    weights = torch.randn(size, device="cuda", dtype=torch.bfloat16) * (ids > 0)[:, None, :, None]
    exact = [each.detach().double().requires_grad_() for each in inputs]
    found = attend(ids, *inputs)
    (found * weights).sum().backward()
    wanted = by_mask(ids, *exact)
    (wanted * weights).sum().backward()
    of_text = (ids > 0)[:, None, :, None]
    pairs = [(found * of_text, wanted * of_text), *((a.grad, b.grad) for a, b in zip(inputs, exact, strict=True))]
    for ours, theirs in pairs:
        assert (ours - theirs).norm() <= 0.01 * theirs.norm()
