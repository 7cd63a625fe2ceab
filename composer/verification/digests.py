"""Digests: short fingerprints of tensors, batches and objects, equal only if the values are equal bit for bit."""

from __future__ import annotations

import hashlib
import itertools
import random
import types
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from composer import rng, trees
from composer.dist.dtensor import full_tensor
from composer.dist.tensor_digest import tensor_digest

__all__ = ["attributes", "digest", "has_generator", "is_generator", "rng_digest", "row_digest", "tagged"]

_MAX_DEPTH = 6


def digest(value: Any) -> str:
    """Return a digest of a value with nested containers, tensors, arrays and generators of random numbers.

    Args:
        value: The value. Objects of other classes count with their class and attributes.

    >>> digest({"a": [torch.ones(2), 1]}) == digest({"a": [torch.ones(2), 1]})
    True
    >>> digest([1]) == digest([1.0])
    False
    """
    hasher = hashlib.blake2b(digest_size=8)
    _update(hasher, value, 0, set())
    return hasher.hexdigest()


def _update(hasher: Any, value: Any, depth: int, seen: set[int]) -> None:
    hasher.update(type(value).__name__.encode())
    if isinstance(value, Tensor):
        hasher.update(str((value.dtype, tuple(value.shape), int(tensor_digest(full_tensor(value))))).encode())
    elif isinstance(value, np.ndarray):
        hasher.update(str((value.dtype, value.shape)).encode())
        hasher.update(repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes())
    elif value is None or isinstance(value, bool | int | float | complex | str | bytes | np.generic | torch.dtype):
        hasher.update(value.hex().encode() if isinstance(value, float) else repr(value).encode())
    elif isinstance(value, torch.Generator):
        hasher.update(value.get_state().cpu().numpy().tobytes())
    elif isinstance(value, random.Random):
        hasher.update(repr(value.getstate()).encode())
    elif isinstance(value, np.random.RandomState | np.random.Generator):
        state = value.get_state() if isinstance(value, np.random.RandomState) else value.bit_generator.state
        hasher.update(repr(state).encode())
    elif id(value) in seen or depth > _MAX_DEPTH:
        return
    else:
        seen.add(id(value))
        for part in _parts(value):
            _update(hasher, part, depth + 1, seen)


def _parts(value: Any) -> list[Any]:
    """Return what the value consists of, in an order that does not depend on memory addresses."""
    if isinstance(value, Mapping):
        return [part for item in cast("Mapping[Any, Any]", value).items() for part in item]
    if isinstance(value, set | frozenset):
        return sorted(repr(entry) for entry in cast("set[Any]", value))
    if isinstance(value, itertools.count):
        return [repr(value)]  # its next number; it has no attributes
    if isinstance(value, list | tuple) or type(value).__name__ == "deque":
        return list(cast("list[Any]", value))
    if isinstance(value, type | types.ModuleType | types.FunctionType | types.BuiltinFunctionType | types.MethodType):
        return [getattr(value, "__qualname__", None) or getattr(value, "__name__", "")]
    if isinstance(value, nn.Module):
        return [*value.named_parameters(), *value.named_buffers()]
    return [part for item in sorted(attributes(value).items()) for part in item]


def attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of an object by name, those of ``__slots__`` included.

    Args:
        value: The object.

    >>> attributes(random.Random(1)).keys() >= {"gauss_next"}
    True
    """
    slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name) and name != "__weakref__"}
    return {**found, **getattr(value, "__dict__", {})}


def tagged(value: Any) -> str:
    """Return the type of a value and its digest, ``"Generator:90ab..."``.

    Args:
        value: The value.

    >>> tagged(1).partition(":")[0]
    'int'
    """
    return f"{type(value).__name__}:{digest(value)}"


def has_generator(value: Any) -> bool:
    """Return whether an object has a generator of random numbers as an attribute.

    Args:
        value: The object.

    >>> from types import SimpleNamespace
    >>> has_generator(SimpleNamespace(random=random.Random(1)))
    True
    """
    return any(is_generator(part) for part in attributes(value).values())


def is_generator(value: Any) -> bool:
    """Return whether a value is a generator of random numbers.

    Args:
        value: The value.

    >>> is_generator(random.Random(1))
    True
    """
    return isinstance(value, torch.Generator | random.Random | np.random.Generator | np.random.RandomState)


def row_digest(row: Any) -> str:
    """Return a digest of one sample that does not depend on how far its batch is padded.

    Args:
        row: A batch of one sample.

    >>> row_digest(torch.tensor([[5, 6, 0, 0]])) == row_digest(torch.tensor([[5, 6, 0]]))
    True
    """
    return digest([_without_padding(leaf) if isinstance(leaf, Tensor) else leaf for leaf in trees.leaves(row)])


def _without_padding(leaf: Tensor) -> Tensor:
    """Return a tensor without the equal values at its end, all but one; only integers and flags are padded."""
    if leaf.is_floating_point() or leaf.ndim != 2 or leaf.shape[1] < 2:
        return leaf
    differs = (leaf != leaf[:, -1:]).any(0).nonzero()
    end = int(differs[-1]) + 2 if len(differs) else 1
    return leaf[:, :end]


def rng_digest() -> str:
    """Return a digest of the random state of this process: Python, NumPy, torch on the CPU and on the accelerator.

    >>> before = rng_digest()
    >>> _ = torch.rand(())
    >>> rng_digest() == before
    False
    """
    return digest(rng.get_local_rng_state())
