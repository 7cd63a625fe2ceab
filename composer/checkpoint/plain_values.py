"""Convert state to plain values, so that the checkpoint loads with ``torch.load(weights_only=True)``.

Configuration libraries, NumPy and users add other types: an OmegaConf ``ListConfig`` as the ``betas`` of an optimizer,
a NumPy number, an enum, a path. A file with them would be rejected on load, since constructing such objects may run
code.
"""

from __future__ import annotations

import collections
import datetime
import enum
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor, nn

from composer.checkpoint.staging import DICTS, PLAIN

__all__ = ["plain"]

_MOST_LEVELS: Final = 100
_KEPT: Final = PLAIN | {bytes, bytearray, complex, torch.dtype, torch.device, torch.layout, torch.Size}
_TENSORS: Final = frozenset({Tensor, nn.Parameter, nn.Buffer})
_ARRAYS: Final = frozenset({np.ndarray, np.memmap})


def plain(value: Any, path: Sequence[object] = ()) -> Any:
    """Return a value in which everything is plain; a tensor stays the same object.

    Subclasses of numbers, strings and containers are converted to the built-in types: a mapping to a dict, a named
    tuple to a tuple, any other sequence to a list. An enum member becomes its value, a path a string. NumPy arrays of
    numbers and ``timedelta`` are kept: :func:`.read_checkpoint` reads them, while ``torch.load`` needs
    ``torch.serialization.safe_globals`` for them.

    Args:
        value: Any value.
        path: Its keys in the checkpoint, for error messages.

    Raises:
        TypeError: A value has no plain form; the error contains its path.

    >>> import enum, pathlib
    >>> Color = enum.Enum("Color", ["RED"])
    >>> plain({"betas": collections.deque([0.9, 0.95]), Color.RED: pathlib.PurePosixPath("/data")})
    {'betas': [0.9, 0.95], 1: '/data'}
    >>> plain({"fn": print}, ("state", "callbacks", "Mine"))
    Traceback (most recent call last):
    TypeError: 'state/callbacks/Mine/fn' cannot be saved: a checkpoint holds tensors, numbers, text and containers of \
them, and this is builtins.builtin_function_or_method. Return a plain value from state_dict(), or leave it out with \
save_ignore_keys=['state/callbacks/Mine/fn'].
    """
    cls = type(value)  # pyright: ignore[reportUnknownVariableType]
    if cls in _KEPT:
        return value
    if isinstance(value, Tensor):
        return _tensor(value, path)
    if len(path) > _MOST_LEVELS:
        raise TypeError(
            f"{_shown_path(path[:5])} cannot be saved: it has more than {_MOST_LEVELS} levels, or contains itself."
        )
    if isinstance(value, enum.Enum):
        return plain(value.value, path)
    if isinstance(value, np.generic):
        return _number(value, path)
    for base, convert in _CONVERSIONS:
        if isinstance(value, base):
            return convert(value)
    if isinstance(value, Mapping):
        return _mapping(cast("Mapping[Any, Any]", value), path)
    if isinstance(value, (Sequence, collections.deque, set, frozenset)):
        return _elements(cast("Sequence[Any]", value), path)
    if cls in _ARRAYS and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
        return np.array(value, dtype=value.dtype.newbyteorder("="))
    raise _refusal(value, path)


# str.__str__ and the like rather than str(), which a subclass may override.
_CONVERSIONS: Final[tuple[tuple[Any, Any], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (complex, complex.__complex__),
    (bytes, bytes.__bytes__),
    (bytearray, lambda value: bytearray(memoryview(value))),
    (os.PathLike, os.fspath),
    (datetime.timedelta, lambda value: datetime.timedelta(value.days, value.seconds, value.microseconds)),
)


def _tensor(value: Tensor, path: Sequence[object]) -> Tensor:
    if hasattr(value, "placements"):  # a DTensor, which is unsharded or saved by its shards
        return value
    is_odd = value.is_meta or value.is_nested or hasattr(type(value), "__tensor_flatten__")
    if is_odd:
        raise _refusal(value, path, " on the meta device" if value.is_meta else "")
    return value if type(value) in _TENSORS else value.as_subclass(Tensor)


def _number(value: Any, path: Sequence[object]) -> Any:
    number = value.item()
    if type(number) in PLAIN or type(number) is complex:
        return number
    raise _refusal(value, path)


def _mapping(value: Mapping[Any, Any], path: Sequence[object]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for key, one in _elements_of(value.items, value, path):
        key = key if type(key) is str else _hashable(key, (*path, key))
        if key in found:
            raise TypeError(f"{_shown_path(path)} cannot be saved: two of its keys become {key!r}.")
        found[key] = one if type(one) in PLAIN else plain(one, (*path, key))
    cls: Any = type(value)
    return cls(found) if cls in DICTS else found


def _elements(value: Any, path: Sequence[object]) -> Any:
    values = _elements_of(lambda: value, value, path)
    if isinstance(value, (set, frozenset)):
        return {_hashable(one, path) for one in values}
    if not PLAIN.issuperset(map(type, values)):
        values = [plain(one, (*path, at)) for at, one in enumerate(values)]
    return tuple(values) if isinstance(value, tuple) else values


def _hashable(value: Any, path: Sequence[object]) -> Any:
    """Return the plain form of a key, or of an element of a set."""
    found = plain(value, path)
    found = tuple(cast("list[Any]", found)) if isinstance(found, list) else found
    try:
        hash(found)
    except TypeError:
        raise _refusal(value, path) from None
    return found


def _elements_of(elements: Any, value: Any, path: Sequence[object]) -> list[Any]:
    """Return the elements of a container; some raise an exception for a missing value (OmegaConf)."""
    try:
        return list(elements())
    except Exception as error:
        raise TypeError(f"{_shown_path(path)} cannot be saved: {type(value).__qualname__}: {error}") from error


def _shown_path(path: Sequence[object]) -> str:
    return repr("/".join(map(str, path)) or "the checkpoint")


def _refusal(value: object, path: Sequence[object], what: str = "") -> TypeError:
    cls = type(value)
    return TypeError(
        f"{_shown_path(path)} cannot be saved: a checkpoint holds tensors, numbers, text and containers of them, and "
        f"this is {cls.__module__}.{cls.__qualname__}{what}. Return a plain value from state_dict(), or leave it out "
        f"with save_ignore_keys=[{_shown_path(path)}]."
    )
