"""Attention with linear biases: what attention needs to know of positions, as a penalty on distance.

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
    """Return how much each head minds distance, (H,), in float32.

    For a power of two these are ``2 ** (-8 h / H)``, h from 1 to H. For other numbers they are the slopes of the next
    lower power of two, followed by every second one of the next higher.

    Args:
        num_heads: H, at least 1.
        device: Where the slopes are; the values are the same bits on each.

    Raises:
        ValueError: There is no head.

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
    # On the host, so that they are the same bits for every device.
    slopes = torch.tensor([2.0**-power for power in powers], dtype=torch.float32, device="cpu")
    return copied_to(slopes, torch.get_default_device() if device is None else torch.device(device))


def alibi_bias(
    num_heads: int,
    query_positions: Tensor,
    key_positions: Tensor,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return what to add to the scores of attention, (H, Q, K): ``-slope * |query position - key position|``.

    Under a causal mask this is ALiBi as published; without one it is its symmetric form for encoders. The bias is
    relative rather than a multiple of the key position, which gives the same attention: near keys, which count most,
    get small numbers, exact in half precision too.

    Args:
        num_heads: H.
        query_positions: Positions of the queries in tokens, (Q,).
        key_positions: Positions of the keys in tokens, (K,).
        dtype: That of the scores.

    >>> alibi_bias(1, torch.arange(3), torch.arange(3)) * 256
    tensor([[[-0., -1., -2.],
             [-1., -0., -1.],
             [-2., -1., -0.]]])

    Paper: https://arxiv.org/abs/2108.12409 (Press et al. 2022)
    """
    distance = (query_positions[:, None] - key_positions[None, :]).abs()
    return (distance * -alibi_slopes(num_heads, distance.device)[:, None, None]).to(dtype)


def add_alibi(attention: nn.MultiheadAttention) -> None:
    """Let a layer of self-attention add :func:`alibi_bias` to its scores from now on, in place.

    Works by a hook before the call that extends ``attn_mask``, which also keeps torch from the fused inference path,
    which knows no bias. Parameters and their names stay. The mask that torch wants has a copy of the bias for each
    sample, (B * H, L, L).

    Args:
        attention: The layer; to be called with the same positions for queries and keys.

    >>> attention = nn.MultiheadAttention(8, 2, batch_first=True)
    >>> add_alibi(attention)
    >>> x = torch.zeros(1, 3, 8)
    >>> attention(x, x, x, average_attn_weights=False)[1][0, 0, 2]
    tensor([0.3127, 0.3329, 0.3544], grad_fn=<SelectBackward0>)
    """
    if not has_alibi(attention):
        attention.register_forward_pre_hook(_AddBias(), with_kwargs=True)


def has_alibi(attention: nn.MultiheadAttention) -> bool:
    """Tell whether :func:`add_alibi` was applied to a layer.

    >>> has_alibi(nn.MultiheadAttention(8, 2))
    False
    """
    return any(isinstance(hook, _AddBias) for hook in attention._forward_pre_hooks.values())


class NoPositions(nn.Module):
    """Stands where a model embeds positions, and adds nothing.

    >>> NoPositions()(torch.arange(3)[None])
    tensor(0)
    """

    def forward(self, position_ids: Tensor) -> Tensor:
        """Return 0, to be added to embeddings of any shape."""
        return position_ids.new_zeros(())


class NoRotation(nn.Module):
    """Stands where a model computes rotary position embeddings, and rotates by nothing.

    Args:
        rotation: The module that it stands for, which gives cosines and sines of the right shape.

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
        """Return the cosines and sines of the angle 0."""
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
            return None  # torch says what is wrong with that
        query: Tensor = given["query"]
        dtype = scores_dtype(query)
        batch_first = attention.batch_first and query.ndim == 3
        queries, keys = (given[name].shape[1 if batch_first else 0] for name in ("query", "key"))
        positions = torch.arange(keys, device=query.device)
        # In inference with a cache the queries are the last of the sequence.
        bias = alibi_bias(attention.num_heads, positions[keys - queries :], positions, dtype)
        if query.ndim == 3:
            samples = query.shape[0 if batch_first else 1]
            bias = bias.expand(samples, *bias.shape).flatten(0, 1)
        padding: Tensor | None = given.get("key_padding_mask")
        if padding is not None and padding.dtype == torch.bool:
            # torch wants both masks to be of one kind.
            given["key_padding_mask"] = bias.new_zeros(padding.shape).masked_fill_(padding, -torch.inf)
        given["attn_mask"] = bias if mask is None else _join(bias, mask)
        given["is_causal"] = False  # a promise that the mask is causal and nothing more
        return (), given


def scores_dtype(like: Tensor) -> torch.dtype:
    """Return the dtype in which attention computes the scores of a tensor: its own, or that of autocast.

    Args:
        like: The queries, or what they are computed from.

    >>> scores_dtype(torch.zeros(1))
    torch.float32
    """
    return autocast_dtype(like.device.type) or like.dtype


def _join(bias: Tensor, mask: Tensor) -> Tensor:
    """Add a mask, in which True means not to attend."""
    return bias.masked_fill(mask, -torch.inf) if mask.dtype == torch.bool else bias + mask
