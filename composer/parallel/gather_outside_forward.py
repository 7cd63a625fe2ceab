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
    """Lets methods other than ``forward`` use the weights of a sharded model.

    ``fully_shard`` all-gathers weights before the forward pass. This class also does so before ``eval_forward`` and
    ``generate``, and before ``loss`` for weights that belong to no block. Without a backward pass, which would free
    them, it reshards them at the end: a weight that stayed unsharded would be used unchanged in the next step, even if
    a checkpoint was loaded or weights were averaged in between.

    Args:
        model: The sharded model.
        also: Further units whose weights are all-gathered for ``loss``.

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
            if _overrides(model, name):
                register_fsdp_forward_method(model, name)
                setattr(model, name, self._free_after(getattr(model, name)))
        if _overrides(model, "loss"):
            named: Any = model
            named.loss = self._free_after(self._unshard_before(named.loss))
        model.register_forward_hook(self._after_forward)

    @property
    def units(self) -> Sequence[FSDPModule]:
        """The FSDP units of the model, the model itself first."""
        return self._units

    def _unshard_before(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def gathered(*args: Any, **kwargs: Any) -> Any:
            for unit in (self._model, *self._also):
                unit.unshard()
            return method(*args, **kwargs)

        return gathered

    def _free_after(self, method: Callable[..., Any]) -> Callable[..., Any]:
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


def _overrides(model: nn.Module, name: str) -> bool:
    """Return whether the model's class defines a method other than the default of :class:`.ComposerModel`."""
    method = getattr(type(model), name, None)
    return callable(method) and method is not getattr(ComposerModel, name, None)
