"""Snapshot arbitrary objects, such as a model and its optimizers, and restore their contents in place."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import Module
from torch.utils.data import DataLoader, Dataset

from composer.core.callback import Callback
from composer.core.data_spec import DataSpec
from composer.core.engine import Engine
from composer.core.logger import Logger
from composer.core.state import State
from composer.dist.dtensor import local_tensors

__all__ = ["ObjectSnapshot"]

# Types without mutable contents.
_PLAIN = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type,
    type(None),
    FunctionType,
    BuiltinFunctionType,
    MethodType,
    ModuleType,
    torch.dtype,
    torch.device,
    torch.Size,
)
# Types that are not followed when other objects refer to them.
_OTHERS = (State, Engine, Logger, Callback, DataSpec, DataLoader, Dataset)


class ObjectSnapshot:
    """A copy of objects and everything they refer to: tensors, gradients, containers, attributes, generators.

    :meth:`restore` writes the contents back into the same objects, so that references to them stay valid (an optimizer
    to its parameters, a hook to its module). References to the state, engine, loggers, callbacks and data are not
    followed.

    Args:
        roots: The objects. Their tensors are copied.
        device: Device of the copies; by default that of each tensor.
        copies_tensors: Whether to copy and restore what tensors contain; if not, only which tensor is where.

    >>> model = torch.nn.Linear(1, 1)
    >>> before, snapshot = model.weight.item(), ObjectSnapshot([model])
    >>> _ = torch.nn.init.zeros_(model.weight)
    >>> model.bias = None
    >>> snapshot.restore()
    >>> model.weight.item() == before, model.bias is not None
    (True, True)
    """

    def __init__(
        self, roots: Iterable[object], device: torch.device | None = None, *, copies_tensors: bool = True
    ) -> None:
        self._device, self._copies_tensors = device, copies_tensors
        self._undo: list[Callable[[], object]] = []
        # By id; keeping the objects alive prevents that an id is reused.
        self._seen: dict[int, object] = {}
        for root in roots:
            self._visit(root)

    def restore(self) -> None:
        """Restore everything; may be called more than once."""
        for undo in self._undo:
            undo()

    def _visit(self, value: Any) -> None:
        if isinstance(value, (_PLAIN, _OTHERS)) or id(value) in self._seen:
            return
        if _is_sharding_metadata(value):
            return
        self._seen[id(value)] = value
        if isinstance(value, Tensor):
            self._visit_tensor(value)
        elif isinstance(value, torch.Generator):
            self._keep(value.set_state, value.get_state())
        elif isinstance(value, random.Random):
            self._keep(value.setstate, value.getstate())
        elif type(value).__module__ == "numpy" and hasattr(value, "__array_interface__"):
            array: Any = value
            self._keep(lambda old: array.__setitem__(..., old), array.copy())
        else:
            self._visit_items(value)
            attributes = getattr(value, "__dict__", None)
            if isinstance(attributes, dict):
                self._visit(attributes)

    def _visit_items(self, value: Any) -> None:
        """Record the items of a container, and visit them."""
        if isinstance(value, dict):
            items = cast("dict[Any, Any]", value)
            self._keep(lambda old: (items.clear(), items.update(old)), dict(items))
            children = [entry for pair in items.items() for entry in pair]
        elif isinstance(value, list):
            entries = cast("list[Any]", value)
            self._keep(lambda old: entries.__setitem__(slice(None), old), list(entries))
            children = entries
        elif isinstance(value, deque):
            queue = cast("deque[Any]", value)
            self._keep(lambda old: (queue.clear(), queue.extend(old)), list(queue))
            children = queue
        elif isinstance(value, set):
            members = cast("set[Any]", value)
            self._keep(lambda old: (members.clear(), members.update(old)), set(members))
            children = members
        elif isinstance(value, (tuple, frozenset)):
            children = cast("tuple[Any, ...]", value)
        else:
            return
        for child in children:
            self._visit(child)

    def _visit_tensor(self, tensor: Tensor) -> None:
        if self._copies_tensors:
            self._copy(tensor)
        if tensor.is_leaf:
            needs_gradient, gradient = tensor.requires_grad, tensor.grad
            self._visit(gradient)

            def restore() -> None:
                if tensor.requires_grad != needs_gradient:
                    tensor.requires_grad_(needs_gradient)
                tensor.grad = gradient

            self._undo.append(restore)
        self._visit(tensor.__dict__)

    def _copy(self, tensor: Tensor) -> None:
        local = local_tensors([tensor])[0]
        is_expanded = any(stride == 0 and size > 1 for stride, size in zip(local.stride(), local.shape, strict=True))
        if not is_expanded:  # expanded tensors cannot be written in place
            copy = local.detach().to(self._device or local.device, copy=True)
            self._keep(lambda old: _write(local, old), copy)

    def _keep(self, put: Callable[[Any], object], old: object) -> None:
        self._undo.append(lambda: put(old))


def _is_sharding_metadata(value: object) -> bool:
    """Return whether an object belongs to torch.distributed (mesh, placements, sharding), and is not restored."""
    return type(value).__module__.startswith("torch.distributed.") and not isinstance(value, (Tensor, Module))


@torch.no_grad()
def _write(tensor: Tensor, old: Tensor) -> None:
    if tensor.shape == old.shape:
        tensor.copy_(old)
    else:  # it was resized in place
        tensor.data = old.to(tensor.device, copy=True)
