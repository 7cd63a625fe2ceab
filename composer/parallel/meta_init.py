"""Deferred initialization: materialize models from the meta device, module by module, equally on all ranks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from composer import dist

__all__ = ["Materializer"]


class Materializer:
    """Initializes weights on the meta device, moves the others, and broadcasts all of them from rank 0.

    Weights on ``meta`` have shapes but no values: a model that is too large for one device is created there, under
    ``with torch.device("meta")``, and is initialized here module by module. The values come from
    ``param_init_fn(module)`` of the model or one of its children, which is called for all modules as by ``apply``,
    inner ones first; else from ``reset_parameters()`` of the module. If only rank 0 has values, the other ranks receive
    them.

    Args:
        model: The model.
        device: The target device.

    Raises:
        ValueError: Rank 0 has no values for a tensor for which other ranks have some.

    >>> with torch.device("meta"):
    ...     model = nn.Linear(2, 2)
    >>> Materializer(model, torch.device("cpu")).materialize([model])
    >>> model.weight.device
    device(type='cpu')
    """

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self._device = device
        self._names = {module: name for name, module in model.named_modules()}
        self._init: dict[nn.Module, Any] = {
            module: top.param_init_fn
            for top in (model, *model.children())
            if callable(getattr(top, "param_init_fn", None))
            for module in top.modules()
        }
        # Tied weights have two owners, which must get the same tensor.
        owners = Counter(id(tensor) for module in model.modules() for tensor in _tensors(module))
        self._tied = {key for key, count in owners.items() if count > 1}
        self._allocated: dict[int, tuple[Tensor, Tensor]] = {}
        self._done: set[nn.Module] = set()
        here = {name for name, tensor in _named_tensors(model) if tensor.is_meta}
        of_rank_zero = [sorted(here)]
        dist.broadcast_object_list(of_rank_zero)
        self._uninitialized = set(of_rank_zero[0])
        wrong = sorted(self._uninitialized - here)[:1]
        if dist.largest(len(wrong)):  # one name of each rank, rather than all names
            wrong = sorted(name for names in dist.all_gather_object(wrong) for name in names)
            raise ValueError(
                f"{wrong[0]} is on the meta device on rank 0 but has values on other ranks, although weights are "
                f"broadcast from rank 0. Create the model on meta on all ranks, or on all ranks but rank 0."
            )

    def materialize(self, modules: Iterable[nn.Module]) -> None:
        """Materialize the direct parameters and buffers of modules; all ranks must call this.

        Args:
            modules: Outer modules before inner ones; those that are already materialized are skipped.

        Raises:
            ValueError: A module on the meta device has no method that initializes it.
        """
        chosen = [module for module in modules if module not in self._done]
        self._done.update(chosen)
        empty = [module for module in chosen if any(tensor.is_meta for tensor in _tensors(module))]
        for module in chosen:
            self._allocate(module)
        uninitialized = {
            one
            for one in empty
            if any(self._name_of(one, name) in self._uninitialized for name in _direct_tensors(one))
        }
        # Inner ones first, as in construction: an outer module may overwrite the values of its children.
        for module in reversed(chosen):
            if module in uninitialized:
                self._initialize(module)
            elif module in self._init and any(part in uninitialized for part in module.modules()):
                self._init[module](module)
        seen: set[int] = set()
        for module in chosen:
            for tensor in _tensors(module):
                if id(tensor) not in seen and not isinstance(tensor, DTensor):
                    seen.add(id(tensor))
                    _broadcast_from_rank_zero(tensor)

    def _allocate(self, module: nn.Module) -> None:
        """Move a module's direct tensors to the device; those on meta become uninitialized."""
        for holder in (module._parameters, module._buffers):  # pyright: ignore[reportPrivateUsage]
            for name, tensor in holder.items():
                if tensor is None or isinstance(tensor, DTensor):
                    continue
                if tensor.is_meta and id(tensor) not in self._tied:
                    # Not kept, since the full weights of all modules may not fit.
                    holder[name] = _empty(tensor, self._device)  # type: ignore[assignment]
                elif tensor.is_meta:
                    # Kept with the tensor it replaces, which keeps its id valid.
                    if id(tensor) not in self._allocated:
                        self._allocated[id(tensor)] = _empty(tensor, self._device), tensor
                    holder[name] = self._allocated[id(tensor)][0]  # type: ignore[assignment]
                else:
                    tensor.data = tensor.data.to(self._device).contiguous()

    def _initialize(self, module: nn.Module) -> None:
        """Initialize the values of a module."""
        init: Any = self._init.get(module)
        if init is not None:
            init(module)
            return
        for name in ("reset_parameters", "_reset_parameters"):
            if callable(method := getattr(module, name, None)):
                with torch.no_grad():
                    method()
                return
        raise ValueError(
            f"{self._names[module] or 'The model'} ({type(module).__name__}) has weights on the meta device and no "
            f"method that initializes them. Add reset_parameters() to it, or param_init_fn(module) to the model."
        )

    def _name_of(self, module: nn.Module, name: str) -> str:
        prefix = self._names[module]
        return f"{prefix}.{name}" if prefix else name


def _direct_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return the direct parameters and buffers of a module, by name."""
    named = {**module._parameters, **module._buffers}  # pyright: ignore[reportPrivateUsage]
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def _tensors(module: nn.Module) -> list[Tensor]:
    return list(_direct_tensors(module).values())


def _named_tensors(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    for prefix, module in model.named_modules():
        for name, tensor in _direct_tensors(module).items():
            yield f"{prefix}.{name}" if prefix else name, tensor


def _empty(tensor: Tensor, device: torch.device) -> Tensor:
    made = torch.empty_like(tensor, device=device, memory_format=torch.contiguous_format)
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


@torch.no_grad()
def _broadcast_from_rank_zero(tensor: Tensor) -> None:
    """Broadcast the values of rank 0 into a tensor."""
    if dist.get_world_size() > 1:
        torch_dist.broadcast(tensor.data, 0)
