"""Map and iterate over nested data: batches, outputs and states of mappings, sequences, dataclasses and tensors."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from composer._batch_keys import BatchKey, batch_get, batch_set
from composer._containers import SEQUENCES, is_sequence, rebuild, with_attributes, with_items

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


def map_tensors(fn: Callable[[Tensor], Any], tree: Any) -> Any:
    """Apply ``fn`` to every tensor of a nested structure, and keep everything else.

    Containers keep their types: mappings, lists, tuples, named tuples, dataclasses. A container without changes is
    returned itself, not a copy, so a function that returns its tensors costs no memory.

    Args:
        fn: Called with each tensor, in order.
        tree: Any nested structure, or a single tensor.

    >>> import torch
    >>> map_tensors(lambda t: t + 1, {"x": torch.zeros(1), "ids": [torch.ones(1), "name"]})
    {'x': tensor([1.]), 'ids': [tensor([2.]), 'name']}
    """
    return _map(fn, tree, False)


def map_leaves(fn: Callable[[Any], Any], tree: Any) -> Any:
    """Apply ``fn`` to every leaf (non-container) of a nested structure, as :func:`map_tensors` does to tensors.

    Args:
        fn: Called with each leaf: tensors, numbers, strings, ``None``, and objects of unknown types.
        tree: Any nested structure, or a single leaf.

    >>> map_leaves(lambda leaf: leaf * 2, [1, (2, "a")])
    [2, (4, 'aa')]
    """
    return _map(fn, tree, True)


def _map(fn: Callable[[Any], Any], tree: Any, every: bool) -> Any:
    """Apply ``fn`` to the tensors of a tree, or to every leaf.

    The most common types come first, since this runs in each training step.
    """
    container_type = type(tree)  # pyright: ignore[reportUnknownVariableType]
    if container_type is tuple or container_type is list:
        same = True
        parts: list[Any] = []
        for old in cast("Sequence[Any]", tree):
            new = fn(old) if type(old) is Tensor else _map(fn, old, every)
            if new is not old:
                same = False
            parts.append(new)
        return tree if same else parts if container_type is list else tuple(parts)
    if container_type is dict:
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
    """Return whether ``tree`` is not traversed. A packed sequence is a leaf: some of its tensors stay on the CPU."""
    if isinstance(tree, (Tensor, PackedSequence)):
        return True
    if isinstance(tree, (Mapping, *SEQUENCES)):
        return False
    return isinstance(tree, type) or not dataclasses.is_dataclass(tree)


def leaves(tree: Any) -> Iterator[Any]:
    """Iterate over the leaves (non-containers) of a nested structure, depth first.

    Args:
        tree: Nested mappings (their values), lists, tuples, named tuples and dataclasses.

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
    """Return a single value, a sequence or ``None`` as a tuple.

    Args:
        x: ``None`` gives an empty tuple, a sequence its elements, a dict its values; anything else, including a
            string, is a single element.

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
    """Apply a function to each element of one flat collection, which keeps its container_type.

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
