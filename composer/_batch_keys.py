"""Get and set elements of a batch by index, key, dotted path or function."""

from __future__ import annotations

import copy
import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, cast

from torch import Tensor

from composer._containers import is_mapping, is_sequence, rebuild, with_attributes, with_items
from composer._text import did_you_mean, plural

__all__ = ["BatchKey", "batch_get", "batch_set", "is_about_key"]

BatchKey: TypeAlias = "int | str | slice | Callable[..., Any] | Sequence[Any]"
"""A key that selects an element of a batch; see :func:`batch_get`."""

_MISSING = object()
_MARK = "_composer_key_not_found"


def batch_get(batch: Any, key: BatchKey) -> Any:
    """Return the element of a batch that a key selects.

    Args:
        batch: Mapping, sequence, named tuple, dataclass, tensor, array or any object with attributes.
        key: An index, a mapping key or an attribute name; a dotted path such as ``"inputs.ids"`` if no element has that
            exact name; a list or tuple of keys, for a tuple of elements; a ``(get, set)`` pair of functions, or one
            function ``get(batch)``. A tensor or array accepts any index it supports; a sequence of more indices or
            slices than it has dimensions gives a tuple of elements.

    Raises:
        ValueError: A sequence of functions does not have length two.
        KeyError: A mapping has no such key.
        IndexError: A sequence has no such index.
        TypeError: The batch has no such attribute, or does not support keys of that type.

    >>> batch_get({"image": 1, "label": {"id": 2}}, "label.id"), batch_get((5, 6, 7), [0, 2])
    (2, (5, 7))
    """
    batch_type = type(batch)  # pyright: ignore[reportUnknownVariableType]
    key_type = type(key)
    if (key_type is int and (batch_type is tuple or batch_type is list)) or (key_type is str and batch_type is dict):
        try:
            return batch[key]
        except (IndexError, KeyError):
            pass
    elif callable(key):
        return key(batch)
    elif _is_pair(key):
        return cast("Any", key)[0](batch)
    elif _is_multiple(batch, key):
        return tuple(batch_get(batch, each) for each in cast("Sequence[Any]", key))
    value = _find(batch, key)
    if value is _MISSING:
        raise _not_found(batch, key)
    return value


def is_about_key(error: BaseException) -> bool:
    """Return whether :func:`batch_get` or :func:`batch_set` raised an exception, as the batch has no such element.

    Args:
        error: The exception.

    >>> try:
    ...     batch_get({"image": 1}, 0)
    ... except KeyError as error:
    ...     is_about_key(error)
    True
    """
    return hasattr(error, _MARK)


def batch_set(batch: Any, key: BatchKey, value: Any) -> Any:
    """Return a copy of a batch in which the element that a key selects is ``value``; the given batch is not changed.

    The copy is shallow: other elements are shared with the given batch. It is a copy since a loader may return the same
    object in each epoch, which an in-place change would corrupt.

    Args:
        batch: As for :func:`batch_get`.
        key: As for :func:`batch_get`; a single function is called as ``key(batch, value)``. A setter returns the batch,
            or ``None`` if it changed the batch in place. It may also add a key to a mapping.
        value: The new element; for several keys a list or tuple with one value for each.

    Raises:
        ValueError: The number of values differs from the number of keys, or of elements in a slice.
        KeyError: A mapping has no such key.
        IndexError: A sequence has no such index.
        TypeError: The function does not accept a value.
        RuntimeError: The element cannot be set.

    >>> batch_set((1, 2, 3), 1, "two")
    (1, 'two', 3)
    >>> batch_set({"x": 1, "y": 2}, ["x", "y"], [10, 20])
    {'x': 10, 'y': 20}
    """
    if callable(key):
        return _call_setter(key, batch, value)
    if _is_pair(key):
        return _call_setter(cast("Any", key)[1], batch, value)
    if not _is_multiple(batch, key):
        return _set_one(batch, key, value)
    keys = cast("Sequence[Any]", key)
    has_several = isinstance(value, (list, tuple)) or (_is_array(value) and getattr(value, "shape", ()) != ())
    if not has_several or len(value) != len(keys):
        given = plural(len(value), "value") if has_several else f"a {type(value).__name__}"
        raise ValueError(
            f"value must be a list or tuple with one value for each of the {len(keys)} keys, but got {given}."
        )
    for each, part in zip(keys, value, strict=True):
        batch = batch_set(batch, each, part)
    return batch


def _is_pair(key: Any) -> bool:
    """Return whether ``key`` is a (get, set) pair of functions; raise an error for another number of functions."""
    if not isinstance(key, (tuple, list)) or not key or not all(map(callable, cast("Any", key))):
        return False
    if len(cast("Sequence[Any]", key)) != 2:
        raise ValueError(f"A key of functions must be a pair (get, set), or one function; got {key!r}.")
    return True


def _is_array(batch: Any) -> bool:
    """Return whether ``batch`` is a tensor or array, which supports sequences as indices."""
    return hasattr(batch, "__array__")


def _is_multiple(batch: Any, key: Any) -> bool:
    """Return whether ``key`` is a sequence of keys; a tuple may also be a single key of a mapping."""
    if not isinstance(key, Sequence) or isinstance(key, (str, bytes)):
        return False
    if _is_array(batch):
        return isinstance(key, (list, tuple)) and _find(batch, key) is _MISSING
    return not (is_mapping(batch) and type(key) is tuple and key in batch)


def _has_items(batch: Any) -> bool:
    """Return whether ``batch`` is a container, whose methods are not elements."""
    return is_mapping(batch) or is_sequence(batch) or _is_array(batch)


def _find(batch: Any, key: Any) -> Any:
    """Return the element for a single key, by item, attribute or dotted path, or ``_MISSING``."""
    key = _as_index(batch, key)
    # A mapping with defaults would return a value for every key, and add it.
    if hasattr(batch, "__getitem__") and not (hasattr(batch.__class__, "__missing__") and key not in batch):
        try:
            return batch[key]
        except (IndexError, KeyError, TypeError, AttributeError, ValueError):
            pass
    if not isinstance(key, str):
        return _MISSING
    value = getattr(batch, key, _MISSING)
    if value is not _MISSING and not (_has_items(batch) and callable(value)):
        return value
    head, _, rest = key.partition(".")
    if not rest:
        return _MISSING
    inner = _find(batch, _path_step(batch, head))
    return _MISSING if inner is _MISSING else _find(inner, _path_step(inner, rest))


def _as_index(batch: Any, key: Any) -> Any:
    """Convert multidimensional slices to a tuple, since torch warns about lists and NumPy rejects them."""
    if isinstance(key, list) and _is_array(batch) and any(isinstance(each, slice) for each in cast("list[Any]", key)):
        return tuple(cast("list[Any]", key))
    return key


def _path_step(batch: Any, step: str) -> int | str:
    """Return a step of a dotted path: a number is an index, except in a mapping."""
    return int(step) if step.isdecimal() and not isinstance(batch, Mapping) else step


def _not_found(batch: Any, key: Any) -> Exception:
    """Return the error for a key that does not exist in the batch."""
    error = _missing(batch, key)
    setattr(error, _MARK, True)
    return error


def _missing(batch: Any, key: Any) -> Exception:
    batch_type = type(batch).__name__
    if isinstance(batch, Mapping):
        names = [str(name) for name in cast("Mapping[Any, Any]", batch)]
        hint = did_you_mean(key, names) if isinstance(key, str) else ""
        return KeyError(f"The batch, a {batch_type}, has no key {key!r}.{hint} Its keys: {', '.join(names) or 'none'}.")
    if _has_items(batch) and not isinstance(key, str):
        size = plural(len(batch), "element") if hasattr(batch, "__len__") else "no size"
        return IndexError(f"The batch, a {batch_type} of {size}, has no index {key!r}.")
    hint = did_you_mean(key, [name for name in dir(batch) if name[0] != "_"]) if isinstance(key, str) else ""
    return TypeError(
        f"The batch, a {batch_type}, has no element {key!r}.{hint} Use an index, key, attribute or function."
    )


def _call_setter(setter: Callable[..., Any], batch: Any, value: Any) -> Any:
    """Set an element with the user's function, which may work in place."""
    try:
        inspect.signature(setter).bind(batch, value)
    except TypeError:
        raise TypeError(
            f"The batch key {setter!r} does not accept (batch, value), so it can only read. "
            "Use a pair of functions: (get(batch), set(batch, value))."
        ) from None
    except ValueError:  # builtins without a signature
        pass
    result = setter(batch, value)
    return batch if result is None else result


def _set_one(batch: Any, key: Any, value: Any) -> Any:
    """Set the element for a single key, by item, attribute or dotted path."""
    if is_mapping(batch):
        nested = _set_path(batch, key, value) if key not in batch else _MISSING
        if nested is not _MISSING:
            return nested
        if key not in batch and not isinstance(batch, (Counter, defaultdict)):  # these have every key
            raise _not_found(batch, key)
        return with_items(cast("Mapping[Any, Any]", batch), {key: value})
    if isinstance(key, str):
        if key in getattr(batch, "_fields", ()):
            return batch._replace(**{key: value})
        if hasattr(batch, key) and not _has_items(batch):
            return with_attributes(batch, {key: value})
        nested = _set_path(batch, key, value)
        if nested is not _MISSING:
            return nested
    if is_sequence(batch) and not isinstance(key, str):
        return _set_index(batch, key, value)
    try:
        edited: Any = batch.clone() if isinstance(batch, Tensor) else copy.copy(batch)
        edited[_as_index(batch, key)] = value
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        raise RuntimeError(
            f"Cannot set {key!r} in a batch of type {type(batch).__name__}: {error} "
            "Use a pair of functions as the key: (get(batch), set(batch, value))."
        ) from error
    return edited


def _set_index(batch: Any, key: Any, value: Any) -> Any:
    """Set an element, or the elements of a slice, of a sequence."""
    parts = list(batch)
    if isinstance(key, slice):
        count = len(parts[key])
        if not isinstance(value, (list, tuple)) or len(cast("Sequence[Any]", value)) != count:
            raise ValueError(f"value must be a list or tuple of {plural(count, 'value')}, as many as {key!r} selects.")
    try:
        parts[key] = value
    except IndexError:
        raise _not_found(batch, key) from None
    except TypeError as error:
        raise RuntimeError(f"Cannot set {key!r} in a batch of type {type(batch).__name__}: {error}.") from error
    return rebuild(batch, parts)


def _set_path(batch: Any, key: Any, value: Any) -> Any:
    """Set the element at a dotted path, or return ``_MISSING`` if the path does not exist."""
    head, _, rest = key.partition(".") if isinstance(key, str) else ("", "", "")
    if not rest:
        return _MISSING
    step = _path_step(batch, head)
    inner = _find(batch, step)
    last = _path_step(inner, rest)
    if not is_mapping(inner) and (inner is _MISSING or _find(inner, last) is _MISSING):
        return _MISSING
    return _set_one(batch, step, _set_one(inner, last, value))
