"""Convert arguments to plain hyperparameter values that an experiment tracker can show (``auto_log_hparams``)."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from pathlib import PurePath
from typing import Any, Final, cast

import torch

from composer._secrets.masking import mask_values
from composer.core.file_names import PartialFilePath
from composer.core.time import Time

__all__ = ["describe", "extract_hparams"]

_PLAIN = (bool, int, float, str)
# Longer collections are data rather than settings.
_LONGEST: Final = 50
_DEEPEST: Final = 8


def describe(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as plain values: objects by class, with their constructor arguments.

    The constructor arguments of an object are its attributes named like parameters of its constructor, with or without
    a leading underscore; objects among them are described recursively. Tensors and long collections are described by
    size. Passwords, tokens and keys are masked, as in :meth:`.Logger.log_hyperparameters`.

    Args:
        arguments: Values by name; None values are left out.

    >>> from composer.algorithms import EMA
    >>> describe({"seed": 1, "algorithms": [EMA(half_life="5ba")], "device": None})["algorithms"]
    [{'class': 'EMA', 'half_life': '5ba', 'ema_start': '0.0dur', 'update_interval': '1ba'}]
    """
    return mask_values({name: _plain(value, ()) for name, value in arguments.items() if value is not None})


def extract_hparams(locals_dict: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a function, as :func:`describe` does, from its local variables.

    Args:
        locals_dict: The result of ``locals()``; ``self``, private names and classes are left out.

    >>> def train(lr, model, _debug=False):
    ...     return extract_hparams(locals())
    >>> train(0.1, torch.nn.Linear(2, 1))
    {'lr': 0.1, 'model': {'class': 'Linear', 'in_features': 2, 'out_features': 1}}
    """
    named = {name: value for name, value in locals_dict.items() if name != "self" and not name.startswith("_")}
    return describe({name: value for name, value in named.items() if not isinstance(value, type)})


def _plain(value: Any, inside: tuple[int, ...]) -> Any:
    """Return a value as plain values; ``inside`` has the ids of the enclosing objects."""
    if isinstance(value, Enum):
        return _plain(value.value, inside)
    if value is None or isinstance(value, _PLAIN):
        return value
    if isinstance(value, PartialFilePath):
        return value.filename
    if isinstance(value, (Time, PurePath, torch.dtype, torch.device)):
        return str(value)
    if isinstance(value, torch.Tensor) or (hasattr(value, "shape") and hasattr(value, "dtype")):
        return f"{type(value).__name__} {tuple(value.shape)} {value.dtype}"
    if isinstance(value, (type, torch.Generator)) or inspect.isroutine(value):
        return getattr(value, "__qualname__", type(value).__name__)
    if id(value) in inside or len(inside) == _DEEPEST:
        return type(value).__name__
    inside = (*inside, id(value))
    if isinstance(value, (list, tuple, set, frozenset, Mapping)):
        return _collection(cast("Iterable[Any]", value), inside)
    if isinstance(value, functools.partial):
        made = cast("functools.partial[Any]", value)
        arguments: dict[str, Any] = {**({"args": made.args} if made.args else {}), **made.keywords}
        return {"class": _plain(made.func, inside), **_collection(arguments, inside)}
    return {"class": type(value).__name__, **_collection(_constructor_arguments(value), inside)}


def _collection(values: Iterable[Any], inside: tuple[int, ...]) -> Any:
    """Return a collection of plain values, or a description of the size if it is long."""
    many = cast("Any", values)
    if len(many) > _LONGEST:
        return f"{type(values).__name__} of {len(many)}"
    if isinstance(values, Mapping):
        entries = cast("Mapping[Any, Any]", values).items()
        return {str(key): _plain(entry, inside) for key, entry in entries}
    return [_plain(entry, inside) for entry in values]


def _constructor_arguments(value: Any) -> dict[str, Any]:
    """Return the constructor arguments that an object keeps as attributes."""
    if isinstance(value, torch.optim.Optimizer):
        defaults: dict[str, Any] = value.defaults
        return {name: entry for name, entry in defaults.items() if entry is not None}
    # Attributes only: properties may compute something, or synchronize with the device.
    kept: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    if dataclasses.is_dataclass(value):
        kept.update({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, torch.nn.Module):
        # Without parameters: the constructor got their sizes, and ``bias`` is a bool there but a tensor here.
        kept.update(value.named_children())
    # Our objects pass some arguments on to their components.
    components = [
        vars(component)
        for component in kept.values()
        if type(component).__module__.startswith("composer.") and _is_component(component)
    ]
    found = {name: _kept_as(name, [kept, *components]) for name in _parameters(type(value))}
    return {name: entry for name, entry in found.items() if entry is not None}


def _is_component(value: Any) -> bool:
    return hasattr(value, "__dict__") and not isinstance(value, (type, torch.nn.Module)) and not callable(value)


def _kept_as(name: str, mappings: Iterable[Mapping[str, Any]]) -> Any:
    return next((mapping[key] for mapping in mappings for key in (name, f"_{name}") if key in mapping), None)


def _parameters(made: Callable[..., Any]) -> list[str]:
    """Names of the parameters of a class."""
    try:
        return list(inspect.signature(made).parameters)
    except (TypeError, ValueError):  # not available for some classes written in C
        return []
