"""What training has to know of a model of `transformers`, found out from its class and configuration."""

from __future__ import annotations

import inspect
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch import Tensor, nn

from composer._lazy import import_extra
from composer._text import first_of
from composer.warnings import ComposerWarning

__all__ = [
    "arguments_of",
    "as_json",
    "configuration_of",
    "fit_embeddings",
    "generation_arguments",
    "is_causal",
    "logits_of",
    "loss_of",
    "shifts_labels",
    "texts_of",
]

_log = logging.getLogger("composer.models.huggingface")

# Registered as causal, yet they compare each place with its own label.
_UNSHIFTED = {"XLMWithLMHeadModel", "XLNetLMHeadModel"}


def fit_embeddings(model: Any, tokenizer: Any, may_resize: bool) -> bool:
    """Give a model an embedding for each token of a tokenizer; tell whether that took new ones.

    Args:
        model: The model.
        tokenizer: The tokenizer, or None.
        may_resize: Whether it may get new ones.

    Raises:
        ValueError: It needs new ones and must not get them.
    """
    if tokenizer is None:
        _log.warning(
            "The tokenizer was not provided. This means the tokenizer config will not be saved in the checkpoint."
        )
        return False
    known = _num_embeddings(model)
    if known is None or known >= len(tokenizer):
        return False
    if not may_resize:
        raise ValueError(
            f"The tokenizer has {len(tokenizer)} tokens and the model embeddings for {known}. Pass "
            f"the tokenizer of the model, or allow_embedding_resizing=True."
        )
    _log.warning(
        "The number of tokens in the tokenizer is greater than the number of tokens in the model. "
        "Resizing the model embeddings to %d from %d.",
        len(tokenizer),
        known,
    )
    model.resize_token_embeddings(len(tokenizer))
    return True


def _num_embeddings(model: Any) -> int | None:
    """For how many tokens a model has embeddings, by these themselves or by its configuration."""
    if hasattr(model, "get_input_embeddings"):
        return getattr(model.get_input_embeddings(), "num_embeddings", None)
    return getattr(model.config, "vocab_size", None)


def shifts_labels(model: nn.Module, asked: bool | None) -> bool:
    """Tell whether metrics are to compare place i of a model's output with label i + 1.

    Args:
        model: The model.
        asked: What the user says; None asks the class of the model.
    """
    found = is_causal(model)
    if asked is False and found:
        message = (
            f"shift_labels=False, but {type(model).__name__} predicts at each place the next label: its loss and its "
            f"metrics will not agree."
        )
        warnings.warn(message, ComposerWarning, stacklevel=3)
    return found if asked is None else asked


def is_causal(model: nn.Module) -> bool:
    """Tell whether the class of a model is known as one that predicts at each place the next label.

    Args:
        model: The model.
    """
    auto: Any = import_extra("transformers.models.auto.modeling_auto", "nlp", "HuggingFaceModel")
    names: set[str] = set()
    for table in (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):
        for value in table.values():
            names.update([value] if isinstance(value, str) else value)
    is_known = any(kind.__name__ in names - _UNSHIFTED for kind in type(model).__mro__)
    return is_known and not getattr(cast(Any, model).config, "is_encoder_decoder", False)


def generation_arguments(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by which a batch of the mode "generate" wants its texts written.

    Args:
        batch: The batch.

    >>> generation_arguments({"generation_length": 5, "generation_kwargs": {"do_sample": True}})
    {'max_new_tokens': 5, 'do_sample': True}
    """
    length = {"max_new_tokens": batch["generation_length"]} if "generation_length" in batch else {}
    return {**length, **batch.get("generation_kwargs", {})}


def texts_of(tokenizer: Any, tokens: Tensor) -> list[str]:
    """Return texts that go on from others, with the space before them that a tokenizer drops.

    Args:
        tokenizer: The tokenizer.
        tokens: Of each text, (B, S).
    """
    texts: list[str] = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    # Those that have the space in the token of the next word, such as GPT-2's, write it by themselves.
    has_spaces = len(tokenizer(" a", add_special_tokens=False)["input_ids"]) == 1
    return texts if has_spaces else [f" {text}" for text in texts]


def arguments_of(model: nn.Module) -> frozenset[str] | None:
    """Return what the forward pass of a model takes by name; None if anything.

    Args:
        model: The model.

    >>> sorted(arguments_of(nn.Linear(1, 1)))
    ['input']
    """
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(one.name for one in parameters if one.kind in kinds) or None


def loss_of(outputs: Any) -> Tensor | None:
    """Return the loss among what a model has returned, None if there is none.

    Args:
        outputs: A mapping, a tuple that begins with the loss, or an object with an attribute ``loss``.

    >>> loss_of((torch.tensor(0.5), torch.ones(2, 3))), loss_of((torch.ones(2, 3),))
    (tensor(0.5000), None)
    """
    if isinstance(outputs, Mapping):
        return cast("Mapping[str, Tensor]", outputs).get("loss")
    if isinstance(outputs, (tuple, list)):
        first = cast("Sequence[Tensor]", outputs)[0]
        return first if first.ndim == 0 else None
    return getattr(outputs, "loss", None)


def logits_of(outputs: Any) -> Tensor:
    """Return the logits among what a model has returned, where a tuple has the loss before them.

    Args:
        outputs: A mapping, a tuple, or an object with an attribute ``logits``.

    Raises:
        ValueError: The mapping has none.

    >>> logits_of((torch.tensor(0.5), torch.ones(2, 3))).shape
    torch.Size([2, 3])
    """
    if isinstance(outputs, Mapping):
        if "logits" not in outputs:
            raise ValueError(
                f"use_logits=True, but the model returns {first_of(list(outputs))}. Pass use_logits=False, and metrics "
                f"that take all of it."
            )
        return cast("Mapping[str, Tensor]", outputs)["logits"]
    if hasattr(outputs, "logits"):
        return outputs.logits
    return outputs[1] if outputs[0].ndim == 0 else outputs[0]


def configuration_of(model: Any) -> dict[str, Any]:
    """Return what a checkpoint says of a model: ``config`` and, if it has one, ``generation_config``.

    Args:
        model: A model of transformers.
    """
    kind = type(model)
    config = {**_as_dict(model.config), "architectures": [kind.__name__]}
    name = f"{kind.__module__}.{kind.__name__}"
    described: dict[str, Any] = {"config": {"file_extension": ".json", "content": config, "class": name}}
    if getattr(model, "generation_config", None) is not None:
        content = _as_dict(model.generation_config)
        described["generation_config"] = {"file_extension": ".json", "content": content}
    return described


def _as_dict(config: Any) -> dict[str, Any]:
    """What a configuration holds, as JSON has it; that of a model which is none of transformers may be any object."""
    if hasattr(config, "to_json_string"):
        return json.loads(config.to_json_string())
    return as_json(config.to_dict() if hasattr(config, "to_dict") else vars(config))


def as_json(content: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as JSON has it: sets as lists, and what else it does not know as text.

    Args:
        content: The configuration.

    >>> as_json({"target_modules": {"v", "q"}})
    {'target_modules': ['q', 'v']}
    """
    return json.loads(
        json.dumps(content, default=lambda value: sorted(value) if isinstance(value, set) else str(value))
    )
