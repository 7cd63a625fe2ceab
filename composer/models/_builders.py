"""What the models of `transformers` that are made by name have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from composer._lazy import import_extra

__all__ = ["made_by_transformers"]


def made_by_transformers(
    task: str,
    default_config: str,
    default_name: str,
    *,
    use_pretrained: bool,
    name: str | None,
    config: Mapping[str, Any] | None,
    tokenizer_name: str | None,
    recomputes: bool,
) -> tuple[Any, Any]:
    """Return a model and its tokenizer, None if none is asked for.

    Args:
        task: Name of the class of the ``AutoModel`` kind.
        default_config: Name of the class whose defaults are the configuration where no name is given.
        default_name: The model whose weights are taken where no name is given.
        use_pretrained: Whether trained weights are taken.
        name: Where weights, or the configuration alone, are taken from.
        config: Values of the configuration that are to be others.
        tokenizer_name: Where the tokenizer is taken from.
        recomputes: Whether activations are computed again in the backward pass.

    >>> sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2}
    >>> options = dict(use_pretrained=False, name=None, tokenizer_name=None, recomputes=False)
    >>> model, _ = made_by_transformers(
    ...     "AutoModelForCausalLM", "GPT2Config", "gpt2", config=sizes, **options
    ... )
    >>> type(model).__name__
    'GPT2LMHeadModel'
    """
    transformers: Any = import_extra("transformers", "nlp", f"A model of {default_name.partition('-')[0]}'s kind")
    kind = getattr(transformers, task)
    values = dict(config or {})
    if use_pretrained:
        model = kind.from_pretrained(name or default_name, **values)
    elif name is None:
        model = kind.from_config(getattr(transformers, default_config)(**values))
    else:
        model = kind.from_config(transformers.AutoConfig.from_pretrained(name, **values))
    if recomputes:
        # Its name until some release of transformers 5, which warns of it since.
        getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)()
    return model, transformers.AutoTokenizer.from_pretrained(tokenizer_name) if tokenizer_name else None
