"""Microbatches whose loss has weight zero, since none of their targets counts: their gradients are masked.

    g_i = d(w_i * l_i)/dp:      w_i = 0  =>  g_i = 0,  also where  d(l_i)/dp  is infinite or NaN

A masked mean ``(l * m).sum() / m.sum()`` has the gradient 0 * (1 / 0) = NaN there, whatever weight its value gets.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from composer.core.state import State
from composer.dist.divided import is_divided, like
from composer.distributed.unsharded import unsharded_parameters

__all__ = ["mask_gradients", "weighted"]

_WHATEVER: AbstractContextManager[None] = nullcontext()

# With indices as targets it gives the logits of those that do not count the gradient 0, whatever it averages over.
_CROSS_ENTROPY = ("NllLossBackward0", "NllLoss2DBackward0")


def weighted(loss: Tensor, weight: float | Tensor) -> Tensor:
    """Return a loss times its weight; with weight 0 it is 0, also if the loss is NaN or infinite.

    Args:
        loss: A scalar.
        weight: 0 or greater.

    >>> weighted(torch.tensor(float("inf")), 0.0)
    tensor(0.)
    """
    if isinstance(weight, Tensor):
        return torch.where(weight > 0, loss * weight, 0).to(loss.dtype)
    return loss * weight if weight else torch.where(torch.zeros_like(loss, dtype=torch.bool), loss, 0)


def mask_gradients(state: State, count: int | Tensor) -> AbstractContextManager[None]:
    """Return a context in which the backward pass of a loss that averages over nothing adds 0 to the gradients.

    The gradients of other losses are left alone, NaN included. Where only the device knows the count, nobody waits for
    it: each gradient is masked on its way, unless the loss is a cross entropy, whose gradient is 0 by itself.

    Args:
        state: The state after a forward pass; parameters of its model and its optimizers are masked.
        count: What ``state.loss`` averages over.

    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> with mask_gradients(state, 0):
    ...     (state.model(torch.zeros(1, 1)).sum() * float("inf")).backward()
    >>> state.model.weight.grad
    tensor([[0.]])
    """
    if isinstance(count, Tensor):
        return _WHATEVER if _is_cross_entropy(state.loss) else _masked(state, count > 0)
    return _WHATEVER if count else _masked(state, None)


@contextlib.contextmanager
def _masked(state: State, counts: Tensor | None) -> Generator[None]:
    """Mask gradients; ``counts`` is a boolean on the device, or None where nothing counts."""

    def mask(gradient: Tensor) -> Tensor:
        local: Any = gradient
        if is_divided(gradient):
            local = local.to_local()
        return like(gradient, torch.zeros_like(local) if counts is None else _where(counts.to(local.device), local))

    handles = [leaf.register_hook(mask) for leaf in dict.fromkeys(_leaves(state)) if leaf.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _where(counts: Tensor, gradient: Tensor) -> Tensor:
    if gradient.is_sparse:
        values = torch.where(counts, gradient._values(), 0)
        return torch.sparse_coo_tensor(gradient._indices(), values, gradient.shape, check_invariants=False)
    return torch.where(counts, gradient, 0)


def _leaves(state: State) -> Iterator[Tensor]:
    """Tensors at which gradients arrive."""
    yield from state.model.parameters()
    for optimizer in state.optimizers:
        for group in optimizer.param_groups:
            yield from group["params"]
    yield from unsharded_parameters(state.model)


def _is_cross_entropy(loss: Any) -> bool:
    node: Any = loss.grad_fn if isinstance(loss, Tensor) else None
    if node is None or node.name() not in _CROSS_ENTROPY:
        return False
    (inner, _), *_ = node.next_functions
    return inner is not None and inner.name() == "LogSoftmaxBackward0"
