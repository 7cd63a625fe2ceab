"""Make the inputs of a decoder from the labels, as models with an encoder and a decoder do themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from composer.models._adapters import maybe_get_underlying_model

__all__ = ["decoder_inputs", "require_decoder_inputs"]

_INPUTS = frozenset({"decoder_input_ids", "decoder_inputs_embeds"})


def decoder_inputs(model: Any, batch: Mapping[str, Any]) -> dict[str, Tensor] | None:
    """Return the arguments of a decoder that a model makes from labels: none if the batch has them or it needs none.

    Args:
        model: A transformers model, perhaps with adapters.
        batch: The batch, whose labels must not yet be replaced by the ignored label.

    Returns:
        Entries to add to the batch; or None if they are needed and the model has no method that makes them.
    """
    underlying = maybe_get_underlying_model(model)
    if not getattr(underlying.config, "is_encoder_decoder", False) or not _INPUTS.isdisjoint(batch):
        return {}
    make = getattr(underlying, "prepare_decoder_input_ids_from_labels", None)
    if make is None:
        return None
    ids = make(labels=batch["labels"])
    if getattr(underlying.config, "model_type", None) != "encoder-decoder" or "decoder_attention_mask" in batch:
        return {"decoder_input_ids": ids}
    # This model makes the mask together with the inputs; all others have none by default.
    return {"decoder_input_ids": ids, "decoder_attention_mask": (ids != underlying.config.pad_token_id).to(ids.dtype)}


def require_decoder_inputs(model: Any, batch: Mapping[str, Any], known: frozenset[str] | None) -> dict[str, Tensor]:
    """Return what :func:`decoder_inputs` returns, before labels are ignored: the decoder reads these tokens, too.

    Args:
        model: A transformers model, perhaps with adapters.
        batch: The batch, with labels.
        known: The argument names of the model; None for any.

    Raises:
        ValueError: The model has no method that makes the inputs. Labels that are no sequences are not inputs.
    """
    labels = batch["labels"]
    has_decoder = known is None or "decoder_input_ids" in known
    if not has_decoder or not isinstance(labels, Tensor) or labels.ndim < 2:
        return {}
    found = decoder_inputs(model, batch)
    if found is None:
        raise ValueError(
            f"The batch has 'loss_weights', by which labels are ignored, but "
            f"{type(maybe_get_underlying_model(model)).__name__} makes the inputs of its decoder from the labels. Add "
            f"'decoder_input_ids' to the batch: the labels, shifted to the right by one token."
        )
    return found
