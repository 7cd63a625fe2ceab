"""Inspect a `transformers` model and its outputs: causal or not, forward arguments, loss, logits, configuration."""

from __future__ import annotations

import inspect
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from composer._lazy import import_extra
from composer._text import first_of
from composer.models._adapters import maybe_get_underlying_model
from composer.precision import widest_dtype
from composer.warnings import ComposerWarning

__all__ = [
    "IGNORED",
    "arguments_of",
    "as_json",
    "configuration_of",
    "count_targets",
    "decode_continuations",
    "forward_arguments",
    "generation_arguments",
    "is_causal",
    "logits_of",
    "loss_of",
    "metric_labels",
    "resize_embeddings",
    "shifts_labels",
    "weighted_labels",
    "without_cache",
]

# The label that the losses of transformers models leave out.
IGNORED = -100

_log = logging.getLogger("composer.models.huggingface")

# Registered as causal, but their loss does not shift the labels.
_UNSHIFTED = {"XLMWithLMHeadModel", "XLNetLMHeadModel"}


def resize_embeddings(model: Any, tokenizer: Any, may_resize: bool) -> bool:
    """Resize the embeddings of a model if the tokenizer has more tokens; return whether they were resized.

    Args:
        model: The model.
        tokenizer: The tokenizer, or None.
        may_resize: Whether resizing is allowed.

    Raises:
        ValueError: Resizing is needed and not allowed.
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
            f"The tokenizer has {len(tokenizer)} tokens, but the model has embeddings for {known}. Use the tokenizer "
            f"of the model, or set allow_embedding_resizing=True."
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
    """Return the number of token embeddings of a model, from its input embeddings or its configuration."""
    if hasattr(model, "get_input_embeddings"):
        return getattr(model.get_input_embeddings(), "num_embeddings", None)
    return getattr(model.config, "vocab_size", None)


def shifts_labels(model: nn.Module, requested: bool | None) -> bool:
    """Return whether metrics must compare position i of a model's output with label i + 1.

    Args:
        model: The model.
        requested: Value of the user's argument; None for the default of the model class.
    """
    found = is_causal(model)
    if requested is False and found:
        message = (
            f"shift_labels=False, but {type(model).__name__} is a causal language model, which predicts the next label "
            f"at each position: its loss and its metrics will not agree."
        )
        warnings.warn(message, ComposerWarning, stacklevel=3)
    return found if requested is None else requested


def is_causal(model: nn.Module) -> bool:
    """Return whether a model is a known causal language model, which predicts the next label at each position.

    Args:
        model: The model.
    """
    auto: Any = import_extra("transformers.models.auto.modeling_auto", "nlp", "HuggingFaceModel")
    names: set[str] = set()
    for table in (auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES):
        for value in table.values():
            names.update([value] if isinstance(value, str) else value)
    is_known = any(base.__name__ in names - _UNSHIFTED for base in type(model).__mro__)
    return is_known and not getattr(cast(Any, model).config, "is_encoder_decoder", False)


def generation_arguments(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``generate`` in a batch with the mode "generate".

    Args:
        batch: The batch.

    >>> generation_arguments({"generation_length": 5, "generation_kwargs": {"do_sample": True}})
    {'max_new_tokens': 5, 'do_sample': True}
    """
    length = {"max_new_tokens": batch["generation_length"]} if "generation_length" in batch else {}
    return {**length, **batch.get("generation_kwargs", {})}


def decode_continuations(tokenizer: Any, tokens: Tensor) -> list[str]:
    """Decode generated continuations, restoring the leading space that some tokenizers drop.

    Args:
        tokenizer: The tokenizer.
        tokens: Generated tokens, (B, S).
    """
    texts: list[str] = tokenizer.batch_decode(tokens, skip_special_tokens=True)
    # Tokenizers such as GPT-2's, whose tokens include the preceding space, decode it themselves.
    has_spaces = len(tokenizer(" a", add_special_tokens=False)["input_ids"]) == 1
    return texts if has_spaces else [f" {text}" for text in texts]


def arguments_of(model: nn.Module) -> frozenset[str] | None:
    """Return the argument names of a model's ``forward``, or None if it accepts any.

    Args:
        model: The model.

    >>> sorted(arguments_of(nn.Linear(1, 1)))
    ['input']
    """
    parameters = inspect.signature(model.forward).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return frozenset(one.name for one in parameters if one.kind in kinds) or None


def forward_arguments(model: nn.Module, batch: Mapping[str, Any], known: frozenset[str] | None) -> dict[str, Any]:
    """Return the entries of a batch that the forward pass of a model accepts.

    Args:
        model: The model.
        batch: The batch.
        known: The argument names of the model, as :func:`arguments_of` returns them.

    Raises:
        ValueError: There are none.

    >>> forward_arguments(nn.Linear(1, 1), {"input": 1, "index": 2}, frozenset({"input"}))
    {'input': 1}
    """
    arguments = {name: value for name, value in batch.items() if known is None or name in known}
    if not arguments:
        raise ValueError(
            f"The batch has the keys {first_of(list(batch))}, but {type(model).__name__} accepts none of them; it "
            f"accepts {first_of(sorted(known or ()))}."
        )
    return arguments


def _are_classes(model: nn.Module, labels: Tensor) -> bool:
    """Return whether labels are classes, of which a loss can ignore some, rather than the numbers of a regression."""
    if labels.is_floating_point():
        return False
    config = getattr(maybe_get_underlying_model(model), "config", None)
    num_labels: Any = getattr(config, "num_labels", None)
    if getattr(config, "problem_type", None) not in ({None, "regression"} if num_labels == 1 else {"regression"}):
        return True
    # A language model may have such a configuration too, but its labels are tokens, of which a row has many.
    return labels.ndim == 0 or labels.numel() != labels.shape[0] * num_labels


def weighted_labels(model: nn.Module, batch: Mapping[str, Any], *, check: bool = False) -> Any:
    """Return the labels of a batch, those of weight 0 ignored, for a loss that gives all labels the same weight.

    Args:
        model: The model.
        batch: A batch, perhaps with ``"labels"`` and ``"loss_weights"``.
        check: Whether to check that weights on a device are 0 or 1, which waits for it; on the CPU they always are.

    Raises:
        ValueError: A weight is neither 0 nor 1; or there is not one for each label; or the labels are not classes.

    >>> batch = {"labels": torch.tensor([5, 6, 7]), "loss_weights": torch.tensor([1.0, 0.0, 1.0])}
    >>> weighted_labels(nn.Identity(), batch)
    tensor([   5, -100,    7])
    """
    labels, weights = batch.get("labels"), batch.get("loss_weights")
    if weights is None or not isinstance(labels, Tensor):
        return labels
    weights = torch.as_tensor(weights, device=labels.device)
    if weights.shape != labels.shape:
        raise ValueError(
            f"The batch must have one of the 'loss_weights' for each of the 'labels', but their shapes are "
            f"{tuple(weights.shape)} and {tuple(labels.shape)}."
        )
    if not _are_classes(model, labels):  # whatever the weights are: to look at them would wait for the device
        raise ValueError(
            f"The batch has 'loss_weights', but its 'labels' of {labels.dtype} are not classes: the loss of "
            f"transformers models gives all labels the same weight, and can ignore only classes. Leave out "
            f"'loss_weights', and samples whose weight is 0, or use a model of your own whose loss uses the weights."
        )
    if (check or weights.is_cpu) and bool(((weights != 0) & (weights != 1)).any()):
        raise ValueError(
            "The batch has 'loss_weights' other than 0 and 1, but the loss of transformers models gives all labels the "
            "same weight. Use SequencePacking(weights='token'), or a model of your own whose loss uses the weights."
        )
    return labels.long().masked_fill(weights == 0, IGNORED)  # bytes and booleans cannot be -100


def metric_labels(model: nn.Module, batch: Mapping[str, Any], *, takes_weights: bool) -> Any:
    """Return the labels of a batch for metrics: those of weight 0 are ignored, as in the loss.

    Args:
        model: The model.
        batch: A batch, perhaps with ``"labels"`` and ``"loss_weights"``.
        takes_weights: Whether the model takes the weights, which then may have any shape, and labels any type.

    Raises:
        ValueError: As :func:`weighted_labels`, unless the model takes the weights.
    """
    labels, weights = batch.get("labels"), batch.get("loss_weights")
    if takes_weights and isinstance(labels, Tensor):
        same = isinstance(weights, Tensor) and weights.shape == labels.shape
        if not same or not _are_classes(model, labels):
            return labels
    return weighted_labels(model, batch)


def count_targets(model: nn.Module, batch: Mapping[str, Any], *, takes_weights: bool, shift: bool) -> Tensor | None:
    """Return the number of labels over which a loss averages, a 0-d tensor; None if they are not classes.

    Args:
        model: The model.
        batch: A batch, perhaps with ``"labels"`` and ``"loss_weights"``.
        takes_weights: Whether the model takes the weights, and its loss divides by their sum, which is then returned.
        shift: Whether the first label of each row is not predicted.

    >>> batch = {"labels": torch.tensor([[5, 6, -100]]), "loss_weights": torch.tensor([[0.0, 0.5, 0.0]])}
    >>> count_targets(nn.Identity(), batch, takes_weights=True, shift=True)
    tensor(0.5000, dtype=torch.float64)
    >>> count_targets(nn.Identity(), {"labels": batch["labels"]}, takes_weights=True, shift=True)
    tensor(1)
    """
    labels = batch.get("labels") if takes_weights else weighted_labels(model, batch)
    if not isinstance(labels, Tensor) or not _are_classes(model, labels):
        return None
    weights = batch.get("loss_weights") if takes_weights else None
    counted, dtype = labels != IGNORED, torch.int64
    if isinstance(weights, Tensor) and weights.shape == labels.shape:
        counted, dtype = weights, widest_dtype(weights.device)
    if shift and counted.ndim > 1:
        counted = counted[..., 1:]
    return counted.sum(dtype=dtype)


def without_cache(model: nn.Module, arguments: Mapping[str, Any], known: frozenset[str] | None) -> dict[str, Any]:
    """Return the arguments of a forward pass with ``use_cache=False``, unless they choose or continue a cache.

    Only generation needs keys and values of earlier tokens. With a cache, which configurations enable by default,
    models do not look for documents packed into a row, and let them attend to each other. Models with an encoder and
    a decoder do not take packed rows, and are left as they are.

    Args:
        model: The model.
        arguments: The arguments.
        known: The argument names of the model, as :func:`arguments_of` returns them.

    >>> without_cache(nn.Linear(1, 1), {"input_ids": [1]}, frozenset({"input_ids", "use_cache"}))
    {'use_cache': False, 'input_ids': [1]}
    """
    has_cache = known is not None and "use_cache" in known
    is_chosen = arguments.get("past_key_values") is not None
    if not has_cache or is_chosen or getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return dict(arguments)
    return {"use_cache": False, **arguments}


def loss_of(outputs: Any) -> Tensor | None:
    """Return the loss in the outputs of a model, or None.

    Args:
        outputs: A mapping, a tuple whose first entry is the loss, or an object with an attribute ``loss``.

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
    """Return the logits in the outputs of a model.

    Args:
        outputs: A mapping, a tuple, in which a loss may precede the logits, or an object with an attribute ``logits``.

    Raises:
        ValueError: The mapping has no logits.

    >>> logits_of((torch.tensor(0.5), torch.ones(2, 3))).shape
    torch.Size([2, 3])
    """
    if isinstance(outputs, Mapping):
        if "logits" not in outputs:
            raise ValueError(
                f"use_logits=True, but the model returns {first_of(list(outputs))}. Set use_logits=False, and use "
                f"metrics that accept these outputs."
            )
        return cast("Mapping[str, Tensor]", outputs)["logits"]
    if hasattr(outputs, "logits"):
        return outputs.logits
    return outputs[1] if outputs[0].ndim == 0 else outputs[0]


def configuration_of(model: Any) -> dict[str, Any]:
    """Return the metadata of a model for checkpoints: ``config`` and, if present, ``generation_config``.

    Args:
        model: A transformers model.
    """
    model_class = type(model)
    config = {**_as_dict(model.config), "architectures": [model_class.__name__]}
    name = f"{model_class.__module__}.{model_class.__name__}"
    described: dict[str, Any] = {"config": {"file_extension": ".json", "content": config, "class": name}}
    if getattr(model, "generation_config", None) is not None:
        content = _as_dict(model.generation_config)
        described["generation_config"] = {"file_extension": ".json", "content": content}
    return described


def _as_dict(config: Any) -> dict[str, Any]:
    """Return a configuration as JSON values; models from other packages may have a configuration of any class."""
    if hasattr(config, "to_json_string"):
        return json.loads(config.to_json_string())
    return as_json(config.to_dict() if hasattr(config, "to_dict") else vars(config))


def as_json(content: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration as JSON values: sets become sorted lists, other objects become strings.

    Args:
        content: The configuration.

    >>> as_json({"target_modules": {"v", "q"}})
    {'target_modules': ['q', 'v']}
    """
    return json.loads(
        json.dumps(content, default=lambda value: sorted(value) if isinstance(value, set) else str(value))
    )
