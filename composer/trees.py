"""Nested data: batches, outputs and states made of mappings, sequences, dataclasses and tensors."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, cast

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from composer._containers import SEQUENCES, is_mapping, is_sequence, rebuild, with_attributes, with_items
from composer._text import did_you_mean, plural

__all__ = [
    "BatchKey",
    "batch_get",
    "batch_set",
    "ensure_tuple",
    "leaves",
    "map_collection",
    "map_leaves",
    "map_tensors",
]

BatchKey: TypeAlias = "int | str | slice | Callable[..., Any] | Sequence[Any]"
"""What names a part of a batch; see :func:`batch_get`."""

_MISSING = object()


def map_tensors(fn: Callable[[Tensor], Any], tree: Any) -> Any:
    """Apply ``fn`` to every tensor of a nested structure and keep all the rest.

    The kinds of the containers survive: mappings, lists, tuples, named tuples, dataclasses. A container in which
    nothing changed is returned itself, not a copy, so a function that returns its tensors costs no memory.

    Args:
        fn: Called with each tensor, in order.
        tree: Any nesting; a bare tensor too.

    >>> import torch
    >>> map_tensors(lambda t: t + 1, {"x": torch.zeros(1), "ids": [torch.ones(1), "name"]})
    {'x': tensor([1.]), 'ids': [tensor([2.]), 'name']}
    """
    return _map(fn, tree, False)


def map_leaves(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Apply ``fn`` to everything in a nested structure that is not a container, as :func:`map_tensors` does to tensors.

    Args:
        fn: Called with each leaf: tensors, numbers, strings, ``None``, and objects of unknown kinds.
        tree: Any nesting; a bare leaf too.

    >>> map_leaves(lambda leaf: leaf * 2, [1, (2, "a")])
    [2, (4, 'aa')]
    """
    return _map(fn, tree, True)


def _map(fn: Callable[[Any], Any], tree: Any, every: bool) -> Any:
    """Apply ``fn`` to the tensors of a tree, or to every leaf.

    The kinds that nearly every batch consists of come first: this runs in each training step.
    """
    kind = type(tree)  # pyright: ignore[reportUnknownVariableType]
    if kind is tuple or kind is list:
        same = True
        parts: list[Any] = []
        for old in cast("Sequence[Any]", tree):
            new = fn(old) if type(old) is Tensor else _map(fn, old, every)
            if new is not old:
                same = False
            parts.append(new)
        return tree if same else parts if kind is list else tuple(parts)
    if kind is dict:
        changed: dict[Any, Any] = {}
        for key, old in cast("dict[Any, Any]", tree).items():
            new = fn(old) if type(old) is Tensor else _map(fn, old, every)
            if new is not old:
                changed[key] = new
        return {**tree, **changed} if changed else tree
    if _is_leaf(tree):
        return fn(tree) if every or isinstance(tree, Tensor) else tree
    return _map_other(fn, tree, every)


def _map_other(fn: Callable[[Any], Any], tree: Any, every: bool) -> Any:
    """Apply ``fn`` in containers other than plain tuples, lists and dicts."""
    if isinstance(tree, Mapping):
        pairs = cast("Mapping[Any, Any]", tree)
        new = {key: (old, _map(fn, old, every)) for key, old in pairs.items()}
        changed = {key: mapped for key, (old, mapped) in new.items() if mapped is not old}
        return with_items(pairs, changed) if changed else pairs
    if is_sequence(tree):
        old = list(cast("Sequence[Any]", tree))
        parts = [_map(fn, value, every) for value in old]
        return tree if all(map(operator.is_, parts, old)) else rebuild(tree, parts)
    fields = {field.name: getattr(tree, field.name, None) for field in dataclasses.fields(tree)}
    mapped = {name: _map(fn, value, every) for name, value in fields.items()}
    return with_attributes(tree, {name: value for name, value in mapped.items() if value is not fields[name]})


def _is_leaf(tree: Any) -> bool:
    """Whether ``tree`` holds nothing that we look into. A packed sequence keeps part of itself on the CPU."""
    if isinstance(tree, (Tensor, PackedSequence)):
        return True
    if isinstance(tree, (Mapping, *SEQUENCES)):
        return False
    return isinstance(tree, type) or not dataclasses.is_dataclass(tree)


def leaves(tree: Any) -> Iterator[Any]:
    """Iterate over everything in a nested structure that is not a container, depth first.

    Args:
        tree: Any nesting of mappings (their values), lists, tuples, named tuples and dataclasses.

    >>> list(leaves({"a": [1, (2, None)], "b": "text"}))
    [1, 2, None, 'text']
    """
    if _is_leaf(tree):
        yield tree
        return
    if isinstance(tree, Mapping):
        children: Any = cast("Mapping[Any, Any]", tree).values()
    elif isinstance(tree, SEQUENCES):
        children = cast("Sequence[Any]", tree)
    else:
        children = (getattr(tree, field.name, None) for field in dataclasses.fields(tree))
    for child in children:
        yield from leaves(child)


def ensure_tuple(x: Any) -> tuple[Any, ...]:
    """Return one thing, several or none as a tuple.

    Args:
        x: ``None`` gives an empty tuple, a sequence its elements, a dict its values; anything else, a string
            included, is one element.

    >>> ensure_tuple(None), ensure_tuple("ab"), ensure_tuple([1, 2]), ensure_tuple({"k": 3})
    ((), ('ab',), (1, 2), (3,))
    """
    if x is None:
        return ()
    if isinstance(x, (str, bytes, bytearray)):
        return (x,)
    if isinstance(x, Sequence):
        return tuple(cast("Sequence[Any]", x))
    if isinstance(x, dict):
        return tuple(cast("dict[Any, Any]", x).values())
    return (x,)


def map_collection(collection: Any, map_fn: Callable[[Any], Any]) -> Any:
    """Apply a function to each element of one flat collection, which keeps its kind.

    Args:
        collection: A tuple, a list, a dict (its values are mapped), ``None`` (returned), or a single element.
        map_fn: Called with each element.

    >>> (
    ...     map_collection({"a": 1}, str),
    ...     map_collection((1, 2), str),
    ...     map_collection(None, str),
    ...     map_collection(3, str),
    ... )
    ({'a': '1'}, ('1', '2'), None, '3')
    """
    if collection is None:
        return None
    if isinstance(collection, (tuple, list)):
        return rebuild(cast("Any", collection), [map_fn(value) for value in cast("Sequence[Any]", collection)])
    if isinstance(collection, dict):
        return {key: map_fn(value) for key, value in cast("dict[Any, Any]", collection).items()}
    return map_fn(collection)


def batch_get(batch: Any, key: BatchKey) -> Any:
    """Return the part of a batch that a key names.

    Args:
        batch: Mapping, sequence, named tuple, dataclass, tensor, array or any object with attributes.
        key: An index, a mapping key or an attribute name; a dotted path such as ``"inputs.ids"`` where no part has that
            very name; a list or tuple of keys, which gives a tuple of parts; a ``(get, set)`` pair of functions or one
            function ``get(batch)``. A tensor or array is indexed by whatever it accepts.

    Raises:
        KeyError: A mapping has no such key.
        IndexError: A sequence has no such index.
        TypeError: The batch has no such attribute, or takes no key of that type.

    >>> batch_get({"image": 1, "label": {"id": 2}}, "label.id"), batch_get((5, 6, 7), [0, 2])
    (2, (5, 7))
    """
    kind = type(batch)  # pyright: ignore[reportUnknownVariableType]
    key_kind = type(key)
    if (key_kind is int and (kind is tuple or kind is list)) or (key_kind is str and kind is dict):
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


def batch_set(batch: Any, key: BatchKey, value: Any) -> Any:
    """Return a batch in which the part that a key names is ``value``; the given batch stays as it is.

    The copy is shallow: parts that are not named are shared with the given batch. A loader may hand out the same
    object each epoch, which an edit in place would corrupt.

    Args:
        batch: As for :func:`batch_get`.
        key: As for :func:`batch_get`; a single function is called as ``key(batch, value)``. A function that sets
            returns the batch, or ``None`` when it changed the batch in place. A new key can be added to a mapping.
        value: The new part; for several keys a list or tuple with one value for each.

    Raises:
        ValueError: The number of values differs from the number of keys, or of elements in a slice.
        IndexError: A sequence has no such index.
        RuntimeError: The part cannot be set.

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
    if not isinstance(value, (list, tuple)) or len(cast("Sequence[Any]", value)) != len(keys):
        given = plural(len(value), "value") if isinstance(value, (list, tuple)) else f"a {type(value).__name__}"  # pyright: ignore[reportUnknownArgumentType]
        raise ValueError(
            f"value must be a list or tuple with one value for each of the {len(keys)} keys, but got {given}."
        )
    for each, part in zip(keys, cast("Sequence[Any]", value), strict=True):
        batch = batch_set(batch, each, part)
    return batch


def _is_pair(key: Any) -> bool:
    """Whether ``key`` is a (get, set) pair of functions."""
    return (
        isinstance(key, (tuple, list)) and len(cast("Sequence[Any]", key)) == 2 and all(map(callable, cast("Any", key)))
    )


def _is_array(batch: Any) -> bool:
    """Whether ``batch`` is a tensor or array, whose own indexing takes sequences."""
    return hasattr(batch, "__array__")


def _is_multiple(batch: Any, key: Any) -> bool:
    """Whether ``key`` stands for several keys; a mapping may have a tuple as one of its keys."""
    if not isinstance(key, Sequence) or isinstance(key, (str, bytes)) or _is_array(batch):
        return False
    return not (is_mapping(batch) and type(key) is tuple and key in batch)


def _has_items(batch: Any) -> bool:
    """Whether ``batch`` is a container, whose methods are not parts of it."""
    return is_mapping(batch) or is_sequence(batch) or _is_array(batch)


def _find(batch: Any, key: Any) -> Any:
    """Return what one key names, by item, by attribute or by dotted path, or ``_MISSING``."""
    # A mapping with defaults would answer every key, and grow by it.
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


def _path_step(batch: Any, step: str) -> int | str:
    """A step of a dotted path: a number is an index, unless in a mapping."""
    return int(step) if step.isdecimal() and not isinstance(batch, Mapping) else step


def _not_found(batch: Any, key: Any) -> Exception:
    """The error for a key that names nothing in the batch."""
    kind = type(batch).__name__
    if isinstance(batch, Mapping):
        names = [str(name) for name in cast("Mapping[Any, Any]", batch)]
        hint = did_you_mean(key, names) if isinstance(key, str) else ""
        return KeyError(f"The batch, a {kind}, has no key {key!r}.{hint} Its keys: {', '.join(names) or 'none'}.")
    if _has_items(batch) and not isinstance(key, str):
        size = plural(len(batch), "element") if hasattr(batch, "__len__") else "no size"
        return IndexError(f"The batch, a {kind} of {size}, has no index {key!r}.")
    hint = did_you_mean(key, [name for name in dir(batch) if name[0] != "_"]) if isinstance(key, str) else ""
    return TypeError(
        f"The batch, a {kind}, has no part named {key!r}.{hint} Give an index, key, attribute or function."
    )


def _call_setter(setter: Callable[..., Any], batch: Any, value: Any) -> Any:
    """Set by the user's function, which may work in place."""
    try:
        inspect.signature(setter).bind(batch, value)
    except TypeError:
        raise RuntimeError(
            f"The batch key {setter!r} does not accept (batch, value), so it can only read. "
            "Give a pair of functions: (get(batch), set(batch, value))."
        ) from None
    except ValueError:  # builtins without a signature
        pass
    result = setter(batch, value)
    return batch if result is None else result


def _set_one(batch: Any, key: Any, value: Any) -> Any:
    """Set what one key names: by item, by attribute or by dotted path."""
    if is_mapping(batch):
        nested = _set_path(batch, key, value) if key not in batch else _MISSING
        return with_items(cast("Mapping[Any, Any]", batch), {key: value}) if nested is _MISSING else nested
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
        edited[key] = value
    except (TypeError, AttributeError, KeyError, IndexError) as error:
        raise RuntimeError(
            f"Cannot set {key!r} in a batch of type {type(batch).__name__}: {error} "
            "Give a pair of functions as the key: (get(batch), set(batch, value))."
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
    """Set what a dotted path names, or return ``_MISSING`` where it leads nowhere."""
    head, _, rest = key.partition(".") if isinstance(key, str) else ("", "", "")
    if not rest:
        return _MISSING
    step = _path_step(batch, head)
    inner = _find(batch, step)
    last = _path_step(inner, rest)
    if not is_mapping(inner) and (inner is _MISSING or _find(inner, last) is _MISSING):
        return _MISSING
    return _set_one(batch, step, _set_one(inner, last, value))
