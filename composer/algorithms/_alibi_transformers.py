"""ALiBi for models of Hugging Face `transformers`, through its registry of attention functions.

This module does not import the package: if a model comes from it, it is already imported.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from composer.nn.alibi import NoPositions, NoRotation, alibi_bias, scores_dtype

__all__ = ["ATTENTION", "convert", "pretrained_models"]

ATTENTION = "alibi"
"""The name of the registered attention function."""


def pretrained_models(model: nn.Module) -> list[Any]:
    """Return the outermost transformers models in a model."""
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is None:
        return []
    found = [module for module in model.modules() if isinstance(module, modeling.PreTrainedModel)]
    inner = {part for module in found for part in module.modules() if part is not module}
    return [module for module in found if module not in inner]


def convert(model: Any, max_sequence_length: int) -> bool:
    """Replace the positions of a transformers model by linear biases; return whether the model supports it.

    Models with position embeddings in an ``nn.Embedding`` (BERT-style, GPT-2) lose them; the rotary embeddings of
    Llama-style models become the identity.
    """
    config = model.config
    _check(model)
    embeddings = [
        module for module in model.modules() if isinstance(getattr(module, "position_embeddings", None), nn.Embedding)
    ]
    learned = [module for module in model.modules() if isinstance(getattr(module, "wpe", None), nn.Embedding)]
    rotating = [module for module in model.modules() if isinstance(getattr(module, "rotary_emb", None), nn.Module)]
    rotating = [module for module in rotating if not isinstance(module.rotary_emb, NoRotation)]
    if config._attn_implementation == ATTENTION or not (embeddings or learned or rotating):
        return False
    _register()
    model.set_attn_implementation(ATTENTION)
    if config._attn_implementation != ATTENTION:
        return False  # custom attention implementation; transformers has issued a warning
    for module in embeddings:
        _drop_positions(module, max_sequence_length)
    for module in learned:
        module.wpe = NoPositions()
    for module in rotating:
        module.rotary_emb = NoRotation(module.rotary_emb)
    config.max_position_embeddings = max(max_sequence_length, getattr(config, "max_position_embeddings", 0))
    return True


def _check(model: Any) -> None:
    """Raise for models for which the result would be silently wrong."""
    config, name = model.config, type(model).__name__
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "add_cross_attention", False):
        raise NotImplementedError(
            f"{name} has cross-attention, whose queries and keys belong to different sequences: ALiBi does not define "
            f"their distance. Use a model without it."
        )
    position_type = getattr(config, "position_embedding_type", None) or "absolute"
    if position_type not in ("absolute", "rotary"):
        raise NotImplementedError(
            f"{name} has position_embedding_type={position_type!r}, a position bias. Build the model with 'absolute'."
        )
    if getattr(config, "sub_configs", None):
        raise NotImplementedError(
            f"{name} consists of several models ({', '.join(config.sub_configs)}). Apply ALiBi to its language model, "
            f"for example with apply_alibi(model.language_model, ...)."
        )


def _drop_positions(embeddings: Any, max_sequence_length: int) -> None:
    embeddings.position_embeddings = NoPositions()
    # RoBERTa's positions start after the padding index.
    padding = getattr(embeddings, "padding_idx", None)
    size = max_sequence_length + (0 if padding is None else padding + 1)
    for name in ("position_ids", "token_type_ids"):
        old = getattr(embeddings, name, None)
        if isinstance(old, Tensor) and old.shape[-1] < size:
            values = torch.arange(size, device=old.device) if name == "position_ids" else old.new_zeros(size)
            setattr(embeddings, name, values.expand(1, -1))


def _register() -> None:
    """Register our attention function with transformers; idempotent."""
    masking: Any = sys.modules["transformers.masking_utils"]
    modeling: Any = sys.modules["transformers.modeling_utils"]
    modeling.AttentionInterface.register(ATTENTION, _attention)
    masking.AttentionMaskInterface.register(ATTENTION, _mask)


def _mask(*, config: Any, dtype: torch.dtype = torch.float32, **arguments: Any) -> Tensor:
    """Create the combined mask and bias, (B, H, Q, K), once for all layers of a forward pass.

    B is 1 if the mask is the same for all samples.
    """
    masking: Any = sys.modules["transformers.masking_utils"]
    arguments |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    allowed: Tensor = masking.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"](config=config, dtype=dtype, **arguments)
    if allowed.stride(0) == 0:
        allowed = allowed[:1]
    if config.num_attention_heads == 1:
        return allowed  # indistinguishable from a mask without bias
    queries = torch.arange(allowed.shape[-2], device=allowed.device) + arguments.get("q_offset", 0)
    # The first 5.x releases pass the query positions instead of the offset.
    queries: Tensor = arguments.get("cache_position", queries)
    keys = torch.arange(allowed.shape[-1], device=allowed.device) + arguments.get("kv_offset", 0)
    dtype = scores_dtype(allowed.new_empty(0, dtype=dtype))
    bias = alibi_bias(config.num_attention_heads, queries, keys, dtype)
    return torch.where(allowed, bias, torch.finfo(dtype).min)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **arguments: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attend with the mask of :func:`_mask`, or with a custom mask, to which the bias is added first."""
    modeling: Any = sys.modules["transformers.modeling_utils"]
    heads = query.shape[1]
    if attention_mask is None or heads == 1 or attention_mask.shape[1] != heads:
        attention_mask = _add_bias(module, query, key, attention_mask, arguments.get("is_causal"))
    return modeling.ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, attention_mask, **arguments)


def _add_bias(module: Any, query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool | None) -> Tensor:
    keys = torch.arange(key.shape[-2], device=query.device)
    queries = keys[len(keys) - query.shape[-2] :]
    bias = alibi_bias(query.shape[1], queries, keys, query.dtype)[None]
    if mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        if not causal:
            return bias
        mask = queries[:, None] >= keys
    if mask.dtype == torch.bool:
        return torch.where(mask, bias, torch.finfo(bias.dtype).min)
    return bias + mask
