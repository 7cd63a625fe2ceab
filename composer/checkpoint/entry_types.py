"""Check the types of the entries of a checkpoint after it is read and before its state is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import NoneType
from typing import Any, cast

import torch

from composer.checkpoint.excluded_weights import EXCLUDED_KEY
from composer.ledger.segment import Position

__all__ = ["check_entry_types"]


def check_entry_types(content: dict[str, Any]) -> None:
    """Check that every entry of a checkpoint has a type that a writer produces.

    Args:
        content: The checkpoint that was read, of Composer or of MosaicML Composer.

    Raises:
        ValueError: An entry has another type; the message names the entry and its type.

    >>> check_entry_types({"state": {"model": {}, "run_name": "night"}})
    >>> check_entry_types({"state": {"model": [1]}})
    Traceback (most recent call last):
    ValueError: 'state/model' is list, but must be a dict of names and tensors
    """
    _check(content, "", _TOP_LEVEL_TYPES)
    _check(content["state"], "state/", _STATE_TYPES)


def _check(node: Mapping[Any, Any], above: str, forms: Mapping[str, tuple[Callable[[Any], bool], str]]) -> None:
    for name in node:
        if type(name) is not str:
            raise ValueError(
                f"{name!r} is a key in {above.rstrip('/') or 'the checkpoint'!r}, but keys must be strings"
            )
    for name, (fits, what) in forms.items():
        if name in node and not fits(node[name]):
            raise ValueError(f"'{above}{name}' is {type(node[name]).__name__}, but must be {what}")


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


def _are_flags(value: Any) -> bool:
    return _are_named(value) and all(type(flag) is bool for flag in value.values())


def _are_new_losses(value: Any) -> bool:
    if not (_are_named(value) and _are_ranks(value.get("ranks"))):
        return False
    return all(map(_is_dtype, [value.get("dtype"), *(dtype for rank in value["ranks"] for dtype in rank.values())]))


def _are_microbatch_sizes(value: Any) -> bool:
    if not _are_ranks(value):
        return False
    types = {"limits": list, "largest_batches": list, "room_left": bool, "clean": int, "patience": int}
    sizes = [one for rank in value for one in rank.values()]
    return all(
        _are_named(one)
        and all(type(one.get(name)) is known for name, known in types.items())
        and type(one.get("start", "")) in (int, NoneType)
        and all(map(_is_size_of_shape, [*one["limits"], *one["largest_batches"]]))
        for one in sizes
    )


def _is_size_of_shape(value: Any) -> bool:
    """Return whether a value is a pair of the shapes of tensors and a number, or None."""
    if not isinstance(value, (list, tuple)) or len(cast("list[Any]", value)) != 2:
        return False
    shape, size = cast("list[Any]", value)
    return type(size) in (int, NoneType) and isinstance(shape, (list, tuple)) and all(map(_are_sizes, shape))


def _are_sizes(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(type(size) is int for size in cast("list[Any]", value))


def _is_dtype(value: Any) -> bool:
    return type(value) is str and isinstance(vars(torch).get(value), torch.dtype)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _are_labels(value: Any) -> bool:
    return isinstance(value, list) and all(type(label) is str for label in cast("list[Any]", value))


def _is_seed(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _is_origin(value: Any) -> bool:
    types = {"run_name": str, "path": str, "step": int, "changes": list}
    return (
        _are_named(value)
        and all(type(value.get(name)) is known for name, known in types.items())
        and all(type(change) is str for change in value["changes"])
    )


def _is_fingerprint(value: Any) -> bool:
    if not _are_named(value):
        return False
    weights = value.get("weights", {"batch": 0, "digests": ""})
    data = value.get("data", {"batch": 0, "parts": {}})
    return (
        all(_are_named(part) and type(part.get("batch")) is int for part in (weights, data))
        and type(weights.get("digests")) is str
        and _are_texts(data.get("parts"))
        and _are_texts(value.get("sources", {}))
    )


def _are_texts(value: Any) -> bool:
    """Return whether a value is a dict of pairs of texts."""
    return _are_named(value) and all(
        isinstance(pair, (list, tuple)) and list(map(type, cast("list[Any]", pair))) == [str, str]
        for pair in value.values()
    )


def _is_position(value: Any) -> bool:
    try:
        Position.of_saved(value)
    except ValueError:
        return False
    return True


_STATES = (_are_states, "pairs of a class and its state")
_NAMED = (_are_named, "a dict with string keys")
_TOP_LEVEL_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "state": _NAMED,
    "rng": (lambda value: value is None or _are_ranks(value), "a list of random states"),
    "engine": _NAMED,
    EXCLUDED_KEY: (_are_shapes, "a dict of names and shapes"),
}
_STATE_TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "model": (_are_named, "a dict of names and tensors"),
    "optimizers": _STATES,
    "schedulers": _STATES,
    "algorithms": _STATES,
    "callbacks": _STATES,
    "replicas": (lambda value: _are_ranks(value) and len(value) > 0, "a list of the states of each replica"),
    "timestamp": _NAMED,
    "previous_timestamp": _NAMED,
    "evaluators_done": (_are_labels, "a list of strings"),
    "metrics_logged_at": (lambda value: type(value) is int, "an integer"),
    "in_step": (lambda value: type(value) is bool, "a boolean"),
    "dataset_state": (_is_dict, "a dict"),
    "metrics": (_is_dict, "a dict"),
    "scaler": (lambda value: value is None or isinstance(value, dict), "a dict"),
    "max_duration": (_is_text, "a string"),
    "run_name": (_is_text, "a string"),
    "rank_zero_seed": (_is_seed, "a nonnegative integer below 2**63"),
    "program": _NAMED,
    "fingerprint": (_is_fingerprint, "a dict with the entries 'weights', 'data' and 'sources'"),
    "forked_from": (
        _is_origin,
        "a dict with the strings 'run_name' and 'path', the number 'step' and the list 'changes'",
    ),
    "ledger": (_is_position, "a dict with the string 'segment' and the dict 'seconds' of numbers"),
    "ending": (_is_dict, "a dict"),
    "loss_names": (_are_flags, "a dict of names and booleans"),
    "new_losses": (_are_new_losses, "a dict with the name 'dtype' and the list 'ranks' of names and dtypes"),
    "microbatch_sizes": (_are_microbatch_sizes, "a list of the microbatch sizes of each rank, by name"),
    "metric_values": (_is_dict, "a dict"),
    "integrations": (_is_dict, "a dict"),
    "metadata": (_is_dict, "a dict"),
}
