"""Digests of a few elements of tensors, arrays and containers, at fixed positions."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from composer.dist.dtensor import is_dtensor

__all__ = ["digest_elements", "digest_tensors", "is_path", "is_scalar", "rows_of", "sample_tensor"]

_NUMBERS = (bool, int, float, complex, np.generic)
# Elements that are read of a container of numbers and texts, and of one of other values.
_MAX_SCALARS, _MAX_VALUES, _MAX_DEPTH = 256, 24, 3
# A memory-mapped array is read from a disk, which may be far away.
_MAX_MAPPED = 16
_NO_DIGEST = "-" * 8


def digest_tensors(tensors: Sequence[Tensor], count: int = 16) -> list[str]:
    """Return a digest of the shape, the dtype and a few elements of each tensor: eight characters.

    There is one copy to the host for each device. A sharded tensor counts with its local shard.

    Args:
        tensors: The tensors; those without values, as on the meta device, get a constant.
        count: Number of elements of each, at most about twice as many.

    >>> one, other, empty = digest_tensors([torch.zeros(9), torch.ones(9), torch.ones(9, device="meta")])
    >>> one == other, empty
    (False, '--------')
    """
    samples = [sample_tensor(tensor, count) for tensor in tensors]
    by_device: defaultdict[torch.device, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        if sample is not None:
            by_device[sample.device].append(index)
    found = [_NO_DIGEST] * len(tensors)
    for indices in by_device.values():
        parts = [cast(Tensor, samples[index]) for index in indices]
        data = torch.cat(parts).cpu().numpy().tobytes()
        at = 0
        for index, part in zip(indices, parts, strict=True):
            facts = f"{tensors[index].dtype}{tuple(tensors[index].shape)}".encode()
            found[index] = hashlib.blake2b(facts + data[at : at + len(part)], digest_size=4).hexdigest()
            at += len(part)
    return found


@torch.no_grad()
def sample_tensor(tensor: Tensor, count: int) -> Tensor | None:
    """Return the bytes of a few elements of a tensor, uint8 (n,) on its device; None if it has no values.

    Args:
        tensor: Any tensor. Of a sharded one, the local shard is read.
        count: Number of elements, at most about twice as many.

    >>> sample_tensor(torch.arange(100, dtype=torch.uint8), 4)
    tensor([ 0, 25, 50, 75, 99], dtype=torch.uint8)
    """
    if is_dtensor(tensor):
        tensor = cast(Any, tensor).to_local()
    is_odd = tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested
    if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta or is_odd or hasattr(type(tensor), "__tensor_flatten__"):
        return None
    with torch._C.DisableTorchFunctionSubclass():  # pyright: ignore[reportPrivateUsage] - such as a subclass that notes its operations
        tensor = tensor.detach().as_subclass(Tensor)
        flat, row = _flat(tensor, count), math.prod(tensor.shape[1:])
        step = _step(flat.numel(), row, count)
        parts = flat if step == 1 else torch.cat([flat[::step], flat[-1:]])
        parts = parts.resolve_conj().resolve_neg().contiguous()
        return parts.reshape(-1).view(torch.uint8)


def _flat(tensor: Tensor, count: int) -> Tensor:
    """Return the elements in the order of the memory, without a copy; only a few of a tensor with gaps."""
    if tensor.is_contiguous():
        return tensor.view(-1)
    ordered = tensor.permute(sorted(range(tensor.ndim), key=lambda dim: -tensor.stride(dim)))
    if ordered.is_contiguous():
        return ordered.view(-1)
    each = max(2, int(count ** (1 / tensor.ndim)))
    few = tuple(slice(None, None, max(1, -(-size // each))) for size in tensor.shape)
    return tensor[few].reshape(-1)


def _step(size: int, row: int, count: int) -> int:
    """Return the distance of the elements to read: they are in all columns, as some may be constant."""
    step = max(1, -(-size // count))
    while step > 1 and math.gcd(step, row) > 1:
        step += 1
    return step


def digest_elements(value: Any) -> str:
    """Return a digest of a few elements of a value with nested containers, tensors and arrays: eight characters.

    Of a path only the last part counts, as data may be moved.

    Args:
        value: The value. An object of another class counts with its class and attributes.

    >>> digest_elements(list(range(9000))) == digest_elements(list(range(1, 9001)))
    False
    >>> digest_elements(["a/1.png"]) == digest_elements(["b/1.png"])
    True
    """
    hasher = hashlib.blake2b(digest_size=4)
    _update(hasher, value, 0)
    return hasher.hexdigest()


def is_scalar(value: Any) -> bool:
    """Return whether a value is a number, a text, or None.

    Args:
        value: Any value.

    >>> is_scalar(1.5), is_scalar([])
    (True, False)
    """
    return value is None or isinstance(value, (*_NUMBERS, str, bytes))


def is_path(value: Any) -> bool:
    """Return whether a value is a path, or a text with separators.

    Args:
        value: Any value.

    >>> is_path("data/train"), is_path("train")
    (True, False)
    """
    return isinstance(value, os.PathLike) or (type(value) is str and (os.sep in value or "/" in value))


def _update(hasher: Any, value: Any, depth: int) -> None:
    if is_path(value):
        text = os.fspath(value)
        hasher.update((text if isinstance(text, str) else repr(text)).rstrip("/").rpartition("/")[2].encode())
    elif is_scalar(value):
        hasher.update(f"{type(value).__name__} {value!r}".encode(errors="replace"))
    elif isinstance(value, Tensor):
        hasher.update(digest_tensors([value], _MAX_SCALARS if depth == 0 else _MAX_VALUES)[0].encode())
    elif isinstance(value, np.ndarray):
        _update_array(hasher, value, depth)
    else:
        hasher.update(type(value).__qualname__.encode())
        if depth < _MAX_DEPTH:
            for part in _parts(value, depth):
                _update(hasher, part, depth + 1)


def _update_array(hasher: Any, value: np.ndarray[Any, Any], depth: int) -> None:
    hasher.update(f"{value.dtype}{value.shape}".encode())
    count = _MAX_SCALARS if depth == 0 else _MAX_VALUES
    if _is_mapped(value):
        count = min(count, _MAX_MAPPED)
    step = _step(value.size, math.prod(value.shape[1:]), count)
    few = np.asarray(value).flat[[*range(0, value.size, step), value.size - 1] if value.size else []]
    if value.dtype.hasobject:
        for one in few.tolist():
            _update(hasher, one, depth + 1)
    else:
        hasher.update(few.tobytes())


def _is_mapped(value: Any) -> bool:
    while isinstance(value, np.ndarray):
        if isinstance(value, np.memmap):
            return True
        value = value.base
    return False


def _parts(value: Any, depth: int) -> Sequence[Any]:
    """Return a few elements of a container, or the attributes of an object."""
    if isinstance(value, (list, tuple)):
        cls: Any = list if isinstance(value, list) else tuple
        size = cls.__len__(value)  # pyright: ignore[reportUnknownVariableType] - a subclass may define others
        few = _few(lambda at: cls.__getitem__(value, at), size, depth)
        return [size, *few]
    if isinstance(value, dict):
        items = itertools.islice(dict.items(value), _MAX_VALUES)  # in the order in which they were added
        return [dict.__len__(value), *(part for item in items for part in item)]
    if isinstance(value, (set, frozenset)):
        # Their order differs from process to process.
        is_small = len(value) <= _MAX_SCALARS and all(map(is_scalar, value))
        return [len(value), *(sorted(map(repr, value)) if is_small else [])]
    found = rows_of(value)
    if found is not None:
        return found
    held: Mapping[str, Any] = getattr(value, "__dict__", {}) if not isinstance(value, type) else {}
    return [part for name, one in list(held.items())[:_MAX_VALUES] if not callable(one) for part in (name, one)]


def _few(get: Any, size: int, depth: int) -> list[Any]:
    if size == 0:
        return []
    count = _MAX_SCALARS if is_scalar(get(0)) and depth < 2 else _MAX_VALUES
    step = max(1, -(-size // count))
    return [*get(slice(None, None, step)), get(size - 1)]


def rows_of(value: Any) -> list[Any] | None:
    """Return the shape and a few rows of a table of pandas or pyarrow, which have no elements in attributes; or None.

    Args:
        value: Any value.

    >>> import pandas
    >>> rows_of(pandas.DataFrame({"a": [5, 6]}))
    [(2, 1), [5], [6]]
    """
    library = type(value).__module__.partition(".")[0]
    pandas, pyarrow = (sys.modules.get(name) for name in ("pandas", "pyarrow"))
    if library == "pandas" and pandas is not None and isinstance(value, (pandas.DataFrame, pandas.Series)):
        at = _positions(len(value))
        few = value.iloc[at, :_MAX_VALUES] if isinstance(value, pandas.DataFrame) else value.iloc[at]
        return [value.shape, *few.to_numpy(dtype=object).tolist()]
    if library == "pyarrow" and pyarrow is not None and isinstance(value, pyarrow.Table):
        columns = value.columns[:_MAX_VALUES]
        return [value.shape, *([column[at].as_py() for column in columns] for at in _positions(value.num_rows))]
    return None


def _positions(size: int) -> list[int]:
    return sorted({*range(0, size, max(1, -(-size // _MAX_MAPPED))), max(size - 1, 0)}) if size else []
