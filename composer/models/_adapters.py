"""PEFT adapters (LoRA) in a model: attach them, find their weights, and filter state dicts to adapter weights."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

from torch import Tensor, nn

from composer._lazy import import_extra
from composer._text import first_of, one_of
from composer.warnings import NoEffectWarning

__all__ = [
    "adapter_names",
    "filter_state_dict_peft",
    "has_adapters",
    "maybe_get_underlying_model",
    "peft_installed",
    "save_adapters_only",
    "with_adapters",
]

peft_installed: bool = importlib.util.find_spec("peft") is not None
"""Whether the package `peft` is installed."""

_INNER = "model."


def has_adapters(model: nn.Module) -> bool:
    """Return whether a model is a ``PeftModel``, without importing `peft`.

    Args:
        model: The model.

    >>> has_adapters(nn.Linear(1, 1))
    False
    """
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def maybe_get_underlying_model(model: nn.Module) -> Any:
    """Return the base model of a ``PeftModel``; return any other model unchanged.

    Args:
        model: The model.

    >>> model = nn.Linear(1, 1)
    >>> maybe_get_underlying_model(model) is model
    True
    """
    return cast(Any, model).get_base_model() if has_adapters(model) else model


def with_adapters(model: nn.Module, peft_config: Any) -> nn.Module:
    """Add adapters to a model and freeze its base weights.

    Args:
        model: A transformers model; modified in place.
        peft_config: A ``PeftConfig``, or a dict of its arguments with ``"peft_type"``. Types are case-insensitive. No
            effect if the model already has adapters.

    Raises:
        TypeError: ``peft_config`` is not a configuration.
        ValueError: A type is missing or unknown, or the configuration is for prompt learning, not adapter layers.
        MissingConditionalImportError: The package is not installed.
    """
    peft: Any = import_extra("peft", "peft", "HuggingFaceModel(peft_config=...)")
    if has_adapters(model):
        message = "peft_config has no effect: the model already has adapters."
        warnings.warn(message, NoEffectWarning, stacklevel=3)
        return model
    if isinstance(peft_config, Mapping):
        arguments = {"peft_type": None, **cast("Mapping[str, Any]", peft_config)}
        arguments["peft_type"] = _as_peft_enum("peft_type", arguments["peft_type"], peft.PeftType)
        if arguments.get("task_type") is not None:
            arguments["task_type"] = _as_peft_enum("task_type", arguments["task_type"], peft.TaskType)
        peft_config = peft.get_peft_config(arguments)
    if not isinstance(peft_config, peft.PeftConfig):
        raise TypeError(f"peft_config must be a peft.PeftConfig, such as LoraConfig, but got {peft_config!r}.")
    peft_config.peft_type = _as_peft_enum("peft_type", peft_config.peft_type, peft.PeftType)
    if peft_config.task_type is not None:
        peft_config.task_type = _as_peft_enum("task_type", peft_config.task_type, peft.TaskType)
    _check({"default": peft_config})
    return peft.get_peft_model(model, peft_config)


def adapter_names(model: nn.Module, state: Mapping[str, Any], *, embeddings: bool = False) -> dict[str, str]:
    """Return the names of the adapter weights in a state dict, mapped to their names in files of `peft`.

    Args:
        model: A model with adapters.
        state: Its state dict.
        embeddings: Whether the embeddings are saved with the adapters.

    Raises:
        ValueError: The adapters are prompts instead of layers, or the model has more than one set of adapters.
    """
    peft: Any = import_extra("peft", "peft", "A model with adapters")
    (adapter,) = _check(cast(Any, model).peft_config)
    adapter_state: dict[str, Any] = peft.get_peft_model_state_dict(
        model, state_dict=dict(state), adapter_name=adapter, save_embedding_layers=embeddings
    )
    # peft returns the same tensor objects under other names.
    saved = {id(value): name for name, value in adapter_state.items()}
    return {name: saved[id(value)] for name, value in state.items() if id(value) in saved}


def save_adapters_only(wrapper: nn.Module) -> None:
    """Restrict the state dict of a wrapper to adapter weights while its ``should_save_peft_only`` is true.

    Loading a state dict without any frozen weights then reports no missing keys; if it has some of them, the others are
    reported.

    Args:
        wrapper: The module whose ``model`` has adapters.

    Raises:
        ValueError: The adapters are prompts instead of layers, or the model has more than one set of adapters.
    """
    _check(cast(Any, wrapper).model.peft_config)
    wrapper.register_state_dict_post_hook(_drop_frozen)
    wrapper.register_load_state_dict_post_hook(_ignore_missing_frozen)


def filter_state_dict_peft(
    state_dict: dict[str, Tensor], peft_config: Any, adapter_name: str = "default", remove_adapter_names: bool = True
) -> dict[str, Tensor]:
    """Return the LoRA weights of a state dict, selected by name.

    Args:
        state_dict: State dict of a model with adapters.
        peft_config: A ``LoraConfig``, of which ``bias`` is read.
        adapter_name: Name of the adapter.
        remove_adapter_names: Whether to remove the adapter name from the keys, as in files of `peft`.

    >>> from types import SimpleNamespace
    >>> state = {"q.base_layer.weight": torch.ones(1), "q.lora_A.default.weight": torch.zeros(1)}
    >>> filter_state_dict_peft(state, SimpleNamespace(bias="none"))
    {'q.lora_A.weight': tensor([0.])}
    """
    biases: set[str] = set()
    if peft_config.bias == "all":
        biases = {name for name in state_dict if "bias" in name}
    elif peft_config.bias == "lora_only":
        biases = {f"{name.partition('lora_')[0]}base_layer.bias" for name in state_dict if "lora_" in name}
    kept = {
        name: value
        for name, value in state_dict.items()
        if ("lora_" in name and f".{adapter_name}" in name) or name in biases
    }
    return (
        {name.replace(f".{adapter_name}", ""): value for name, value in kept.items()} if remove_adapter_names else kept
    )


def _as_peft_enum(name: str, value: Any, known: type[Enum]) -> Any:
    """Return a member of a `peft` enum, whose values are upper case, for a name in any case."""
    if value is None:
        raise ValueError(f"peft_config must have {name!r}, such as {next(iter(known)).value!r}.")
    choices = [one.value for one in known]
    return known(one_of(f"peft_config's {name}", value.upper() if isinstance(value, str) else value, choices))


def _check(configs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raise for adapters that checkpoints do not support; return the configurations."""
    for config in configs.values():
        if config.is_prompt_learning:
            raise ValueError(
                f"HuggingFaceModel supports adapter layers, such as LoraConfig, but got a {type(config).__name__}, "
                f"which is for prompt learning."
            )
    if len(configs) > 1:
        raise ValueError(
            f"HuggingFaceModel supports one set of adapters, but the model has {first_of(list(configs))}. Merge the "
            f"others into the model, or remove them with delete_adapter."
        )
    return configs


def _drop_frozen(wrapper: Any, state: dict[str, Any], prefix: str, metadata: Any) -> None:
    if not wrapper.should_save_peft_only:
        return
    start = prefix + _INNER
    own = {name.removeprefix(start): value for name, value in state.items() if name.startswith(start)}
    kept = adapter_names(wrapper.model, own, embeddings=wrapper.saves_embeddings)
    for name in own:
        if name not in kept:
            del state[start + name]


def _ignore_missing_frozen(wrapper: Any, incompatible: Any) -> None:
    if not wrapper.should_save_peft_only:
        return
    state = wrapper.model.state_dict()
    kept = adapter_names(wrapper.model, state, embeddings=wrapper.saves_embeddings)
    frozen = tuple(_INNER + name for name in state if name not in kept)
    missing: list[str] = incompatible.missing_keys
    missing_frozen = [name for name in missing if name.endswith(frozen)]
    if len(missing_frozen) == len(frozen):
        missing[:] = [name for name in missing if not name.endswith(frozen)]
