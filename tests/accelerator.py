"""A fake accelerator on the CPU that records where tensors are and when the host would synchronize.

Inside ``FakeAccelerator()`` tensors can be created on and moved to ``DEVICE``. Such a tensor says that it lies there,
and keeps its values in a tensor on the CPU, so that everything computes real values. Each operator is seen as it is
dispatched, the backward pass and the optimizer included:

- tensors of different devices in one operator raise, as on CUDA (where scalars and indices of the host may be mixed
  in);
- whatever makes the host wait for CUDA is noted: ``item`` and all that calls it, results whose size depends on
  values, and copies in either direction that are not asked to be non-blocking. A copy of pageable memory to CUDA waits
  for all work that the stream has queued before, so ``torch.tensor(x, device=...)`` in a step is as bad as ``item``.

What PyTorch and composer are told of the device is in ``tests/accelerator_answers.py``. ``pytest --device pretend``
runs each test inside such a block; one that a test opens itself takes the notes then.
"""

from __future__ import annotations

import copy
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from tests import accelerator_answers as answers
from tests import on_device
from tests.accelerator_answers import DEVICE, FakeDevice

__all__ = ["DEVICE", "FakeAccelerator", "FakeDevice", "OnDevice", "Wait"]

SIZE_FROM_VALUES = {
    "nonzero",
    "masked_select",
    "_unique",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "unique_dim_consecutive",
    "bincount",
    "_ctc_loss",
}
"""Operators whose results have a size that depends on values, or that check values on the host."""

MACHINERY = {Path(__file__), Path(answers.__file__)}

READS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "_linalg_check_errors"} | SIZE_FROM_VALUES
TAKES_HOST_INDICES = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
COPIES = {"copy_", "_foreach_copy_"}


class OnDevice(torch.Tensor):
    """A tensor of the pretend accelerator; ``values`` is where its values are in truth."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values: torch.Tensor, requires_grad: bool = False) -> OnDevice:
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
            requires_grad=requires_grad,
        )
        wrapper.values = values
        return wrapper

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.values.data_ptr()

    def tolist(self) -> Any:  # refused to subclasses
        return self.cpu().tolist()

    def __format__(self, form: str) -> str:
        return format(self.cpu(), form)

    def __repr__(self, **_: Any) -> str:
        return f"OnDevice({self.values!r})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        # As what is saved from any device is read again with map_location="cpu".
        values = self.detach().cpu()
        values = nn.Parameter(values, self.requires_grad) if isinstance(self, nn.Parameter) else values
        return values.__reduce_ex__(protocol)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if id(self) not in memo:
            with torch.no_grad():
                copied = self.detach().clone(memory_format=torch.preserve_format)
            if isinstance(self, nn.Parameter):
                copied = nn.Parameter(copied, self.requires_grad)
            elif self.is_leaf:
                copied.requires_grad_(self.requires_grad)
            if self.grad is not None:
                copied.grad = copy.deepcopy(self.grad, memo)
            memo[id(self)] = copied
        return memo[id(self)]


class Wait(NamedTuple):
    """The host waits for the device.

    Attributes:
        step: In which step.
        what: For what.
        where: The innermost line of composer's or of a test's that led there.
    """

    step: int
    what: str
    where: str


def _caller() -> str:
    root = Path(__file__).parents[1]
    frame = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path not in MACHINERY and (root / "composer" in path.parents or root / "tests" in path.parents):
            return f"{path.relative_to(root)}:{frame.f_lineno} {frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


class FakeAccelerator(TorchDispatchMode):
    """The device for the time of a block, with a note of each wait.

    Attributes:
        step: What waits are noted with; None notes nothing.
        found: The waits.
    """

    _active: list[FakeAccelerator] = []

    def __init__(self) -> None:
        super().__init__()
        self.step: int | None = None
        self.found: list[Wait] = []
        self._thread = threading.get_ident()

    def __enter__(self) -> FakeAccelerator:
        if on_device.device().type not in ("cpu", DEVICE.type):
            pytest.skip("it pretends an accelerator, which says nothing of this one")
        if self._active:
            self._active.append(self)
            return self  # the device is there already, and this one takes the notes
        self._patch = pytest.MonkeyPatch()
        answers.tell(self._patch, OnDevice, _note)
        self._active.append(self)
        # torch.tensor(..., device=...) makes a tensor of the host first, and lets modes see the copy.
        self._lifted = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self._active.remove(self)
        if self._active:
            return
        super().__exit__(*error)
        torch._C._set_only_lift_cpu_tensors(self._lifted)
        self._patch.undo()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(function, args, kwargs or {})

    def note(self, what: str) -> None:
        if self.step is not None and threading.get_ident() == self._thread:
            self.found.append(Wait(self.step, what, _caller()))


def _run(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Do on the CPU what an operator is asked to do, and note what would wait."""
    if kwargs.get("pin_memory") and torch.device(kwargs.get("device") or "cpu").type == "cpu":
        return _pinned(_run(function, args, kwargs | {"pin_memory": False}))
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    ours = [tensor for tensor in tensors if isinstance(tensor, OnDevice)]
    name = function.name().partition("::")[2].partition(".")[0]
    if name == "is_pinned":
        return _is_pinned(tensors[0])
    if name == "_pin_memory":
        return _pinned(args[0].clone())
    asked = kwargs.get("device")
    if not ours and (asked is None or torch.device(asked).type != DEVICE.type):
        return function(*args, **kwargs)
    _check(name, args, kwargs, tensors, ours)
    if isinstance(kwargs.get("generator"), torch.Generator):  # there are only those of the CPU
        raise RuntimeError(f"Expected a '{DEVICE.type}' device type for generator but found 'cpu' ({name})")
    plain_args, plain_kwargs = tree_map(_plain, (args, kwargs))
    plain_kwargs.pop("non_blocking", None)
    result = function(*plain_args, **plain_kwargs)
    if function.namespace == "c10d":
        for tensor in ours:
            _kept_at(_REDUCED, tensor.values)
    if asked is not None and torch.device(asked).type != DEVICE.type:
        return result
    known = {id(tensor.values): tensor for tensor in ours}
    for tensor in ours:
        if tensor.size() != tensor.values.size():
            raise NotImplementedError(f"{name} changes the shape of its argument in place; FakeAccelerator cannot.")
    return tree_map(lambda value: _placed(value, known), result)


_PINNED: dict[int, weakref.ref[torch.Tensor]] = {}


_REDUCED: dict[int, weakref.ref[torch.Tensor]] = {}


def _kept_at(table: dict[int, weakref.ref[torch.Tensor]], tensor: torch.Tensor) -> None:
    address = tensor.untyped_storage().data_ptr()
    table[address] = weakref.ref(tensor, lambda _: table.pop(address, None))


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, of which is known from now on that it lies in pinned memory."""
    _kept_at(_PINNED, tensor)
    return tensor


def _is_pinned(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, OnDevice) and tensor.untyped_storage().data_ptr() in _PINNED


def _is_there(tensor: torch.Tensor) -> bool:
    """Whether it lies on the device; results that DDP takes from a collective are values without their wrapper."""
    return isinstance(tensor, OnDevice) or tensor.untyped_storage().data_ptr() in _REDUCED


def _plain(value: Any) -> Any:
    if isinstance(value, OnDevice):
        return value.values
    return torch.device("cpu") if isinstance(value, torch.device) and value.type == DEVICE.type else value


def _placed(value: Any, known: dict[int, OnDevice]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return known[id(value)] if id(value) in known else OnDevice(value)


def _check(name: str, args: Any, kwargs: dict[str, Any], tensors: list[torch.Tensor], ours: list[OnDevice]) -> None:
    """Note a wait of the host; refuse tensors of different devices."""
    hosts = [tensor for tensor in tensors if not isinstance(tensor, OnDevice) and tensor.device.type == "cpu"]
    if name in COPIES or name == "_to_copy":
        _check_copy(name, args, kwargs)
        return
    if name in READS and ours:
        _note(name)
    if name in TAKES_HOST_INDICES:
        indices = [index for index in args[1] if isinstance(index, torch.Tensor)]
        if any(isinstance(index, OnDevice) and index.dtype in (torch.bool, torch.uint8) for index in indices):
            _note(f"{name} by a mask")
        if isinstance(args[0], OnDevice) and any(not isinstance(index, OnDevice) for index in indices):
            _note(f"{name} by indices of the host")
        hosts = [tensor for tensor in hosts if not any(tensor is index for index in indices)]
    if name == "repeat_interleave" and kwargs.get("output_size") is None:
        _note("repeat_interleave without output_size")
    if ours and any(tensor.ndim > 0 for tensor in hosts):
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu! "
            f"({name}, tensors of the host of shapes {[tuple(tensor.shape) for tensor in hosts]})"
        )


def _check_copy(name: str, args: Any, kwargs: dict[str, Any]) -> None:
    if name == "_to_copy":
        source = isinstance(args[0], OnDevice)
        asked = kwargs.get("device")
        target = source if asked is None else torch.device(asked).type == DEVICE.type
    else:
        target, source = (_is_there(tree_leaves(part)[0]) for part in args[:2])
    waits = not kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
    if all(tensor.numel() == 0 for tensor in tree_leaves(args[0])):
        return  # there is nothing to copy
    if source and not target:
        targets = [] if name == "_to_copy" else tree_leaves(args[0])
        if waits:
            _note("copy to the host")
        elif not targets or not all(map(_is_pinned, targets)):
            _note("copy to pageable memory, which is blocking whatever it is asked to be")
    elif target and not source and waits:
        _note("copy to the device, blocking")


def _note(what: str) -> None:
    if FakeAccelerator._active:
        FakeAccelerator._active[-1].note(what)
