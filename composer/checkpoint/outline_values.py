"""Build the content of a checkpoint from its parsed index and its storages, without unpickling the index again.

torch's restricted unpickler is written in Python, and takes longer for an index of many small tensors than reading
them. The parsed index already has all containers; only the calls in it are left to make. Those of ordinary
checkpoints are made here, each in its one form; an index with any other call is left to ``torch.load``.
"""

from __future__ import annotations

import codecs
import datetime
import functools
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, UntypedStorage
from torch.torch_version import TorchVersion

from composer.checkpoint.pickle_nodes import HOLDERS, Call, Named, Persistent
from composer.checkpoint.pickle_outline import Outline
from composer.checkpoint.torch_index import dtypes_of_storages, storage_of

__all__ = ["OtherFormError", "allowed_globals", "has_plain_calls", "value_of"]

_TENSOR, _ORDERED, _SIZE, _ARRAY_TYPE = (
    "torch._utils._rebuild_tensor_v2",
    "collections.OrderedDict",
    "torch.Size",
    "numpy.ndarray",
)


class OtherFormError(Exception):
    """A valid index has a form that only ``torch.load`` reads.

    >>> issubclass(OtherFormError, Exception)
    True
    """


def has_plain_calls(described: Outline) -> bool:
    """Return whether all names in an index are among those that :func:`value_of` knows.

    Args:
        described: The parsed index.

    >>> from composer.checkpoint.pickle_outline import outline
    >>> has_plain_calls(outline(b"\\x80\\x02cos\\nsystem\\n."))
    False
    """
    return described.names <= _known()


def value_of(described: Outline, storages: Mapping[str, UntypedStorage]) -> Any:
    """Return the content that an index describes.

    Args:
        described: The parsed index, after :func:`.check_index`; its containers are edited, and become the content.
        storages: The verified storages by their keys, in host memory.

    Raises:
        OtherFormError: The index has a form that is left to ``torch.load``.

    >>> from composer.checkpoint.pickle_outline import outline
    >>> value_of(outline(b"\\x80\\x02}X\\x05\\x00\\x00\\x00epochK\\x03s."), {})
    {'epoch': 3}
    """
    return _Builder(storages).value(described.root)


class _Builder:
    def __init__(self, storages: Mapping[str, UntypedStorage]) -> None:
        self._storages = storages
        # By identity, so that shared objects stay shared; the outline keeps its nodes alive.
        self._made: dict[int, Any] = {}

    def value(self, node: Any) -> Any:
        kind = type(node)
        if kind not in _NODES:
            return node
        made = self._made.get(id(node), self)
        if made is self:
            made = self._made[id(node)] = self._new(kind, node)
        return made

    def _new(self, kind: type, node: Any) -> Any:
        if kind is Call:
            return self._called(node)
        if kind is dict:
            if not _NODES.isdisjoint(map(type, node)):
                _raise_if_nodes(node)
            if not _NODES.isdisjoint(map(type, node.values())):
                for key, value in node.items():
                    if type(value) in _NODES:
                        node[key] = self.value(value)
        elif kind is list:
            if not _NODES.isdisjoint(map(type, node)):
                node[:] = map(self.value, node)
        elif kind is tuple:
            if not _NODES.isdisjoint(map(type, node)):
                return tuple(map(self.value, node))
        elif kind in (set, frozenset):
            _raise_if_nodes(node)
        else:
            raise OtherFormError  # a storage, or a class, that is not an argument of a call
        return node

    def _called(self, call: Call) -> Any:
        name = call.name
        if name == _TENSOR:
            return self._tensor(call)
        if name == _ORDERED:
            if call.args:
                raise OtherFormError
            items = [self.value(item) for item in call.items]
            ordered = OrderedDict(zip(items[::2], items[1::2], strict=True))
            for state in call.states:
                vars(ordered).update(self.value(state))
            return ordered
        function = _functions().get(name)
        if function is None or call.items:
            raise OtherFormError
        arguments = (np.ndarray if _is_array_type(one) else self.value(one) for one in call.args)
        made = function(*arguments)
        for state in call.states:
            made.__setstate__(self.value(state))
        return made

    def _tensor(self, call: Call) -> Tensor:
        stored, offset, size, stride, requires_grad, _, *metadata = call.args
        if type(stored) is not Persistent or any(one is not None for one in metadata):
            raise OtherFormError
        dtype = dtypes_of_storages()[stored.key[1].name]
        tensor = torch.empty(0, dtype=dtype, device="cpu")
        source: Any = self._storages[storage_of(stored).key]
        cast("Any", tensor).set_(source, offset, self.value(size), self.value(stride))
        if requires_grad:
            tensor.requires_grad_()
        return tensor


def _raise_if_nodes(keys: Any) -> None:
    """Leave keys and elements of sets with calls in them to torch; tuples of plain values are common."""
    for key in keys:
        if type(key) in _NODES and not (type(key) is tuple and _NODES.isdisjoint(map(type, key))):
            raise OtherFormError


def _is_array_type(node: Any) -> bool:
    return isinstance(node, Named) and node.name == _ARRAY_TYPE


_NODES = HOLDERS | {Named}


@functools.lru_cache(maxsize=1)
def _known() -> frozenset[str]:
    # Quantized dtypes have further fields.
    storages = (name for name, dtype in dtypes_of_storages().items() if not str(dtype).startswith("torch.q"))
    return frozenset({_TENSOR, _ORDERED, _ARRAY_TYPE, *_functions(), *storages})


@functools.lru_cache(maxsize=1)
def _functions() -> dict[str, Callable[..., Any]]:
    """Return functions that run no code from the file; check_index has checked the forms of their arguments."""
    rebuild, scalar = _numpy_functions()
    return {
        _SIZE: torch.Size,
        "builtins.bytes": bytes,
        "_codecs.encode": codecs.encode,
        "numpy.dtype": np.dtype,
        # Files written with NumPy 1 name the module without an underscore.
        **{f"numpy.{core}.multiarray._reconstruct": rebuild for core in ("core", "_core")},
        **{f"numpy.{core}.multiarray.scalar": scalar for core in ("core", "_core")},
    }


@functools.lru_cache(maxsize=1)
def allowed_globals() -> list[Any]:
    """Return the types that a file may have in addition to torch's; constructing one runs no code from the file.

    >>> bytes in allowed_globals()
    True
    """
    dtypes = [type(np.dtype(code)) for code in ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")]
    rebuild, scalar = _numpy_functions()
    old = [(rebuild, "numpy.core.multiarray._reconstruct"), (scalar, "numpy.core.multiarray.scalar")]
    # torch omits empty bytes.
    return [datetime.timedelta, TorchVersion, bytes, np.ndarray, np.dtype, *dtypes, rebuild, scalar, *old]


def _numpy_functions() -> tuple[Any, Any]:
    return np.ndarray.__reduce__(np.zeros(1))[0], np.float64(0).__reduce__()[0]
