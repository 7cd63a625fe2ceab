"""Check the pickled index of a ``torch.save`` file (storages, tensors, arrays) before ``torch.load`` unpickles it.

``torch.load(weights_only=True)`` restricts which functions an index may call, but does not check all of their
arguments: ``torch.Tensor(1000)`` is uninitialized memory, a state can set any attribute of a tensor, and an array can
claim to be larger than its bytes. So calls of the allowed functions must have the form that ``torch.save`` writes.
Functions that are not in the table below are left to ``torch.load``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from composer.checkpoint.pickle_nodes import Call, Named, Persistent
from composer.checkpoint.pickle_outline import CodeError, Outline

__all__ = ["Storage", "check_index", "dtypes_of_storages", "paths_of_storages", "storage_of"]

# Views may repeat the elements of a storage, as expanded tensors do, up to this limit.
_MOST_REPEATS = 8
_ALWAYS_ALLOWED = 64 << 20
_ARRAY = re.compile(r"numpy\.(_)?core\.multiarray\.(_reconstruct|scalar)")
_NUMBER = re.compile(r"b1|[iu][1248]|f(2|4|8|16)|\?")


@dataclass(frozen=True)
class Storage:
    """A reference to a storage in an index.

    Attributes:
        key: Key of the storage in the file.
        size: Number of bytes.
        itemsize: Number of bytes per element.

    >>> Storage("0", 8, 4).key
    '0'
    """

    key: str
    size: int
    itemsize: int


@dataclass
class _Seen:
    """State of the check: bytes of each storage in the file, keys in use, and the views seen so far."""

    sizes: Mapping[str, int]
    storages: set[str] = field(default_factory=set)
    views: dict[Any, int] = field(default_factory=dict)


def check_index(described: Outline, sizes: Mapping[str, int]) -> set[str]:
    """Check that an index describes only what its file contains.

    Args:
        described: The parsed index.
        sizes: Number of bytes of each storage in the file, by its key.

    Returns:
        The keys of the storages in use.

    Raises:
        CodeError: The index has an array of objects.
        ValueError: The index does not match the file, or does not have the form that torch writes.

    >>> from composer.checkpoint.pickle_outline import outline
    >>> check_index(outline(b"\\x80\\x02}q\\x00."), {})
    set()
    """
    seen = _Seen(sizes)
    for node in described.nodes:
        if type(node) is Persistent:
            seen.storages.add(_checked_storage(node, seen).key)
        elif type(node) is Call:
            _check_call(node, seen)
    most = _MOST_REPEATS * sum(sizes.values()) + _ALWAYS_ALLOWED
    if (total := sum(seen.views.values())) > most:
        raise ValueError(f"its tensors claim to have {total} bytes, many times what is stored")
    return seen.storages


def storage_of(node: Persistent) -> Storage:
    """Return the storage that a persistent ID refers to.

    Args:
        node: The persistent ID.

    Raises:
        ValueError: It does not have the form that torch writes.

    >>> storage_of(Persistent(("storage", Named("torch.FloatStorage"), "0", "cpu", 2)))
    Storage(key='0', size=8, itemsize=4)
    """
    fields: tuple[Any, ...] = node.key if type(node.key) is tuple else ()
    if len(fields) not in (5, 6) or fields[0] not in ("storage", b"storage") or not isinstance(fields[1], Named):
        raise ValueError("it refers to an object that is not a storage")
    _, cls, key, location, length = fields[:5]
    dtype = dtypes_of_storages().get(cls.name)
    if dtype is None:
        raise ValueError(f"it refers to a storage of an unknown type {cls.name!r}")
    itemsize = dtype.itemsize
    if type(key) not in (str, bytes) or type(location) not in (str, bytes) or not _is_count(length):
        raise ValueError("it refers to a storage without a valid key, location or size")
    return Storage(key.decode() if type(key) is bytes else key, length * itemsize, itemsize)


def paths_of_storages(node: Any, path: str = "") -> list[tuple[str, str]]:
    """Return the path in the checkpoint and the storage key of each tensor in an index.

    Args:
        node: The root of the index.
        path: Prefix of the paths.

    >>> paths_of_storages({"a": [Persistent(("storage", Named("torch.FloatStorage"), "7", "cpu", 2))]})
    [('a/0', '7')]
    """
    if type(node) is Persistent:
        return [(path, storage_of(node).key)]
    if type(node) is dict:
        pairs: list[tuple[Any, Any]] = list(cast("dict[Any, Any]", node).items())
    elif type(node) in (list, tuple):
        pairs = list(enumerate(cast("list[Any]", node)))
    elif type(node) is Call and node.name == "collections.OrderedDict":
        pairs = list(zip(node.items[::2], node.items[1::2], strict=True))
    elif type(node) is Call and type(node.args) is tuple:
        return [found for part in node.args for found in paths_of_storages(part, path)]
    else:
        return []
    return [found for key, value in pairs for found in paths_of_storages(value, f"{path}/{key}".lstrip("/"))]


def _checked_storage(node: Any, seen: _Seen) -> Storage:
    if type(node) is not Persistent:
        raise ValueError("it has a tensor without a storage")
    storage = storage_of(node)
    if storage.key not in seen.sizes:
        raise ValueError(f"it refers to a storage {storage.key!r} that the file does not have")
    if seen.sizes[storage.key] != storage.size:
        raise ValueError(f"its storage {storage.key!r} has {seen.sizes[storage.key]} bytes of {storage.size}")
    return storage


def _check_call(call: Call, seen: _Seen) -> None:
    name = call.name
    array = _ARRAY.fullmatch(name)
    check = _CHECKS.get(name) or (_CHECKS[f"numpy.{array[2]}"] if array else None)
    if check is not None:
        check(call, seen)
    elif name in _uninitialized():
        raise ValueError(f"it creates an uninitialized {name!r}")


def _has(call: Call, count: int, *more: int, states: int = 0, items: bool = False) -> tuple[Any, ...]:
    """Return the arguments of a call after checking their number, and that it has no unexpected states or items."""
    args = call.args
    if len(args) not in (count, *more) or len(call.states) > states or (call.items and not items):
        raise ValueError(f"it constructs {call.name!r} in another way than torch does")
    return args


def _check_tensor(call: Call, seen: _Seen) -> None:
    storage, offset, size, stride, _, hooks = _has(call, 6, 7)[:6]
    _check_hooks(hooks)
    _check_view(_checked_storage(storage, seen), offset, size, stride, None, seen)


def _check_first_tensor(call: Call, seen: _Seen) -> None:
    storage, offset, size, stride = _has(call, 4)
    _check_view(_checked_storage(storage, seen), offset, size, stride, None, seen)


def _check_typed_tensor(call: Call, seen: _Seen) -> None:
    storage, offset, size, stride, _, hooks, dtype = _has(call, 7, 8)[:7]
    found = getattr(torch, dtype.name.removeprefix("torch."), None) if isinstance(dtype, Named) else None
    if not isinstance(found, torch.dtype):
        raise ValueError("it has a tensor of an unknown dtype")
    _check_hooks(hooks)
    _check_view(_checked_storage(storage, seen), offset, size, stride, found.itemsize, seen)


def _check_quantized(call: Call, seen: _Seen) -> None:
    storage, offset, size, stride, _, _, hooks = _has(call, 7)
    _check_hooks(hooks)
    _check_view(_checked_storage(storage, seen), offset, size, stride, None, seen)


def _check_view(storage: Storage, offset: Any, size: Any, stride: Any, itemsize: int | None, seen: _Seen) -> None:
    size, stride = (value.args[0] if _is_size(value) else value for value in (size, stride))
    if not _is_count(offset) or not _are_counts(size) or not _are_counts(stride) or len(size) != len(stride):
        raise ValueError("it has a tensor without a shape")
    itemsize = itemsize or storage.itemsize
    elements = 1
    for length in size:
        elements *= length
    last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
    if elements and (last + 1) * itemsize > storage.size:
        raise ValueError(f"it has a tensor of shape {size} that its storage {storage.key!r} does not hold")
    seen.views[storage.key, offset, size, stride, itemsize] = elements * itemsize


def _check_hooks(hooks: Any) -> None:
    is_empty = isinstance(hooks, Call) and not hooks.args and not hooks.items and not hooks.states
    if hooks is not None and not (is_empty and hooks.name == "collections.OrderedDict"):
        raise ValueError("it has a tensor with hooks")


def _check_parameter(call: Call, seen: _Seen) -> None:
    data, _, hooks = _has(call, 3)
    _check_is_tensor(data)
    _check_hooks(hooks)


def _check_parameter_with_state(call: Call, seen: _Seen) -> None:
    data, _, hooks, state = _has(call, 4)
    _check_is_tensor(data)
    _check_hooks(hooks)
    _check_attributes(state)


def _check_of_type(call: Call, seen: _Seen) -> None:
    function, _, args, state = _has(call, 4)
    if not isinstance(function, Named) or not function.name.startswith("torch._utils._rebuild_"):
        raise ValueError("it has a tensor that is constructed in another way than torch does")
    _check_call(Call(function, args), seen)
    _check_attributes(state)


def _check_is_tensor(node: Any) -> None:
    if not isinstance(node, Call) or "_rebuild_" not in node.name:
        raise ValueError("it has a parameter that is not a tensor")


def _check_attributes(state: Any) -> None:
    for part in cast("tuple[Any, ...]", state) if type(state) is tuple else (state,):
        if part is None:
            continue
        if type(part) is not dict:
            raise ValueError("it has a tensor with an invalid state")
        for name in cast("dict[Any, Any]", part):
            if type(name) is not str or hasattr(Tensor, name) or name in _OF_SUBCLASSES:
                raise ValueError(f"it sets the attribute {name!r} of a tensor")


# Attributes by which distributed tensors are recognized.
_OF_SUBCLASSES = frozenset({"placements", "device_mesh", "to_local", "full_tensor", "_local_tensor", "_spec"})


def _check_ordered(call: Call, seen: _Seen) -> None:
    _has(call, 0, 1, states=1, items=True)
    # The metadata that torch stores with a state dict.
    if call.states and (type(call.states[0]) is not dict or set(call.states[0]) - {"_metadata", b"_metadata"}):
        raise ValueError("it sets attributes of a dict")


def _check_bytes(call: Call, seen: _Seen) -> None:
    if _has(call, 0, 1, 2) and type(call.args[0]) not in (str, bytes, Call):
        raise ValueError("it makes bytes of nothing")


def _check_no_bytes(call: Call, seen: _Seen) -> None:
    if _has(call, 0):
        raise ValueError("it makes bytes of nothing")


def _check_encoded(call: Call, seen: _Seen) -> None:
    text, codec = _has(call, 2)
    # Other codecs can take time and memory out of proportion to the text.
    if type(text) is not str or codec not in ("latin1", "latin-1", "ascii", "utf-8"):
        raise ValueError("it has bytes that are encoded in another way than Python does")


def _check_size(call: Call, seen: _Seen) -> None:
    if not _are_counts(_has(call, 1)[0]):
        raise ValueError("it has an invalid size")


def _check_dtype(call: Call, seen: _Seen) -> None:
    cls, *rest = _has(call, 3, states=1)
    state = call.states[0] if call.states else (3, "<", None, None, None, -1, -1, 0)
    fits = type(state) is tuple and len(state) == 8 and state[0] == 3 and state[2:] == (None, None, None, -1, -1, 0)
    if type(cls) is str and not _NUMBER.fullmatch(cls):
        raise CodeError(f"it has an array of {cls!r}, which is not a numeric dtype")
    if type(cls) is not str or rest != [False, True] or not fits or state[1] not in ("<", ">", "|", "="):
        raise ValueError("it has an array of an unknown dtype")


def _check_array(call: Call, seen: _Seen) -> None:
    cls, shape, code = _has(call, 3, states=1)
    if not isinstance(cls, Named) or cls.name != "numpy.ndarray" or shape != (0,) or _length(code) != 1:
        raise ValueError("it has an array that is constructed in another way than numpy does")
    if not call.states:
        return
    state = call.states[0]
    if type(state) is not tuple or len(state) != 5 or state[0] != 1 or not _are_counts(state[1]):
        raise ValueError("it has an array without a shape")
    count = 1
    for length in state[1]:
        count *= length
    _check_elements(state[2], count, state[4])


def _check_scalar(call: Call, seen: _Seen) -> None:
    dtype, content = _has(call, 2)
    _check_elements(dtype, 1, content)


def _check_elements(dtype: Any, count: int, content: Any) -> None:
    if not isinstance(dtype, Call) or dtype.name != "numpy.dtype" or not _NUMBER.fullmatch(str(dtype.args[0])):
        raise ValueError("it has an array of a dtype that is not numeric")
    itemsize = int(re.sub(r"\D", "", dtype.args[0]) or 1)
    if _length(content) != count * itemsize:
        raise ValueError(f"it has an array of {count} numbers without their {count * itemsize} bytes")


def _length(content: Any) -> int:
    """Return the length of bytes, which pickle protocol 2 stores as encoded text; -1 for anything else."""
    if isinstance(content, Call) and content.name == "_codecs.encode" and content.args[1:] == ("latin1",):
        content = content.args[0]
    elif isinstance(content, Call) and content.name == "builtins.bytes":
        return 0
    return len(content) if isinstance(content, (str, bytes)) else -1


def _raise_not_allowed(call: Call, seen: _Seen) -> None:
    raise ValueError(f"it makes {call.name!r}, which is not allowed in a checkpoint")


def _is_size(node: Any) -> bool:
    return isinstance(node, Call) and node.name == "torch.Size" and len(node.args) == 1


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _are_counts(values: Any) -> bool:
    return type(values) is tuple and len(values) <= 64 and all(map(_is_count, values))


_CHECKS: dict[str, Callable[[Call, _Seen], None]] = {
    "torch._utils._rebuild_tensor": _check_first_tensor,
    "torch._utils._rebuild_tensor_v2": _check_tensor,
    "torch._utils._rebuild_tensor_v3": _check_typed_tensor,
    "torch._utils._rebuild_qtensor": _check_quantized,
    "torch._utils._rebuild_parameter": _check_parameter,
    "torch._utils._rebuild_parameter_with_state": _check_parameter_with_state,
    "torch._utils._rebuild_nested_tensor": _raise_not_allowed,
    "torch._utils._rebuild_meta_tensor_no_storage": _raise_not_allowed,
    "torch._tensor._rebuild_from_type_v2": _check_of_type,
    "torch.Size": _check_size,
    "collections.OrderedDict": _check_ordered,
    "builtins.bytearray": _check_bytes,
    "builtins.bytes": _check_no_bytes,
    "_codecs.encode": _check_encoded,
    "numpy.dtype": _check_dtype,
    "numpy._reconstruct": _check_array,
    "numpy.scalar": _check_scalar,
}


@functools.lru_cache(maxsize=1)
def dtypes_of_storages() -> dict[str, torch.dtype]:
    """Return the dtype of each storage class, by class name; that of bytes for untyped storages.

    >>> dtypes_of_storages()["torch.FloatStorage"]
    torch.float32
    """
    classes: Any = torch._storage_classes  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportAttributeAccessIssue]
    # The public attribute raises a deprecation warning.
    found = {f"{one.__module__}.{one.__name__}": getattr(one, "_dtype", torch.uint8) for one in classes}
    return {name: dtype if isinstance(dtype, torch.dtype) else torch.uint8 for name, dtype in found.items()}


@functools.lru_cache(maxsize=1)
def _uninitialized() -> frozenset[str]:
    """Return the classes whose constructors return uninitialized memory."""
    classes: Any = (*torch._tensor_classes, *torch._storage_classes)  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportAttributeAccessIssue]
    names = {f"{one.__module__}.{one.__name__}" for one in classes}
    return frozenset({*names, "torch.Tensor", "torch.nn.parameter.Parameter"})
