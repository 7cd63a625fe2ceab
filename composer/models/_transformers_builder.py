"""Build a `transformers` model and its tokenizer by name, pretrained or from a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer._lazy import import_extra

__all__ = ["build_transformers_model"]


def build_transformers_model(
    task: str,
    default_config: str,
    default_name: str,
    *,
    use_pretrained: bool,
    name: str | None,
    config: Mapping[str, Any] | None,
    tokenizer_name: str | None,
    gradient_checkpointing: bool,
) -> tuple[Any, Any]:
    """Return a model and its tokenizer, or None if no tokenizer is requested.

    Args:
        task: Name of the auto class, such as ``"AutoModelForCausalLM"``.
        default_config: Name of the configuration class to use if ``name`` is None.
        default_name: Name of the pretrained model to use if ``name`` is None.
        use_pretrained: Whether to load pretrained weights.
        name: Name or folder of the pretrained weights, or only of the configuration.
        config: Values that override the configuration.
        tokenizer_name: Name or folder of the tokenizer.
        gradient_checkpointing: Whether to enable activation checkpointing.

    >>> sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2}
    >>> options = dict(use_pretrained=False, name=None, tokenizer_name=None, gradient_checkpointing=False)
    >>> model, _ = build_transformers_model(
    ...     "AutoModelForCausalLM", "GPT2Config", "gpt2", config=sizes, **options
    ... )
    >>> type(model).__name__
    'GPT2LMHeadModel'
    """
    transformers: Any = import_extra("transformers", "nlp", f"A {default_name.partition('-')[0]} model")
    auto_class = getattr(transformers, task)
    values = dict(config or {})
    if use_pretrained:
        model = auto_class.from_pretrained(name or default_name, **values)
    elif name is None:
        model = auto_class.from_config(getattr(transformers, default_config)(**values))
    else:
        model = auto_class.from_config(transformers.AutoConfig.from_pretrained(name, **values))
    if gradient_checkpointing:
        # transformers 5 renamed gradient_checkpointing_enable, and later releases warn about the old name.
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    return model, transformers.AutoTokenizer.from_pretrained(tokenizer_name) if tokenizer_name else None
