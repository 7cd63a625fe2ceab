"""An accelerator that is the CPU: tensors "on" it are tensors of the host whose memory is marked.

``pytest --device pretend`` runs on it what ``--device cuda`` runs on a GPU, wherever there is none. It finds what is
most often wrong with a test, or with a program, that has only ever run on the CPU: an operation whose tensors lie on
two devices, a generator of another device, an array made of a tensor of the device.

Two modes do it. The one of Python's calls takes the device out of arguments and answers ``tensor.device``; the one
below autograd marks what comes of marked tensors, and refuses to mix.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from composer.devices import Device

# A type of which no line of ours, and none of PyTorch that runs here, does anything special.
DEVICE = torch.device("hpu", 0)

_marked: dict[int, StorageWeakRef] = {}
_place = threading.local()
# Operators that take tensors of two devices: copies, and indices, which may lie on the host.
_BETWEEN = {"aten::copy_", "aten::_to_copy", "aten::_copy_from", "aten::_foreach_copy_", "aten::set_"}
_INDEXING = {"aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_", "aten::_unsafe_index"}
_TO_HOST = ("numpy", "__array__")
# Operators for which the host has to wait for a device.
_WAITING = {
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::allclose",
}


class PretendDevice(Device):
    """The device as `Trainer` takes it."""

    name = "pretend"
    dist_backend = "gloo"
    torch_device = DEVICE


def is_there(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies on the pretended device."""
    with torch._C.DisableTorchFunction():
        if tensor.layout is not torch.strided or tensor.device.type != "cpu":
            return False
        storage = tensor.untyped_storage()
    reference = _marked.get(storage._cdata)
    return reference is not None and not reference.expired()


def mark(tensor: torch.Tensor) -> torch.Tensor:
    """Say that a tensor's memory is the device's."""
    with torch._C.DisableTorchFunction():
        if tensor.layout is torch.strided and tensor.device.type == "cpu":
            reference = StorageWeakRef(tensor.untyped_storage())
            _marked[tensor.untyped_storage()._cdata] = reference
    if len(_marked) > 20_000:
        for key in [key for key, reference in _marked.items() if reference.expired()]:
            del _marked[key]
    return tensor


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _is_named(value: Any) -> bool:
    if isinstance(value, str):
        return value.partition(":")[0] == DEVICE.type
    return isinstance(value, torch.device) and value.type == DEVICE.type


class _Calls(TorchFunctionMode):
    """What Python calls: the device is taken out of arguments, and told where it is asked for."""

    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name == "__get__":
            attribute = getattr(getattr(function, "__self__", None), "__name__", "")
            if attribute in ("device", "is_cpu") and is_there(args[0]):
                return DEVICE if attribute == "device" else False
            return function(*args, **kwargs)
        there = any(map(is_there, _tensors((args, kwargs))))
        if name in _TO_HOST and there:
            raise TypeError(f"Tensor.{name}: can't convert a tensor of {DEVICE} to numpy; use Tensor.cpu() first.")
        target = self._target(name, args, kwargs)
        if there and (name == "tolist" or (target is not None and target != DEVICE and not kwargs.get("non_blocking"))):
            self.waits.append(f"Tensor.{name}")
        if target is None:
            return self._inside(there, function, args, kwargs)
        if target == DEVICE and isinstance(kwargs.get("generator"), torch.Generator):
            raise RuntimeError(f"Expected a '{DEVICE.type}' device type for generator but found 'cpu'")
        args, kwargs = tree_map(lambda value: torch.device("cpu") if _is_named(value) else value, (args, kwargs))
        result = self._inside(target == DEVICE, function, args, kwargs)
        if isinstance(result, torch.Tensor) and is_there(result) != (target == DEVICE):
            result = result.clone() if there or name in ("to", "cpu") else result
            if target == DEVICE:
                return mark(result)
            _marked.pop(result.untyped_storage()._cdata, None)
        return result

    @staticmethod
    def _target(name: str, args: Any, kwargs: dict[str, Any]) -> torch.device | None:
        """Where a call puts its result, if it says so."""
        if name == "cpu":
            return torch.device("cpu")
        if name == "to":
            for value in (*args[1:], kwargs.get("device"), kwargs.get("other")):
                if isinstance(value, torch.Tensor):
                    return DEVICE if is_there(value) else torch.device("cpu")
                if isinstance(value, (str, torch.device)):
                    return DEVICE if _is_named(value) else torch.device(value)
            return None
        given = kwargs.get("device")
        return None if given is None else DEVICE if _is_named(given) else torch.device(given)

    @staticmethod
    def _inside(there: bool, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call it; what it makes of nothing lies where its arguments do, as in ``one_hot``."""
        before, _place.there = getattr(_place, "there", False), there
        try:
            result = function(*args, **kwargs)
        finally:
            _place.there = before
        if there and getattr(function, "__name__", "") == "__deepcopy__":
            return mark(result)
        return result


class _Operators(TorchDispatchMode):
    """What runs: marks what comes of marked tensors, and refuses to mix."""

    def __init__(self, waits: list[str]) -> None:
        super().__init__()
        self.waits = waits

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.name().partition(".")[0]
        given = _tensors((args[:1] if name in _INDEXING else args, kwargs))
        there = [tensor for tensor in given if is_there(tensor)]
        if there and name not in _BETWEEN:
            other = [tensor for tensor in given if tensor.dim() > 0 and not is_there(tensor)]
            if other and any(tensor.numel() for tensor in other):
                raise RuntimeError(
                    f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu! "
                    f"({name}, shapes {[tuple(tensor.shape) for tensor in given]})"
                )
        if there and (name in _WAITING or (name in _INDEXING and _has_mask(args[1]))):
            self.waits.append(name)
        result = function(*args, **(kwargs or {}))
        if name in _BETWEEN:
            if name == "aten::_to_copy" and there:
                tree_map(lambda value: mark(value) if isinstance(value, torch.Tensor) else value, result)
            return result
        if there or (not given and getattr(_place, "there", False)):
            for tensor in _tensors(result):
                mark(tensor)
        return result


def _has_mask(indices: Any) -> bool:
    """Whether an index is a mask on the device, of which the size of the result must be read."""
    return any(index.dtype in (torch.bool, torch.uint8) and is_there(index) for index in _tensors(indices))


class Pretended:
    """The device for the time of a block.

    Attributes:
        waits: What made the host wait for the device, in order.
    """

    def __enter__(self) -> Pretended:
        self.waits: list[str] = []
        self._operators, self._calls = _Operators(self.waits), _Calls(self.waits)
        self._operators.__enter__()
        self._calls.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._calls.__exit__(*error)
        self._operators.__exit__(*error)
