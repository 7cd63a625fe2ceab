"""All-gather sharded weights that a model uses outside its forward pass, and free them if no backward pass will."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

from composer.core.model import ComposerModel

__all__ = ["GatherOutsideForward"]

# Called without recording gradients, in place of the forward pass.
_FORWARD_METHODS = ("eval_forward", "generate")


class GatherOutsideForward:
    """Lets methods of a divided model use its weights.

    ``fully_shard`` gathers weights before the forward pass. Here it also does so before ``eval_forward`` and
    ``generate``, and before ``loss`` for weights that belong to no block. Without a backward pass, which would free
    them, they are freed at the end: a weight that stayed gathered would be used in the next step as it is now, whatever
    is loaded or averaged meanwhile.

    Args:
        model: The model, divided.
        also: Parts whose weights are gathered for ``loss`` too.

    >>> from composer import dist
    >>> from torch.distributed.fsdp import fully_shard
    >>> dist.initialize_dist("cpu")
    >>> model = fully_shard(nn.Linear(1, 1), mesh=torch.distributed.init_device_mesh("cpu", (1,)))
    >>> len(GatherOutsideForward(model).units)
    1
    >>> torch.distributed.destroy_process_group()
    """

    def __init__(self, model: nn.Module, also: Sequence[FSDPModule] = ()) -> None:
        self._model = cast(FSDPModule, model)
        self._units = [module for module in model.modules() if isinstance(module, FSDPModule)]
        self._also = also
        self._depth = 0
        for name in _FORWARD_METHODS:
            if _is_own(model, name):
                register_fsdp_forward_method(model, name)
                setattr(model, name, self._around(getattr(model, name)))
        if _is_own(model, "loss"):
            named: Any = model
            named.loss = self._around(self._gathered(named.loss))
        model.register_forward_hook(self._after_forward)

    @property
    def units(self) -> Sequence[FSDPModule]:
        """The parts of the model that are gathered by themselves, the model first."""
        return self._units

    def _gathered(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def gathered(*args: Any, **kwargs: Any) -> Any:
            for unit in (self._model, *self._also):
                unit.unshard()
            return method(*args, **kwargs)

        return gathered

    def _around(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def around(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            try:
                return method(*args, **kwargs)
            finally:
                self._depth -= 1
                self._free()

        return around

    def _after_forward(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        self._free()

    def _free(self) -> None:
        if not self._depth and not torch.is_grad_enabled():
            for unit in self._units:
                unit.reshard()


def _is_own(model: nn.Module, name: str) -> bool:
    """Whether a class defines a method itself, rather than inherits the one of every model."""
    method = getattr(type(model), name, None)
    return callable(method) and method is not getattr(ComposerModel, name, None)
