"""Attention with linear biases (ALiBi): encode positions as a penalty on distance in the attention scores.

    softmax(q_i . k_j / sqrt(d) - m_h * |i - j|)            m_h = 2 ** (-8 h / H),  h = 1 ... H

Paper: Train Short, Test Long, Press et al. 2022, https://arxiv.org/abs/2108.12409
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from composer._device_copies import copied_to
from composer.nn._forward_context import autocast_dtype

__all__ = ["NoPositions", "NoRotation", "add_alibi", "alibi_bias", "alibi_slopes", "has_alibi", "scores_dtype"]

_ATTENTION_ARGUMENTS = (
    "query",
    "key",
    "value",
    "key_padding_mask",
    "need_weights",
    "attn_mask",
    "average_attn_weights",
    "is_causal",
)


def alibi_slopes(num_heads: int, device: torch.device | str | None = None) -> Tensor:
    """Return the distance penalty of each head, (H,), in float32.

    For a power of two these are ``2 ** (-8 h / H)``, h from 1 to H. For other numbers they are the slopes of the next
    lower power of two, followed by every second one of the next higher.

    Args:
        num_heads: H, at least 1.
        device: The device of the slopes; the values are bit-identical on each.

    Raises:
        ValueError: ``num_heads`` is less than 1.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    >>> alibi_slopes(3)
    tensor([0.0625, 0.0039, 0.2500])

    Paper: https://arxiv.org/abs/2108.12409 (Press et al. 2022)
    """
    if num_heads < 1:
        raise ValueError(f"num_heads must be at least 1, but got {num_heads}.")
    lower = 2 ** int(math.log2(num_heads))
    powers = [8 * head / lower for head in range(1, lower + 1)]
    powers += [4 * head / lower for head in range(1, 2 * lower, 2)][: num_heads - lower]
    # Computed on the CPU, so that they are bit-identical on every device.
    slopes = torch.tensor([2.0**-power for power in powers], dtype=torch.float32, device="cpu")
    return copied_to(slopes, torch.get_default_device() if device is None else torch.device(device))


def alibi_bias(
    num_heads: int,
    query_positions: Tensor,
    key_positions: Tensor,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the bias to add to attention scores, (H, Q, K): ``-slope * |query position - key position|``.

    With a causal mask this is ALiBi as published; without one it is its symmetric variant for encoders. The bias is
    relative rather than a multiple of the key position, which gives the same attention: nearby keys, which matter most,
    get small values, which are exact in half precision too.

    Args:
        num_heads: H.
        query_positions: Positions of the queries in tokens, (Q,).
        key_positions: Positions of the keys in tokens, (K,).
        dtype: The dtype of the scores.

    >>> alibi_bias(1, torch.arange(3), torch.arange(3)) * 256
    tensor([[[-0., -1., -2.],
             [-1., -0., -1.],
             [-2., -1., -0.]]])

    Paper: https://arxiv.org/abs/2108.12409 (Press et al. 2022)
    """
    distance = (query_positions[:, None] - key_positions[None, :]).abs()
    return (distance * -alibi_slopes(num_heads, distance.device)[:, None, None]).to(dtype)


def add_alibi(attention: nn.MultiheadAttention) -> None:
    """Make a self-attention layer add :func:`alibi_bias` to its scores, in place.

    It registers a forward pre-hook that extends ``attn_mask``, which also disables torch's fused inference path, which
    would ignore the bias. Parameters and their names do not change. The mask format of torch requires a copy of the
    bias per sample, (B * H, L, L).

    Args:
        attention: The layer; it must be called with the same positions for queries and keys.

    >>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> add_alibi(attention)
    >>> x = torch.zeros(1, 3, 8)
    >>> attention(x, x, x, average_attn_weights=False)[1][0, 0, 2]
    tensor([0.3127, 0.3329, 0.3544], grad_fn=<SelectBackward0>)
    """
    if not has_alibi(attention):
        attention.register_forward_pre_hook(_AddBias(), with_kwargs=True)


def has_alibi(attention: nn.MultiheadAttention) -> bool:
    """Return whether :func:`add_alibi` was applied to a layer.

    >>> has_alibi(nn.MultiheadAttention(8, 2))
    False
    """
    return any(isinstance(hook, _AddBias) for hook in attention._forward_pre_hooks.values())


class NoPositions(nn.Module):
    """Replaces a position embedding, and adds nothing.

    >>> NoPositions()(torch.arange(3)[None])
    tensor(0)
    """

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return 0, to be added to embeddings of any shape."""
        return position_ids.new_zeros(())


class NoRotation(nn.Module):
    """Replaces a rotary position embedding by the identity rotation.

    Args:
        rotation: The module to replace, which determines the shape of cosines and sines.

    >>> class Rotation(nn.Module):
    ...     def forward(self, x, position_ids):
    ...         return position_ids.cos(), position_ids.sin()
    >>> NoRotation(Rotation())(torch.zeros(1), torch.arange(2))
    (tensor([1., 1.]), tensor([0., 0.]))
    """

    def __init__(self, rotation: nn.Module) -> None:
        super().__init__()
        self.rotation = rotation

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of angle 0."""
        cosines, sines = self.rotation(*args, **kwargs)
        return torch.ones_like(cosines), torch.zeros_like(sines)


class _AddBias:
    """Extends the mask of a call of ``nn.MultiheadAttention``."""

    def __call__(
        self, attention: nn.MultiheadAttention, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        given = dict(zip(_ATTENTION_ARGUMENTS, args, strict=False)) | kwargs
        mask: Tensor | None = given.get("attn_mask")
        if mask is None and given.get("is_causal"):
            return None  # torch raises the error
        query: Tensor = given["query"]
        dtype = scores_dtype(query)
        batch_first = attention.batch_first and query.ndim == 3
        queries, keys = (given[name].shape[1 if batch_first else 0] for name in ("query", "key"))
        positions = torch.arange(keys, device=query.device)
        # In inference with a cache, the queries are the last positions of the sequence.
        bias = alibi_bias(attention.num_heads, positions[keys - queries :], positions, dtype)
        if query.ndim == 3:
            samples = query.shape[0 if batch_first else 1]
            bias = bias.expand(samples, *bias.shape).flatten(0, 1)
        padding: Tensor | None = given.get("key_padding_mask")
        if padding is not None and padding.dtype == torch.bool:
            # torch requires both masks to have the same dtype.
            given["key_padding_mask"] = bias.new_zeros(padding.shape).masked_fill_(padding, -torch.inf)
        given["attn_mask"] = bias if mask is None else _join(bias, mask)
        given["is_causal"] = False  # True would promise a purely causal mask
        return (), given


def scores_dtype(like: Tensor) -> torch.dtype:
    """Return the dtype in which attention computes scores for a tensor: the tensor's dtype, or that of autocast.

    Args:
        like: The queries, or what they are computed from.

    >>> scores_dtype(torch.zeros(1))
    torch.float32
    """
    return autocast_dtype(like.device.type) or like.dtype


def _join(bias: Tensor, mask: Tensor) -> Tensor:
    """Add a mask, in which True means not to attend."""
    return bias.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
