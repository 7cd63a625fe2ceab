"""Mask the gradients of microbatches without valid targets, whose loss has weight zero.

    g_i = d(w_i * l_i)/dp:      w_i = 0  =>  g_i = 0,  also where  d(l_i)/dp  is infinite or NaN

The gradient of a masked mean ``(l * m).sum() / m.sum()`` is then 0 * (1 / 0) = NaN, whatever the weight of the loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from composer.core.state import State
from composer.dist.dtensor import from_local_like, is_dtensor
from composer.parallel.unsharded_parameters import unsharded_parameters

__all__ = ["mask_gradients", "weighted"]

_NO_MASK: AbstractContextManager[None] = nullcontext()

# With class indices as targets, the logits of ignored targets get gradient 0, even if all targets are ignored.
_CROSS_ENTROPY = ("NllLossBackward0", "NllLoss2DBackward0")


def weighted(loss: Tensor, weight: float | Tensor) -> Tensor:
    """Multiply a loss by its weight; with weight 0 the result is 0, even if the loss is NaN or infinite.

    Args:
        loss: A scalar.
        weight: The weight; of bools, True is 1.

    >>> weighted(torch.tensor(float("inf")), 0.0)
    tensor(0.)
    """
    if isinstance(weight, Tensor):
        if weight.dtype == torch.bool:
            return torch.where(weight, loss, 0)
        return torch.where(weight != 0, loss * weight, 0).to(loss.dtype)
    return loss * weight if weight else torch.where(torch.zeros_like(loss, dtype=torch.bool), loss, 0)


def mask_gradients(state: State, count: float | Tensor) -> AbstractContextManager[None]:
    """Return a context in which the backward pass of a loss over zero targets adds 0 to the gradients.

    Gradients of other losses are unchanged, including NaN. If the count is a tensor, there is no host-device
    synchronization: every gradient is masked by a hook, unless the loss is a cross entropy, whose gradient is 0 anyway.

    Args:
        state: The state after a forward pass; gradients of parameters of its model and its optimizers are masked.
        count: Number of samples or tokens that ``state.loss`` averages over.

    >>> state = State(model=torch.nn.Linear(1, 1))
    >>> with mask_gradients(state, 0):
    ...     (state.model(torch.zeros(1, 1)).sum() * float("inf")).backward()
    >>> state.model.weight.grad
    tensor([[0.]])
    """
    if isinstance(count, Tensor):
        return _NO_MASK if _is_cross_entropy(state.loss) else _masked(state, count != 0)
    return _NO_MASK if count else _masked(state, None)


@contextlib.contextmanager
def _masked(state: State, counts: Tensor | None) -> Generator[None]:
    """Mask gradients; ``counts`` is a boolean tensor on the device, or None if there are no valid targets."""
    nothing = None if counts is None else ~counts

    def mask(gradient: Tensor) -> Tensor:
        local: Any = gradient
        if is_dtensor(gradient):
            local = local.to_local()
        return from_local_like(gradient, torch.zeros_like(local) if nothing is None else _filled(local, nothing))

    handles = [leaf.register_hook(mask) for leaf in dict.fromkeys(_leaves(state)) if leaf.requires_grad]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _filled(gradient: Tensor, nothing: Tensor) -> Tensor:
    nothing = nothing.to(gradient.device)
    if gradient.is_sparse:
        values = gradient._values().masked_fill(nothing, 0)
        return torch.sparse_coo_tensor(gradient._indices(), values, gradient.shape, check_invariants=False)
    return gradient.masked_fill(nothing, 0)


def _leaves(state: State) -> Iterator[Tensor]:
    """Yield the tensors that accumulate gradients."""
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
