"""Convert checkpoints of MosaicML Composer, and of earlier versions of ours, to the present form."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from composer.checkpoint.named_states import as_named

__all__ = ["CONSTANTS", "upgrade"]

CONSTANTS = (".blur_filter", ".filt2d")
"""Ends of the names of saved tensors that never change, which our layers make and do not save."""


def upgrade(content: dict[str, Any]) -> None:
    """Rewrite the states of algorithms, and pairs that are a mapping by now, in place; the rest stays as it is.

    Args:
        content: A checkpoint; a recent one of ours is left as it is.

    >>> saved = {"ema_model": {"named_parameters_dict": {"weight": 1}, "named_buffers_dict": {}}}
    >>> saved |= {"ema_weights_active": False, "ema_started": True, "repr": "EMA()"}
    >>> content = {"state": {"model": {}, "algorithms": [("EMA", saved)]}}
    >>> upgrade(content)
    >>> content["state"]["algorithms"]
    [('EMA', {'repr': 'EMA()', 'ema_started': True, 'averages': {'weight': 1}, 'training': None})]
    """
    state = content["state"]
    for name in ("optimizers", "schedulers", "callbacks"):
        if isinstance(state.get(name), (list, tuple)):  # as checkpoints of ours had it at first
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
        return _average_of_swa(value, _rates(state.get("optimizers", {})))
    return value


def _average_of_ema(value: dict[str, Any], model: dict[str, Tensor]) -> dict[str, Any]:
    kept = value["ema_model"] or {"named_parameters_dict": {}, "named_buffers_dict": {}}
    held: dict[str, Tensor] = {**kept["named_parameters_dict"], **kept["named_buffers_dict"]}
    # While the average was in the model, the weights of training were kept in its place.
    swapped = bool(value["ema_weights_active"])
    return {
        "repr": value["repr"],
        "ema_started": value["ema_started"],
        "averages": {name: model[name] for name in held} if swapped else held,
        "training": held if swapped else None,
    }


def _average_of_swa(value: dict[str, Any], rates: list[Any]) -> dict[str, Any]:
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
        "rates": rates if ongoing else None,
    }


def _rates(optimizers: Any) -> list[Any]:
    return [group["lr"] for optimizer in optimizers.values() for group in optimizer["param_groups"]]
