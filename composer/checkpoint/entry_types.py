"""Check the types of the entries of a checkpoint after it is read and before its state is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from composer.checkpoint.excluded_weights import RECORD

__all__ = ["check_form"]


def check_form(content: dict[str, Any]) -> None:
    """Check that every entry of a checkpoint has a type that a writer produces.

    Args:
        content: The checkpoint that was read, of Composer or of MosaicML Composer.

    Raises:
        ValueError: An entry has another type; the message names the entry and its type.

    >>> check_form({"state": {"model": {}, "run_name": "night"}})
    >>> check_form({"state": {"model": [1]}})
    Traceback (most recent call last):
    ValueError: 'state/model' is list, where names and tensors are due
    """
    _check(content, "", _ABOVE)
    _check(content["state"], "state/", _PARTS)


def _check(node: Mapping[Any, Any], above: str, forms: Mapping[str, tuple[Callable[[Any], bool], str]]) -> None:
    for name in node:
        if type(name) is not str:
            raise ValueError(f"{name!r} is a key in {above.rstrip('/') or 'the checkpoint'!r}, where names are due")
    for name, (fits, what) in forms.items():
        if name in node and not fits(node[name]):
            raise ValueError(f"'{above}{name}' is {type(node[name]).__name__}, where {what} due")


def _are_named(value: Any) -> bool:
    return isinstance(value, dict) and all(type(name) is str for name in cast("dict[Any, Any]", value))


def _are_states(value: Any) -> bool:
    """Return whether a value is pairs of a class and its state, or a dict of them, as MosaicML Composer wrote it."""
    if isinstance(value, dict):
        pairs: list[Any] = list(cast("dict[Any, Any]", value).items())
    else:
        pairs = list(cast("list[Any]", value)) if isinstance(value, (list, tuple)) else [None]
    return all(isinstance(one, (list, tuple)) and len(cast("Any", one)) == 2 and _is_state(*one) for one in pairs)


def _is_state(name: Any, state: Any) -> bool:
    return type(name) is str and isinstance(state, dict)


def _are_ranks(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(_are_named, cast("list[Any]", value)))


def _are_shapes(value: Any) -> bool:
    return _are_named(value) and all(
        isinstance(shape, list) and all(type(size) is int for size in cast("list[Any]", shape))
        for shape in value.values()
    )


def _is_dict(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_seed(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


_STATES = (_are_states, "pairs of a class and its state are")
_NAMED = (_are_named, "a dict with names is")
_ABOVE: dict[str, tuple[Callable[[Any], bool], str]] = {
    "state": _NAMED,
    "rng": (lambda value: value is None or _are_ranks(value), "a list of states of random generators is"),
    "engine": _NAMED,
    RECORD: (_are_shapes, "names and shapes are"),
}
_PARTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (_are_named, "names and tensors are"),
    "optimizers": _STATES,
    "schedulers": _STATES,
    "algorithms": _STATES,
    "callbacks": _STATES,
    "timestamp": _NAMED,
    "dataset_state": (_is_dict, "a dict is"),
    "metrics": (_is_dict, "a dict is"),
    "scaler": (lambda value: value is None or isinstance(value, dict), "a dict is"),
    "max_duration": (_is_text, "text is"),
    "run_name": (_is_text, "text is"),
    "rank_zero_seed": (_is_seed, "a whole number that can be a seed is"),
    "ending": (_is_dict, "a dict is"),
    "metric_values": (_is_dict, "a dict is"),
    "integrations": (_is_dict, "a dict is"),
    "metadata": (_is_dict, "a dict is"),
}
