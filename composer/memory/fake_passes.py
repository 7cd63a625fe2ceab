"""The memory of forward and backward passes of a live model, which is not changed: with fake tensors.

Fake tensors have a shape, a data type and a device, and no memory. The model runs with fake parameters and buffers in
place of its own, so that operators choose what they choose on the device, autograd and autocast included, while nothing
is computed and nothing is allocated. (``composer estimate`` runs whole programs in processes of their own, with
ordinary tensors that are never written, since DDP, FSDP and optimizers do not all take fake ones.)
"""

from __future__ import annotations

import copy
import weakref
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.func import functional_call
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from composer import trees
from composer.memory.allocations import AllocationLog
from composer.memory.unknown_shapes import assumed_value, largest_outputs

__all__ = ["FakePasses"]

aten = torch.ops.aten

# Of constants such as those of torch.tensor, whose values are kept.
_LIFTS = frozenset({aten.lift_fresh.default, aten.lift_fresh_copy.default, aten.lift.default})

Temporary = Callable[[Any, Sequence[Tensor], Sequence[Tensor]], int]


class FakePasses:
    """Runs passes of a model on fake tensors, and tells their memory in bytes.

    Args:
        model: The model. While a pass runs, its parameters and buffers are fake.
        batch: A batch; only shapes, data types and devices are read.
        device: The device whose memory counts.
        temporary: ``temporary(operator, inputs, outputs)`` returns the bytes that a kernel allocates while it runs.

    >>> model = nn.Linear(1024, 1024)
    >>> passes = FakePasses(model, torch.zeros(8, 1024), torch.device("cpu"))
    >>> passes.peak(lambda batch: model(batch).sum(), passes.batch)
    4198408
    >>> model.weight.grad is None
    True
    """

    def __init__(self, model: nn.Module, batch: Any, device: torch.device, temporary: Temporary | None = None) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True, allow_fallback_kernels=False)
        self._model, self._device, self._temporary = model, device, temporary
        self._fake: dict[int, Tensor] = {}
        self.batch = trees.map_tensors(self._faked, batch)
        for tensor in (*model.parameters(), *model.buffers()):
            self._faked(tensor)
        self._returned: list[weakref.ref[Tensor]] = []

    def peak(
        self, loss: Callable[[Any], Tensor], batch: Any, *, gradients: bool = False, counts_gradients: bool = True
    ) -> int:
        """Return the peak of memory of a forward and backward pass, in addition to parameters, buffers and batch.

        Args:
            loss: Returns the loss of a batch.
            batch: :attr:`batch`, or a part of it.
            gradients: Whether there are gradients from earlier passes, to which those of this pass are added.
            counts_gradients: Whether those earlier gradients count.
        """
        log = self._log()
        trained = [each for each in self._parameters() if each.requires_grad]
        with self.mode:
            for parameter in trained:
                parameter.grad = torch.zeros_like(parameter) if gradients else None
            held = 0 if counts_gradients or not gradients else sum(parameter.nbytes for parameter in trained)
        for parameter in trained:
            if parameter.grad is not None:
                log.add(parameter.grad)
        before = sum(each.nbytes for each in log.allocations) - sum(p.nbytes for p in trained if p.grad is not None)
        with self._recorded(log), torch.autograd.set_multithreading_enabled(False):
            total = functional_call(_Function(self._model, loss), self._replacements(), (batch,))
            torch.autograd.backward(total, inputs=trained)
        for parameter in trained:
            parameter.grad = None
        return log.peak()[0] - before - held

    def optimizer_state(self, optimizer: Optimizer) -> int:
        """Return the bytes of state that the first step of an optimizer allocates; 0 if it has state.

        Args:
            optimizer: The optimizer, of the parameters of the model; a copy of it steps.
        """
        held = cast("dict[Any, Any]", optimizer.state)
        if any(value for key, value in held.items() if isinstance(key, Tensor)):
            return 0
        others: dict[Any, Any] = {key: value for key, value in held.items() if not isinstance(key, Tensor)}
        twin = copy.copy(optimizer)  # without its hooks, but also without the attributes of its class
        vars(twin).update({name: value for name, value in vars(optimizer).items() if name not in vars(twin)})
        twin.state = defaultdict(dict, copy.deepcopy(others))
        with self._recorded(self._log()):
            twin.param_groups = [
                {**group, "params": [self._fake[id(each)] for each in group["params"]]}
                for group in optimizer.param_groups
            ]
            for group in twin.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
            twin.step()
            for group in twin.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None
        tensors = [each for each in tree_leaves(dict(twin.state)) if isinstance(each, Tensor)]
        return sum(_nbytes(each) for each in tensors if each.device.type == self._device.type)

    def left(self) -> list[Tensor]:
        """Return the fake tensors of finished passes that something still refers to, such as a cache."""
        self._returned = [each for each in self._returned if each() is not None]
        alive = {id(tensor): tensor for tensor in (each() for each in self._returned) if tensor is not None}
        return [tensor for number, tensor in alive.items() if number not in set(map(id, self._fake.values()))]

    def _faked(self, tensor: Tensor) -> Tensor:
        if id(tensor) not in self._fake:
            self._fake[id(tensor)] = self.mode.from_tensor(tensor)
        return self._fake[id(tensor)]

    def _parameters(self) -> Iterator[Tensor]:
        for parameter in self._model.parameters():
            yield self._fake[id(parameter)]

    def _replacements(self) -> dict[str, Tensor]:
        named = (*self._model.named_parameters(), *self._model.named_buffers())
        return {f"model.{name}": self._fake[id(tensor)] for name, tensor in named}

    def _log(self) -> AllocationLog:
        """Return a log of the memory that is there before a pass."""
        log = AllocationLog()
        for tensor in self._fake.values():
            log.add(tensor)
        return log

    @contextmanager
    def _recorded(self, log: AllocationLog) -> Generator[None]:
        with self.mode, _Recorder(self.mode, log, self._device, self._temporary, self._returned):
            yield


class _Function(nn.Module):
    """A module that calls a function of a model."""

    def __init__(self, model: nn.Module, function: Callable[[Any], Tensor]) -> None:
        super().__init__()
        self.model, self.function = model, function

    def forward(self, batch: Any) -> Tensor:
        return self.function(batch)


class _Recorder(TorchDispatchMode):
    """Notes the memory of all tensors that operators return."""

    def __init__(
        self,
        mode: FakeTensorMode,
        log: AllocationLog,
        device: torch.device,
        temporary: Temporary | None,
        returned: list[weakref.ref[Tensor]],
    ) -> None:
        super().__init__()
        self._mode, self._log, self._type, self._temporary = mode, log, device.type, temporary
        self._returned = returned

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        given: tuple[Sequence[Any], dict[str, Any]] = (args, kwargs or {})
        args, kwargs = given if func in _LIFTS else tree_map_only(Tensor, self._faked, given)
        assert kwargs is not None
        try:
            outputs = largest_outputs(func, args, kwargs)
            if outputs is None:
                outputs = func(*args, **kwargs)
        except DataDependentOutputException:
            if func is not aten._local_scalar_dense.default:
                raise
            return assumed_value(args[0].dtype)
        found = [each for each in tree_leaves(outputs) if isinstance(each, FakeTensor)]
        inputs = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        is_new = not _is_view(func) or any(map(self._log.knows, inputs))
        for each in found:
            self._returned.append(weakref.ref(each))
            if is_new and each.device.type == self._type:
                self._log.add(each)
        if self._temporary is not None and inputs:
            self._log.add_temporary(self._temporary(func, inputs, cast("list[Tensor]", found)))
        return outputs

    def _faked(self, tensor: Tensor) -> Tensor:
        """Return a fake tensor for a real one that the model keeps elsewhere: the mode would compute with it."""
        return tensor if isinstance(tensor, FakeTensor) else self._mode.from_tensor(tensor)


def _nbytes(tensor: Any) -> int:
    """Return the bytes of a tensor; those of its parts if it is quantized, whose dtype is not that of its memory."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return tensor.nbytes
    return sum(_nbytes(getattr(tensor, name)) for name in tensor.__tensor_flatten__()[0])


def _is_view(func: Any) -> bool:
    returned = func._schema.returns
    return bool(returned) and all(each.alias_info is not None and not each.alias_info.is_write for each in returned)
