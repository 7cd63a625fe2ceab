"""Weight averaging for EMA, post-hoc EMA, SWA and schedule-free training, with foreach kernels."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from composer._text import plural
from composer.dist.dtensor import local_tensors

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["Pairs", "average_of", "num_optimized", "shared_weights", "weights_of"]


class Pairs:
    """Pairs of weights and their averages, grouped by dtype and device: one foreach call per group."""

    def __init__(self, weights: Mapping[str, Tensor], averages: Mapping[str, Tensor]) -> None:
        unlike = weights.keys() ^ averages.keys()
        unlike |= {name for name in weights.keys() & averages.keys() if weights[name].shape != averages[name].shape}
        if unlike:
            raise ValueError(
                f"The averages do not match the model: {plural(len(unlike), 'name')} missing in one of them or of "
                f"different shape, such as {min(unlike)!r}."
            )
        self._weights = weights
        self._groups: dict[tuple[object, ...], tuple[list[Tensor], list[Tensor]]] = {}
        for name, weight in weights.items():
            average = averages[name]
            weight, average = local_tensors((weight, average))
            group = self._groups.setdefault((weight.dtype, average.dtype, weight.device, average.device), ([], []))
            group[0].append(weight)
            group[1].append(average)

    @torch.no_grad()
    def average(self, step: float) -> None:
        """Interpolate the averages towards the weights with weight ``step``."""
        for weights, averages in self._groups.values():
            dtype = averages[0].dtype
            if not (dtype.is_floating_point or dtype.is_complex):
                torch._foreach_copy_(averages, weights)  # pyright: ignore[reportPrivateImportUsage]
                continue
            if weights[0].dtype is not dtype:
                weights = [weight.to(dtype) for weight in weights]
            torch._foreach_lerp_(averages, weights, step)  # pyright: ignore[reportPrivateImportUsage]

    @torch.no_grad()
    def load(self) -> None:
        """Copy the averages into the weights."""
        for weights, averages in self._groups.values():
            torch._foreach_copy_(weights, averages)  # pyright: ignore[reportPrivateImportUsage]

    def are_of(self, weights: Mapping[str, Tensor]) -> bool:
        """Return whether these are the same tensor objects as the paired weights."""
        return all(self._weights.get(name) is weight for name, weight in weights.items())


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and persistent buffers of a model, without duplicates, by unwrapped names."""
    if isinstance(model, DistributedDataParallel):
        model = model.module
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and id(value) not in seen:
            seen.add(id(value))
            found[name.replace("_orig_mod.", "")] = value
    return found


def average_of(weight: Tensor, average: Tensor | None) -> Tensor:
    """Return the average of a weight on its device; initially a copy, in float32 for half-precision weights."""
    if average is not None and average.shape == weight.shape:
        return average.to(weight.device)
    half = weight.dtype in (torch.float16, torch.bfloat16)
    return weight.detach().to(torch.float32 if half else weight.dtype, copy=True)


def shared_weights(state: State) -> AbstractContextManager[None]:
    """Return a context in which the model has the weights that all replicas share, if several train apart.

    Args:
        state: The state of the run.
    """
    replicas = state.replicas
    return nullcontext() if replicas is None or replicas.count == 1 else replicas.evaluation_weights()


def num_optimized(state: State) -> int:
    """Return the number of weights that the optimizers have; if it changes, averages must be paired again."""
    return sum(len(group["params"]) for optimizer in state.optimizers for group in optimizer.param_groups)
