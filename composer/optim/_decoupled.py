"""The arithmetic of the optimizers with decoupled weight decay: one kernel for all tensors of a kind.

Devices with fused kernels make one pass over the memory. The others, and tensors whose memory formats differ, which the
fused kernels of the CPU mix up without a word, get one call for each operation.
"""

# torch's own optimizers call these kernels; it has no public name for them.
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

__all__ = ["Parameters", "adamw_", "bias_correction", "decay_share", "evaluate", "remember_rate", "sgdw_"]

Parameters = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]

_FUSED = frozenset({"cpu", "cuda", "mps", "xpu"})
# Subclasses, such as sharded tensors, do not have all of these kernels.
_PLAIN = (Tensor, nn.Parameter)
# From here on a decay was most likely meant to be multiplied with the learning rate, as everywhere else.
_HIGH_DECAY = 1e-3


def remember_rate(group: dict[str, Any]) -> None:
    """Note the rate that the decay of a new group is relative to; warn of a decay in other units."""
    if "initial_lr" in group:
        return
    rate, decay = float(group["lr"]), group["weight_decay"]
    group["initial_lr"] = rate
    if decay >= _HIGH_DECAY:
        message = (
            f"weight_decay={decay} takes this share of each weight away in every step, since it is not multiplied with "
            f"the learning rate. A value made for torch.optim corresponds to weight_decay={decay * rate:.3g} here."
        )
        warnings.warn(message, NotIntendedUseWarning, stacklevel=5)


def evaluate(closure: Callable[[], Any] | None) -> Any:
    """What a closure returns, which is to compute gradients."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def decay_share(lr: float | Tensor, initial_lr: float, weight_decay: float) -> float | Tensor:
    """The share of a weight that a step takes away: lr / initial_lr * weight_decay."""
    if not weight_decay:
        return 0.0
    return lr / initial_lr * weight_decay if initial_lr else weight_decay


def bias_correction(beta: float, step: Tensor) -> Tensor:
    """1 - beta ** step, on the device of the steps, and without the cancellation that float32 would suffer."""
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
    """Step with momentum, after taking the share ``decay`` off the weights; fills in missing buffers."""
    divided, params, grads = params, local_tensors(params), local_tensors(grads)
    if _acts(decay):
        _shrink(params, decay)
    for places in _alike(params, buffers if momentum else None):
        weights, slopes = [params[i] for i in places], [grads[i] for i in places]
        is_first = bool(momentum) and buffers[places[0]] is None
        kept: list[Tensor] = []
        if momentum:
            if is_first:
                kept = [torch.clone(slope).detach() for slope in slopes]
                for place, buffer in _pairs(places, kept):
                    buffers[place] = from_local_like(divided[place], buffer)
            else:
                kept = local_tensors([_there(buffers[place]) for place in places])
        if not isinstance(lr, Tensor) and _may_fuse(weights, slopes, kept):
            torch._fused_sgd_(
                weights,
                slopes,
                kept,
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
                torch._foreach_mul_(kept, momentum)
                torch._foreach_add_(kept, slopes, alpha=1 - dampening)
            slopes = list(torch._foreach_add(slopes, kept, alpha=momentum)) if nesterov else kept
        if isinstance(lr, Tensor):
            torch._foreach_sub_(weights, list(torch._foreach_mul(slopes, lr)))
        else:
            torch._foreach_add_(weights, slopes, alpha=-lr)


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
    """Step as Adam does, after taking the share ``decay`` off the weights; ``steps`` count this one already."""
    # Each process steps with what it has of divided tensors.
    params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs = map(
        local_tensors, (params, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs)
    )
    # The fused kernel decays in the same pass, by a rate relative to lr.
    by_kernel = not isinstance(lr, Tensor) and not isinstance(decay, Tensor) and lr > 0
    for places in _alike(params):
        lists = [[tensors[i] for i in places] for tensors in (params, grads, exp_avgs, exp_avg_sqs)]
        largest = [max_exp_avg_sqs[i] for i in places] if amsgrad else []
        counts = [steps[i] for i in places]
        fuse = _may_fuse(*lists, largest) and all(count.device == lists[0][0].device for count in counts)
        if _acts(decay) and not (fuse and by_kernel):
            _shrink(lists[0], decay)
        if fuse:
            kernel: Any = torch._fused_adamw_  # whose types do not say that the rate may be a tensor
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
    """One call for each operation; nothing is read back from the device."""
    weights, slopes, means, squares = lists
    torch._foreach_lerp_(means, slopes, 1 - betas[0])
    torch._foreach_mul_(squares, betas[1])
    torch._foreach_addcmul_(squares, slopes, slopes, 1 - betas[1])
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


def _alike(params: Sequence[Tensor], buffers: Sequence[Tensor | None] | None = None) -> Iterator[list[int]]:
    """The places of tensors that one kernel can take together."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for place, param in enumerate(params):
        is_new = buffers is not None and buffers[place] is None
        kinds.setdefault((param.device, param.dtype, is_new), []).append(place)
    yield from kinds.values()


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


def _acts(decay: float | Tensor) -> bool:
    """Whether there is decay, without a look at a number on the device."""
    return isinstance(decay, Tensor) or decay != 0


def _shrink(params: Sequence[Tensor], decay: float | Tensor) -> None:
    torch._foreach_mul_(list(params), 1 - decay)


def _pairs(places: Sequence[int], tensors: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
    return zip(places, tensors, strict=True)


def _there(buffer: Tensor | None) -> Tensor:
    assert buffer is not None, "tensors with and without a buffer are told apart before"
    return buffer
