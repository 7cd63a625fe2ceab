"""Digests of the attributes of the training data, by path: ``dataset.indices``, ``sampler.weights``.

Only what objects have in memory is read: no sample is fetched, and no method or property of the program is called.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from composer._text import dtype_name
from composer.core.data_spec import DataSpec
from composer.trainer.fingerprint.sampled import digest_elements, digest_tensors, is_path, is_scalar, rows_of

__all__ = ["NUMBER", "SETTING", "TEXT", "fingerprint_of_data"]

# Kinds of entries: a number of an object, of a class of torch, a text. Others describe what there is: "list of 5".
NUMBER, SETTING, TEXT = "number", "setting", "text"

_MAX_ENTRIES, _MAX_DEPTH, _MAX_LISTED = 256, 6, 16
_LOADER_ATTRIBUTES = ("dataset", "sampler", "batch_sampler", "batch_size", "drop_last", "collate_fn", "num_workers")
_MODULE_ATTRIBUTES = ("_parameters", "_buffers", "_modules")
# Names of what changes with use, and is no part of the data.
_CHANGING = frozenset({"cache", "cached", "memo", "lock", "epoch", "iterator", "logger"})
# Modules of classes that are not data: files, processes, random generators, parts of the run.
_NOT_DATA = (
    *("_io.", "io.", "_thread.", "threading.", "multiprocessing.", "concurrent.", "asyncio.", "socket.", "logging."),
    *("weakref.", "random.", "_random.", "numpy.random.", "torch._C.", "tempfile.", "subprocess.", "itertools."),
    *("composer.core.", "composer.trainer.", "composer.loggers.", "collections.deque."),
)
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


def fingerprint_of_data(spec: DataSpec | None) -> dict[str, list[str]]:
    """Return what the training data has, by path: what it is, and a digest of its elements or the number itself.

    Args:
        spec: The training data.

    >>> from torch.utils.data import TensorDataset, random_split
    >>> data, _ = random_split(TensorDataset(torch.arange(10)), [8, 2])
    >>> found = fingerprint_of_data(DataSpec(DataLoader(data, batch_size=4)))
    >>> (
    ...     found["batch_size"],
    ...     found["dataset"],
    ...     found["dataset.indices"][0],
    ...     found["dataset.dataset.tensors.0"][0],
    ... )
    (['setting', '4'], ['object', 'Subset'], 'list of 8', 'int64 (10,)')
    """
    walk = _Walk()
    if spec is None:
        return walk.found
    held = vars(spec)
    if (samples := held.get("num_samples")) is not None:
        walk.found["num_samples"] = [SETTING, str(samples)]
    loader = held.get("dataloader")
    if isinstance(loader, DataLoader):
        walk.found["dataloader"] = ["object", type(loader).__qualname__]
        own = vars(loader)
        names = [*_LOADER_ATTRIBUTES, *(name for name in own if name not in _torch_attributes())]
        for name in names:
            if name in own and not (name.startswith("_") and name not in _LOADER_ATTRIBUTES):
                walk.attribute(name, name, own[name], in_torch=name != "num_workers")
    else:
        walk.attribute("dataloader", "dataloader", loader)
    for name in ("batch_transforms", "microbatch_transforms"):
        if held.get(name) is not None:
            walk.attribute(name, name, held[name])
    return walk.found


@functools.cache
def _torch_attributes() -> frozenset[str]:
    """The attributes of every loader of torch."""
    return frozenset(vars(DataLoader(TensorDataset()))) | frozenset(_LOADER_ATTRIBUTES)


class _Walk:
    """Visits objects and what they have, each once."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = {}
        self._seen: dict[int, Any] = {}  # with the objects, so that no id is used again

    def attribute(self, path: str, name: str, value: Any, depth: int = 0, *, in_torch: bool = False) -> None:
        """Visit an attribute of an object."""
        if len(self.found) >= _MAX_ENTRIES or not _CHANGING.isdisjoint(name.lower().split("_")):
            return
        if is_path(value):  # the data may have been moved
            return
        if isinstance(value, enum.Enum):
            self.found[path] = [TEXT, value._name_]
        elif isinstance(value, str | bytes):
            self.found[path] = [TEXT, digest_elements(value)]
        elif is_scalar(value):
            self.found[path] = [SETTING if in_torch else NUMBER, repr(value)]
        elif isinstance(value, Tensor):
            self.found[path] = [f"{dtype_name(value.dtype)} {tuple(value.shape)}", digest_tensors([value], 256)[0]]
        elif isinstance(value, np.ndarray):
            self.found[path] = [f"{value.dtype} {value.shape}", digest_elements(value)]
        elif isinstance(value, list | tuple | dict | set | frozenset):
            self._container(path, value, depth)
        else:
            self._object(path, value, depth)

    def _visited(self, value: Any) -> bool:
        """Return whether an object was visited, and note that it is."""
        visited = id(value) in self._seen
        self._seen[id(value)] = value
        return visited

    def _container(self, path: str, value: Any, depth: int) -> None:
        if self._visited(value):
            return
        size = len(value) if isinstance(value, set | frozenset) else _base_of(value).__len__(value)
        items: list[tuple[Any, Any]] = []
        if size <= _MAX_LISTED and isinstance(value, dict):
            items = [(name, one) for name, one in dict.items(value) if isinstance(name, str)]
        elif size <= _MAX_LISTED and isinstance(value, list | tuple):
            items = list(enumerate(_base_of(value).__iter__(value)))
        has_objects = any(not is_scalar(one) for _, one in items)
        if has_objects and len(items) == size and depth < _MAX_DEPTH:
            for name, one in items:
                self.attribute(f"{path}.{name}", str(name), one, depth + 1)
        else:
            self.found[path] = [f"{_base_of(value).__name__} of {size}", digest_elements(value)]

    def _object(self, path: str, value: Any, depth: int) -> None:
        cls = type(value)
        if f"{cls.__module__}.{cls.__name__}.".startswith(_NOT_DATA) or isinstance(value, types.ModuleType):
            return
        if (rows := rows_of(value)) is not None:
            self.found[path] = [f"{cls.__name__} {rows[0]}", digest_elements(rows)]
            return
        name = value if isinstance(value, (type, *_FUNCTIONS)) else cls
        self.found[path] = ["object", name.__qualname__]
        if depth >= _MAX_DEPTH or isinstance(value, type) or self._visited(value):
            return
        in_torch = cls.__module__.startswith("torch.")
        for name, one in _attributes(value):
            self.attribute(f"{path}.{name}", name, one, depth + 1, in_torch=in_torch)


def _base_of(value: Any) -> type[Any]:
    """Return the built-in class of a container, whose methods a subclass may replace."""
    return next(cls for cls in (list, tuple, dict, set, frozenset) if isinstance(value, cls))


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values that an object has, without a call of its code."""
    if isinstance(value, types.FunctionType):  # what it closes over
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # not yet filled
                yield name, cell.cell_contents
    elif isinstance(value, types.MethodType):
        yield "__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, nn.Module):
        held = vars(value)
        for part in _MODULE_ATTRIBUTES:
            yield from held.get(part, {}).items()
        yield from ((name, one) for name, one in held.items() if not name.startswith("_"))
    elif type(value).__module__.startswith("datasets."):  # Hugging Face; the rest may differ with the paths of files
        yield from ((name, one) for name, one in vars(value).items() if name in ("_data", "_indices", "table"))
    else:
        for cls in type(value).__mro__:
            for name, one in list(vars(cls).items()) if "__slots__" in vars(cls) else ():
                if isinstance(one, types.MemberDescriptorType):
                    with contextlib.suppress(AttributeError):  # not set
                        yield name, one.__get__(value)
        yield from list(getattr(value, "__dict__", {}).items())
