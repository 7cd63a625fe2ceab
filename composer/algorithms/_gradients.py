"""Gradients of all parameters at once: collect them, compute their total norm (sharded or not), scale them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from composer.dist.dtensor import joint_norm, local_tensors, norms

__all__ = ["gradients_of", "parameters_of", "scale_gradients", "total_norm"]


def parameters_of(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Return the parameters of optimizers that have a gradient, without duplicates.

    >>> weight = torch.nn.Parameter(torch.zeros(2))
    >>> parameters_of([torch.optim.SGD([weight])])
    []
    """
    found = {
        id(parameter): parameter
        for optimizer in optimizers
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    }
    return list(found.values())


def gradients_of(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the gradients of the parameters that have one.

    >>> gradients_of([torch.nn.Parameter(torch.zeros(2))])
    []
    """
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the total L2 norm of all gradients, a scalar on the device of the first.

    For sharded gradients it is the norm over all shards, a collective operation: every rank must call it.

    >>> total_norm([torch.tensor([3.0]), torch.tensor([[4.0]])])
    tensor(5.)
    """
    return joint_norm(norms(gradients))


def scale_gradients(gradients: Sequence[Tensor], factor: Tensor) -> None:
    """Multiply all gradients by a scalar tensor, in place, without device synchronization.

    >>> gradient = torch.tensor([2.0, 4.0])
    >>> scale_gradients([gradient], torch.tensor(0.5))
    >>> gradient
    tensor([1., 2.])
    """
    local = local_tensors(gradients)
    for device in {gradient.device for gradient in local}:
        group = [gradient for gradient in local if gradient.device == device]
        torch._foreach_mul_(group, factor.to(device))  # pyright: ignore[reportPrivateImportUsage]
