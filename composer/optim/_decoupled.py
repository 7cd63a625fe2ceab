"""Fused and foreach update kernels of the optimizers with decoupled weight decay (SGDW and AdamW).

Tensors of one device and dtype are updated together. Devices with fused kernels make one pass over memory. Other
devices use one foreach call per operation, as do tensors whose memory formats differ, for which the fused CPU kernels
silently return wrong results.
"""

# torch's optimizers call these kernels, which have no public names.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from composer.dist.dtensor import from_local_like, local_tensors
from composer.warnings import NotIntendedUseWarning

__all__ = ["Parameters", "adamw_", "bias_correction", "decay_fraction", "run_closure", "set_initial_lr", "sgdw_"]

Parameters = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]

_FUSED = frozenset({"cpu", "cuda", "mps", "xpu"})
# Subclasses, such as DTensor, do not support all of these kernels.
_PLAIN = (Tensor, nn.Parameter)
# A decay from this value on was most likely meant to be multiplied by the learning rate, as in torch.optim.
_HIGH_DECAY = 1e-3


def set_initial_lr(group: dict[str, Any]) -> None:
    """Store the initial learning rate of a new group, to which its decay is relative; warn if the decay is large."""
    if "initial_lr" in group:
        return
    rate, decay = float(group["lr"]), group["weight_decay"]
    group["initial_lr"] = rate
    if decay >= _HIGH_DECAY:
        message = (
            f"weight_decay={decay} removes this fraction of each weight in every step, because it is not multiplied by "
            f"the learning rate. A value chosen for torch.optim corresponds to weight_decay={decay * rate:.3g} here."
        )
        warnings.warn(message, NotIntendedUseWarning, stacklevel=5)


def run_closure(closure: Callable[[], Any] | None) -> Any:
    """Call the closure with gradients enabled and return its result."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def decay_fraction(lr: float | Tensor, initial_lr: float, weight_decay: float) -> float | Tensor:
    """Return the fraction by which a step decays each weight: lr / initial_lr * weight_decay."""
    if not weight_decay:
        return 0.0
    return lr / initial_lr * weight_decay if initial_lr else weight_decay


def bias_correction(beta: float, step: Tensor) -> Tensor:
    """Return 1 - beta ** step on the device of the steps, without cancellation in float32."""
    return -torch.expm1(step * (math.log(beta) if beta else -math.inf))


def sgdw_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: list[Tensor | None],
    *,
    momentum: float,
    lr: float | Tensor,
    decay: float | Tensor,
    dampening: float,
    nesterov: bool,
) -> None:
    """Decay the weights by the fraction ``decay``, then take an SGD step with momentum; create missing buffers."""
    params_or_dtensors, params, grads = params, local_tensors(params), local_tensors(grads)
    if _has_decay(decay):
        _apply_decay(params, decay)
    for indices in _group_tensors(params, buffers if momentum else None):
        weights, grads_of_group = [params[i] for i in indices], [grads[i] for i in indices]
        is_first = bool(momentum) and buffers[indices[0]] is None
        momentums: list[Tensor] = []
        if momentum:
            if is_first:
                momentums = [torch.clone(grad).detach() for grad in grads_of_group]
                for index, buffer in _zip_strict(indices, momentums):
                    buffers[index] = from_local_like(params_or_dtensors[index], buffer)
            else:
                momentums = local_tensors([_not_none(buffers[index]) for index in indices])
        if not isinstance(lr, Tensor) and _may_fuse(weights, grads_of_group, momentums):
            torch._fused_sgd_(
                weights,
                grads_of_group,
                momentums,
                weight_decay=0.0,
                momentum=momentum,
                lr=lr,
                dampening=dampening,
                nesterov=nesterov,
                maximize=False,
                is_first_step=is_first,
            )
            continue
        if momentum:
            if not is_first:
                torch._foreach_mul_(momentums, momentum)
                torch._foreach_add_(momentums, grads_of_group, alpha=1 - dampening)
            grads_of_group = (
                list(torch._foreach_add(grads_of_group, momentums, alpha=momentum)) if nesterov else momentums
            )
        if isinstance(lr, Tensor):
            torch._foreach_sub_(weights, list(torch._foreach_mul(grads_of_group, lr)))
        else:
            torch._foreach_add_(weights, grads_of_group, alpha=-lr)


def adamw_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    max_exp_avg_sqs: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    amsgrad: bool,
    beta1: float,
    beta2: float,
    lr: float | Tensor,
    decay: float | Tensor,
    eps: float,
) -> None:
    """Decay the weights by the fraction ``decay``, then take an Adam step; ``steps`` already include this one."""
    # Each rank updates its local shards of sharded tensors.
    params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs = map(
        local_tensors, (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
    )
    # The fused kernel applies decay in the same pass, relative to lr.
    by_kernel = not isinstance(lr, Tensor) and not isinstance(decay, Tensor) and lr > 0
    for indices in _group_tensors(params):
        lists = [[tensors[i] for i in indices] for tensors in (params, grads, exp_avgs, exp_avg_sqs)]
        largest = [max_exp_avg_sqs[i] for i in indices] if amsgrad else []
        counts = [steps[i] for i in indices]
        fuse = _may_fuse(*lists, largest) and all(count.device == lists[0][0].device for count in counts)
        if _has_decay(decay) and not (fuse and by_kernel):
            _apply_decay(lists[0], decay)
        if fuse:
            kernel: Any = torch._fused_adamw_  # its type stubs do not allow a tensor for lr
            kernel(
                *lists,
                largest,
                counts,
                lr=lr,
                beta1=beta1,
                beta2=beta2,
                weight_decay=decay / lr if by_kernel else 0.0,
                eps=eps,
                amsgrad=amsgrad,
                maximize=False,
            )
            continue
        if lists[0][0].is_complex():
            lists = [[torch.view_as_real(tensor) for tensor in tensors] for tensors in lists]
            largest = [torch.view_as_real(tensor) for tensor in largest]
        _adam(lists, largest, counts, (beta1, beta2), lr, eps)


def _adam(
    lists: Sequence[list[Tensor]],
    largest: list[Tensor],
    steps: list[Tensor],
    betas: tuple[float, float],
    lr: float | Tensor,
    eps: float,
) -> None:
    """Take an Adam step with one foreach call per operation, without device synchronization."""
    weights, grads_of_group, means, squares = lists
    torch._foreach_lerp_(means, grads_of_group, 1 - betas[0])
    torch._foreach_mul_(squares, betas[1])
    torch._foreach_addcmul_(squares, grads_of_group, grads_of_group, 1 - betas[1])
    if largest:
        torch._foreach_maximum_(largest, squares)
    counts = torch.stack(steps)
    device = weights[0].device
    rates = (lr / bias_correction(betas[0], counts)).to(device).unbind()
    roots = bias_correction(betas[1], counts).sqrt().to(device).unbind()
    scales = torch._foreach_sqrt(largest or squares)
    torch._foreach_div_(scales, roots)
    torch._foreach_add_(scales, eps)
    updates = torch._foreach_div(means, scales)
    torch._foreach_mul_(updates, rates)
    torch._foreach_sub_(weights, updates)


def _group_tensors(params: Sequence[Tensor], buffers: Sequence[Tensor | None] | None = None) -> Iterator[list[int]]:
    """Yield the indices of tensors that one kernel call can process together."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, param in enumerate(params):
        is_new = buffers is not None and buffers[index] is None
        groups.setdefault((param.device, param.dtype, is_new), []).append(index)
    yield from groups.values()


def _may_fuse(params: Sequence[Tensor], *others: Sequence[Tensor]) -> bool:
    first = params[0]
    return (
        first.device.type in _FUSED
        and first.is_floating_point()
        and all(type(param) in _PLAIN for param in params)
        and all(
            other.layout is torch.strided and other.dtype == param.dtype and other.stride() == param.stride()
            for tensors in others
            for other, param in zip(tensors, params, strict=bool(tensors))
        )
    )


def _has_decay(decay: float | Tensor) -> bool:
    """Return whether there is decay, without synchronizing with the device."""
    return isinstance(decay, Tensor) or decay != 0


def _apply_decay(params: Sequence[Tensor], decay: float | Tensor) -> None:
    torch._foreach_mul_(list(params), 1 - decay)


def _zip_strict(indices: Sequence[int], tensors: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
    return zip(indices, tensors, strict=True)


def _not_none(buffer: Tensor | None) -> Tensor:
    assert buffer is not None, "tensors are grouped by whether they have a buffer"
    return buffer
