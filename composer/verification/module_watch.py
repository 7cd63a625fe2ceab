"""Hooks on the modules of a model: digests of their outputs in forward order, and which sample random numbers."""

from __future__ import annotations

import hashlib
import random
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]

from composer import trees
from composer.dist.dtensor import full_tensor
from composer.dist.tensor_digest import tensor_digest

__all__ = ["ModuleWatch"]


class ModuleWatch:
    """Records what the modules of a model do in each forward pass of training.

    Args:
        model: The model.
        keep: Whether to keep the outputs of the first step, on the CPU.
        gradients: Whether to keep the gradients at those of the model, too.

    Attributes:
        active: Whether calls are recorded.
        random_modules: Names of modules that have sampled random numbers in their own forward.
        statistics_modules: Names of modules that use statistics of the batch.
        outputs: Outputs of the first step by name, one for each call.
        gradients: Gradients at the outputs of the model itself in the first step, one for each call.
        states: For the first call of each module that samples, the state afterwards of each generator that it uses.

    >>> watch = ModuleWatch(nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2)))
    >>> watch.active = True
    >>> _ = watch.model(torch.ones(3, 2))
    >>> watch.random_modules, watch.statistics_modules, [name for name, _ in watch.take()]
    (['0'], ['1'], ['0', '1', ''])
    """

    def __init__(self, model: nn.Module, *, keep: bool = False, gradients: bool = False) -> None:
        self.model = model
        self.active = False
        self.random_modules: list[str] = []
        self.statistics_modules: list[str] = []
        self.outputs: dict[str, list[Tensor]] = {}
        self.states: dict[str, dict[str, int]] = {}
        self.gradients: list[Tensor] = []
        self._keep, self._keep_gradients = keep, gradients
        self._digests: list[tuple[str, Tensor]] = []
        # One entry for each call that has not returned: the random state before, and whether an inner call changed it.
        self._calls: list[list[Any]] = []
        for name, module in model.named_modules():
            module.register_forward_pre_hook(self._before(name), prepend=True)
            module.register_forward_hook(self._after(name), prepend=True)

    def take(self, *, keep: bool = False) -> list[tuple[str, int]]:
        """Return the name and the digest of the output of each call since the last time, in order.

        Args:
            keep: Whether to keep the outputs of the next step.
        """
        found = [(name, int(value)) for name, value in self._digests]
        self._digests.clear()
        self._calls.clear()
        self.states.clear()
        self._keep = keep
        return found

    def _before(self, name: str) -> Any:
        def record(module: nn.Module, args: Any) -> None:
            if not self.active:
                return
            if self._keep and not self._digests and not self._calls:
                self.outputs, self.gradients = {}, []
            state = _rng_state()
            self._calls.append([state, False])

        return record

    def _after(self, name: str) -> Any:
        def record(module: nn.Module, args: Any, outputs: Any) -> None:
            if not self.active or not self._calls:
                return
            before, inner = self._calls.pop()
            state = _rng_state()
            changed = {generator: value for generator, value in state.items() if value != before[generator]}
            if changed and self._calls:
                self._calls[-1][1] = True
            if changed and not inner:
                self.states.setdefault(name, changed)
                if name not in self.random_modules:
                    self.random_modules.append(name)
            if isinstance(module, _BatchNorm) and name not in self.statistics_modules:
                self.statistics_modules.append(name)
            tensors = [leaf for leaf in trees.leaves(outputs) if isinstance(leaf, Tensor)]
            for tensor in tensors:
                self._digests.append((name, tensor_digest(full_tensor(tensor))))
            if self._keep and len(tensors) == 1 and tensors[0].is_floating_point():
                self.outputs.setdefault(name, []).append(_copied(tensors[0]))
                if module is self.model and self._keep_gradients and tensors[0].requires_grad:
                    tensors[0].register_hook(lambda gradient: self.gradients.append(_copied(gradient)))

        return record


def _copied(tensor: Tensor) -> Tensor:
    return full_tensor(tensor).detach().cpu().clone()


def _rng_state() -> dict[str, int]:
    """Return a hash of the state of each generator that modules sample from, the same in each process."""
    name, keys, position, *rest = np.random.get_state()
    states = {
        "torch": torch.get_rng_state().numpy().tobytes(),
        "Python": repr(random.getstate()).encode(),
        "NumPy": cast("np.ndarray[Any, Any]", keys).tobytes() + f"{name}{position}{rest}".encode(),
    }
    if torch.accelerator.is_available() and torch.get_device_module().is_initialized():
        states["accelerator"] = torch.get_device_module().get_rng_state().cpu().numpy().tobytes()
    return {key: int.from_bytes(hashlib.blake2b(state, digest_size=6).digest(), "big") for key, state in states.items()}
