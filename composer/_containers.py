"""Copy containers (lists, tuples, mappings, dataclasses, other objects), and keep their type."""

from __future__ import annotations

import copy
import dataclasses
from collections import UserList, deque
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, Final, cast

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset

__all__ = [
    "PLAIN",
    "SEQUENCES",
    "copy_containers",
    "is_mapping",
    "is_sequence",
    "rebuild",
    "with_attributes",
    "with_items",
]

SEQUENCES = (tuple, list, deque, UserList)
"""Sequence types whose elements are traversed. Others, such as lazy datasets and ranges, are leaves."""

PLAIN: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})
"""Types of values that cannot be modified."""

# Objects that a batch may refer to, but that are no part of it.
_NO_PART: Final = (type, ModuleType, nn.Module, Dataset)


def is_sequence(tree: Any) -> bool:
    """Return whether an object is a sequence to traverse; unlike ``isinstance``, this does not narrow its type.

    Args:
        tree: Any object.

    >>> is_sequence([]), is_sequence("text")
    (True, False)
    """
    return isinstance(tree, SEQUENCES)


def is_mapping(tree: Any) -> bool:
    """Return whether an object is a mapping; unlike ``isinstance``, this does not narrow its type.

    Args:
        tree: Any object.

    >>> is_mapping({}), is_mapping([])
    (True, False)
    """
    cls = type(tree)  # the usual batches first, since the check of an abstract class takes long
    return cls is dict or (cls is not tuple and cls is not list and isinstance(tree, Mapping))


def with_items(pairs: Mapping[Any, Any], changes: Mapping[Any, Any]) -> Any:
    """Return a copy of a mapping with some items replaced.

    Args:
        pairs: The mapping; a type that cannot be copied and set gives a plain dict.
        changes: The new items.

    >>> with_items({"x": 1, "y": 2}, {"y": 3})
    {'x': 1, 'y': 3}
    """
    if type(pairs) is dict:
        return {**pairs, **changes}
    try:
        result: Any = copy.copy(pairs)
        for key, value in changes.items():
            result[key] = value
    except TypeError:
        return {**pairs, **changes}
    return result


def with_attributes(obj: Any, changes: Mapping[str, Any]) -> Any:
    """Return a shallow copy of an object with some attributes replaced, or the object itself if there are none.

    Args:
        obj: Any object that can be copied; a frozen dataclass too.
        changes: The new attributes.

    Raises:
        RuntimeError: An attribute cannot be set.

    >>> import types
    >>> with_attributes(types.SimpleNamespace(x=1, y=2), {"y": 3})
    namespace(x=1, y=3)
    """
    if not changes:
        return obj
    result = copy.copy(obj)
    # Nobody else has the copy of a frozen dataclass yet, so it is safe to set its attributes.
    assign = object.__setattr__ if dataclasses.is_dataclass(obj) else setattr
    for name, value in changes.items():
        try:
            assign(result, name, value)
        except (AttributeError, TypeError) as error:
            raise RuntimeError(f"Cannot set {name!r} in an object of type {type(obj).__name__}: {error}.") from error
    return result


def rebuild(like: Any, parts: list[Any]) -> Any:
    """Return a sequence of the same type as another.

    Args:
        like: A list, tuple, named tuple, deque or another type in :data:`SEQUENCES`.
        parts: The elements.

    >>> rebuild((1, 2), [3, 4])
    (3, 4)
    """
    container_type = type(like)
    if container_type is list:
        return parts
    if hasattr(container_type, "_make"):
        return container_type._make(parts)
    if container_type is deque:
        return deque(parts, like.maxlen)
    try:
        return container_type(parts)
    except TypeError:
        return tuple(parts) if isinstance(like, tuple) else parts


def copy_containers(tree: Any, *, with_tensors: bool = False) -> Any:
    """Copy the containers of a batch at any depth, so that edits of the copy do not affect it; types are kept.

    Containers are the batch itself, mappings, sequences, sets, dataclasses, and other objects with tensors or arrays in
    their attributes, except modules and datasets. What is found twice is copied once. An object that cannot be copied
    is kept itself; a mapping that cannot be copied or set becomes a plain dict.

    Args:
        tree: A batch.
        with_tensors: Whether to copy tensors and arrays as well, for edits in place. Each gets memory of its own, also
            if several share it. A tensor that requires a gradient gets one of its own.

    >>> import torch
    >>> batch = {"x": [torch.ones(1)]}
    >>> kept = copy_containers(batch)
    >>> kept["x"] is batch["x"], kept["x"][0] is batch["x"][0]
    (False, True)
    >>> copy_containers(batch, with_tensors=True)["x"][0].add_(1), batch["x"][0]
    (tensor([2.]), tensor([1.]))
    """
    if not with_tensors:  # the most common batches first, since this runs in each step
        cls = type(tree)
        if cls is tuple or cls is list:
            for part in tree:
                if type(part) is not Tensor:
                    break
            else:
                return tree if cls is tuple else tree.copy()
        elif cls is dict:
            for part in cast("dict[Any, Any]", tree).values():
                if type(part) is not Tensor:
                    break
            else:
                return tree.copy()
        elif isinstance(tree, Tensor):
            return tree
    return _Copies(tree, with_tensors).of(tree)


class _Copies:
    """Copies of containers: one of each object.

    Args:
        batch: The outermost object.
        with_tensors: Whether to copy tensors and arrays as well.
    """

    def __init__(self, batch: Any, with_tensors: bool) -> None:
        self._batch, self._with_tensors = batch, with_tensors
        # By the id of the object, which is kept, so that no other object gets its id meanwhile.
        self._made: dict[int, tuple[Any, Any]] = {}

    def of(self, tree: Any) -> Any:
        """Return the copy of an object."""
        is_tensor = isinstance(tree, Tensor)
        if (is_tensor and not self._with_tensors) or type(tree) in PLAIN:
            return tree
        if (known := self._made.get(id(tree))) is not None:
            return known[1]
        cls = type(tree)
        if cls is list:
            made = self._note(tree, [])
            made.extend([self.of(part) for part in tree])
            return made
        if cls is dict:
            made = self._note(tree, {})
            made.update({key: self.of(part) for key, part in cast("dict[Any, Any]", tree).items()})
            return made
        if cls is tuple:
            return self._note(tree, tuple([self.of(part) for part in tree]))
        return self._note(tree, _copied_tensor(tree)) if is_tensor else self._of_other(tree)

    def _note(self, tree: Any, made: Any) -> Any:
        self._made[id(tree)] = tree, made
        return made

    def _of_other(self, tree: Any) -> Any:
        """Return the copy of an object of a less common type."""
        if isinstance(tree, SEQUENCES):
            self._note(tree, tree)  # until the copy is made, in case it contains itself
            return self._note(tree, rebuild(tree, [self.of(part) for part in tree]))
        if isinstance(tree, Mapping):
            self._note(tree, tree)
            copies = [(key, old, self.of(old)) for key, old in cast("Mapping[Any, Any]", tree).items()]
            return self._note(tree, with_items(tree, {key: new for key, old, new in copies if new is not old}))
        if isinstance(tree, np.ndarray):
            return self._note(tree, tree.copy()) if self._with_tensors else tree
        if isinstance(tree, set):
            return self._note(tree, copy.copy(cast("set[Any]", tree)))
        if isinstance(tree, _NO_PART):
            return tree
        is_container = tree is self._batch or dataclasses.is_dataclass(tree) or _holds_tensor(tree, set())
        return self._of_object(tree) if is_container else tree

    def _of_object(self, tree: Any) -> Any:
        try:
            made = self._note(tree, copy.copy(tree))
        except TypeError:
            return self._note(tree, tree)
        for name, old in _attributes(made).items():  # of the copy, which may have made new ones that refer to it
            if (new := self.of(old)) is not old:
                # As in the constructor: a class may forbid to set attributes, or set them elsewhere.
                object.__setattr__(made, name, new)
        return made


def _copied_tensor(tensor: Tensor) -> Tensor:
    made = tensor.clone()
    if tensor.requires_grad and tensor.is_leaf:
        made = made.detach().requires_grad_()
    vars(made).update(vars(tensor) | vars(made))  # such as marks of dynamic dimensions
    return made


def _attributes(obj: Any) -> dict[str, Any]:
    """Return the attributes of an object, in its ``__dict__`` and in slots."""
    slots = [getattr(cls, "__slots__", ()) for cls in type(obj).__mro__]
    names = [name for each in slots for name in ([each] if isinstance(each, str) else each)]
    found = {name: getattr(obj, name) for name in names if not name.startswith("__") and hasattr(obj, name)}
    return found | getattr(obj, "__dict__", {})


def _holds_tensor(tree: Any, seen: set[int]) -> bool:
    """Return whether an object is a tensor or array, or has one in its elements or attributes at any depth."""
    if isinstance(tree, (Tensor, np.ndarray)):
        return True
    if id(tree) in seen or isinstance(tree, _NO_PART):
        return False
    seen.add(id(tree))
    parts: Iterable[Any]
    if isinstance(tree, Mapping):
        parts = cast("Mapping[Any, Any]", tree).values()
    else:
        parts = tree if isinstance(tree, SEQUENCES) else _attributes(tree).values()
    return any(_holds_tensor(part, seen) for part in parts)
