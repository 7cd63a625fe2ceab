"""Giving modules their weights on the device, the same in all processes, a part of the model at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from composer import dist

__all__ = ["Placement"]


class Placement:
    """Makes weights that lie on ``meta``, moves the others, and takes over those of the first process.

    Weights on ``meta`` have shapes and no values: a model that is too large for one device is made there, under
    ``with torch.device("meta")``, and gets its values here, part by part. They come from ``param_init_fn(module)`` of
    the model or a child of it, which is called for all modules as by ``apply``, inner ones first; else from
    ``reset_parameters()`` of the module. Where the first process has values and others have none, these take over its
    values.

    Args:
        model: The model.
        device: Where its weights are to be.

    Raises:
        ValueError: The first process has no values where others have some.

    >>> with torch.device("meta"):
    ...     model = nn.Linear(2, 2)
    >>> Placement(model, torch.device("cpu")).give([model])
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
        self._made: dict[int, tuple[Tensor, Tensor]] = {}
        self._done: set[nn.Module] = set()
        everywhere = dist.all_gather_object({name for name, tensor in _named_tensors(model) if tensor.is_meta})
        self._unmade = everywhere[0]
        if wrong := sorted(set[str]().union(*(everywhere[0] - there for there in everywhere))):
            raise ValueError(
                f"{wrong[0]} is on the meta device in the first process and has values in others, which take over "
                f"those of the first. Make the model on meta in all processes, or in all but the first."
            )

    def give(self, modules: Iterable[nn.Module]) -> None:
        """Give modules, without those inside them, their weights; all processes call it together.

        Args:
            modules: Outer ones before inner ones; those that have their weights already are left out.

        Raises:
            ValueError: A module does not tell how its values are made.
        """
        chosen = [module for module in modules if module not in self._done]
        self._done.update(chosen)
        empty = [module for module in chosen if any(tensor.is_meta for tensor in _tensors(module))]
        for module in chosen:
            self._allocate(module)
        unmade = {one for one in empty if any(self._name_of(one, name) in self._unmade for name in _own(one))}
        # Inner ones first, as when a model is made: an outer one may set the values of its parts anew.
        for module in reversed(chosen):
            if module in unmade:
                self._initialise(module)
            elif module in self._init and any(part in unmade for part in module.modules()):
                self._init[module](module)
        seen: set[int] = set()
        for module in chosen:
            for tensor in _tensors(module):
                if id(tensor) not in seen and not isinstance(tensor, DTensor):
                    seen.add(id(tensor))
                    _take_over(tensor)

    def _allocate(self, module: nn.Module) -> None:
        """Bring a module's own tensors to the device, with no values where there were none."""
        for holder in (module._parameters, module._buffers):  # pyright: ignore[reportPrivateUsage]
            for name, tensor in holder.items():
                if tensor is None or isinstance(tensor, DTensor):
                    continue
                if tensor.is_meta:
                    # Remembered together with what it replaces, as two modules may share it.
                    if id(tensor) not in self._made:
                        self._made[id(tensor)] = _empty(tensor, self._device), tensor
                    holder[name] = self._made[id(tensor)][0]  # type: ignore[assignment]
                else:
                    tensor.data = tensor.data.to(self._device).contiguous()

    def _initialise(self, module: nn.Module) -> None:
        """Let a module's values be made."""
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
            f"{self._names[module] or 'The model'} ({type(module).__name__}) has weights on the meta device and does "
            f"not tell how they are made. Give it reset_parameters(), or the model param_init_fn(module)."
        )

    def _name_of(self, module: nn.Module, name: str) -> str:
        prefix = self._names[module]
        return f"{prefix}.{name}" if prefix else name


def _own(module: nn.Module) -> dict[str, Tensor]:
    """A module's own parameters and buffers by name."""
    named = {**module._parameters, **module._buffers}  # pyright: ignore[reportPrivateUsage]
    return {name: tensor for name, tensor in named.items() if tensor is not None}


def _tensors(module: nn.Module) -> list[Tensor]:
    return list(_own(module).values())


def _named_tensors(model: nn.Module) -> Iterable[tuple[str, Tensor]]:
    for prefix, module in model.named_modules():
        for name, tensor in _own(module).items():
            yield f"{prefix}.{name}" if prefix else name, tensor


def _empty(tensor: Tensor, device: torch.device) -> Tensor:
    made = torch.empty_like(tensor, device=device, memory_format=torch.contiguous_format)
    return nn.Parameter(made, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else made


@torch.no_grad()
def _take_over(tensor: Tensor) -> None:
    """Give a tensor the values of the first process."""
    if dist.get_world_size() > 1:
        torch_dist.broadcast(tensor.data, 0)
