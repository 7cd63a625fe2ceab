"""Convert checkpoints of MosaicML Composer and of earlier versions to the current format."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from composer.checkpoint.named_states import as_named

__all__ = ["CONSTANTS", "upgrade"]

CONSTANTS = (".blur_filter", ".filt2d")
"""Suffixes of constant tensors that older checkpoints have; current layers recompute them."""


def upgrade(content: dict[str, Any]) -> None:
    """Convert the states of algorithms, and pairs that are a mapping now, in place.

    Args:
        content: A checkpoint; a current one is unchanged.

    >>> saved = {"ema_model": {"named_parameters_dict": {"weight": 1}, "named_buffers_dict": {}}}
    >>> saved |= {"ema_weights_active": False, "ema_started": True, "repr": "EMA()"}
    >>> content = {"state": {"model": {}, "algorithms": [("EMA", saved)]}}
    >>> upgrade(content)
    >>> content["state"]["algorithms"]
    [('EMA', {'repr': 'EMA()', 'ema_started': True, 'averages': {'weight': 1}, 'training': None})]
    """
    state = content["state"]
    for name in ("optimizers", "schedulers", "callbacks"):
        if isinstance(state.get(name), (list, tuple)):  # the format of the first versions
            state[name] = as_named(state[name])
    saved = state.get("algorithms", [])
    entries = cast("list[tuple[str, dict[str, Any]]]", list(saved.items() if isinstance(saved, dict) else saved))
    if any(_is_old(value) for _, value in entries) or isinstance(saved, dict):
        state["algorithms"] = [(name, _upgraded(value, state)) for name, value in entries]


def _is_old(value: dict[str, Any]) -> bool:
    return "ema_model" in value or "swa_model" in value


def _upgraded(value: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    if "ema_model" in value:
        return _average_of_ema(value, state["model"])
    if "swa_model" in value:
        return _average_of_swa(value, _learning_rates(state.get("optimizers", {})))
    return value


def _average_of_ema(value: dict[str, Any], model: dict[str, Tensor]) -> dict[str, Any]:
    saved = value["ema_model"] or {"named_parameters_dict": {}, "named_buffers_dict": {}}
    weights: dict[str, Tensor] = {**saved["named_parameters_dict"], **saved["named_buffers_dict"]}
    # While the average was in the model, the training weights were stored here.
    swapped = bool(value["ema_weights_active"])
    return {
        "repr": value["repr"],
        "ema_started": value["ema_started"],
        "averages": {name: model[name] for name in weights} if swapped else weights,
        "training": weights if swapped else None,
    }


def _average_of_swa(value: dict[str, Any], learning_rates: list[Any]) -> dict[str, Any]:
    kept: dict[str, Tensor] = value["swa_model"] or {}
    count = int(kept.get("n_averaged", 0))
    ongoing = count > 0 and not value["swa_completed"]
    averages = {name.removeprefix("module."): average for name, average in kept.items() if name != "n_averaged"}
    return {
        "repr": value["repr"],
        "swa_completed": value["swa_completed"],
        "num_averaged": count,
        "events": value["step_counter"],
        "averages": averages if ongoing else {},
        "rates": learning_rates if ongoing else None,
    }


def _learning_rates(optimizers: Any) -> list[Any]:
    return [group["lr"] for optimizer in optimizers.values() for group in optimizer["param_groups"]]
