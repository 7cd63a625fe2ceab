"""Access the unsharded parameters of an FSDP2 model (``fully_shard``), which are the leaves of its autograd graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn

__all__ = ["drop_unsharded_gradients", "fsdp_parameters", "unsharded_parameters"]


def fsdp_parameters(modules: Iterable[nn.Module]) -> Iterator[Any]:
    """Iterate over the internal ``FSDPParam`` objects of ``fully_shard``.

    Args:
        modules: Modules; those without ``fully_shard`` are skipped.

    >>> list(fsdp_parameters([nn.Linear(1, 1)]))
    []
    """
    for module in modules:
        if hasattr(module, "_get_fsdp_state"):  # torch has no public name for it
            for group in module._get_fsdp_state()._fsdp_param_groups:  # pyright: ignore
                yield from group.fsdp_params


def unsharded_parameters(model: nn.Module) -> Iterator[Tensor]:
    """Iterate over the unsharded parameters that a forward pass has all-gathered; these receive the gradients first.

    Args:
        model: The model.

    >>> list(unsharded_parameters(nn.Linear(1, 1)))
    []
    """
    for parameter in fsdp_parameters(model.modules()):
        if hasattr(parameter, "_unsharded_param"):  # it has been all-gathered
            yield parameter._unsharded_param


def drop_unsharded_gradients(model: nn.Module) -> None:
    """Clear the gradients of unsharded parameters, which ``optimizer.zero_grad()`` does not reach.

    Args:
        model: The model.

    >>> drop_unsharded_gradients(nn.Linear(1, 1))
    """
    for parameter in fsdp_parameters(model.modules()):
        parameter.unsharded_accumulated_grad = None
    for parameter in unsharded_parameters(model):
        parameter.grad = None
