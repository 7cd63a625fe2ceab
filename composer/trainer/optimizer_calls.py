"""Call ``step`` and ``zero_grad`` of optimizers, without their spans in profiles while no profiler runs.

A profiler (``torch.profiler``, ``torch.autograd.profiler``) sees them, also if it starts during training. An
``ExecutionTraceObserver`` without a profiler does not, as torch has no function that tells whether there is one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,  # pyright: ignore[reportPrivateUsage]
    _global_optimizer_pre_hooks,  # pyright: ignore[reportPrivateUsage]
)

__all__ = ["step", "zero_grad"]


def _is_of_torch(function: Any) -> bool:
    """Return whether a function is defined in torch; a program may have replaced it before this import."""
    code: Any = getattr(function, "__code__", None)
    return code is not None and code.co_filename.startswith(torch.__path__[0])


_ZERO_GRAD = Optimizer.zero_grad if _is_of_torch(Optimizer.zero_grad) else object()
_wrapper = Optimizer.profile_hook_step(lambda self: None)
# torch wraps the step of each class in a function with this code, which opens the span and calls the hooks.
_SPAN_AND_HOOKS = _wrapper.__code__ if _is_of_torch(_wrapper) else object()
# Its schedules replace the step of an optimizer by a function of this file, which notes the call and calls the former.
_FILE_OF_SCHEDULES = LRScheduler.__init__.__code__.co_filename


def step(optimizer: Optimizer) -> None:
    """Call ``optimizer.step()``; its span, which takes a fifth of the step of a small model, only while profiling.

    Args:
        optimizer: The optimizer. A step that was replaced, or has hooks, is called as it is.

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> weight.grad = torch.ones(1)
    >>> step(torch.optim.SGD([weight], lr=0.5))
    >>> weight.data
    tensor([0.5000])
    """
    method: Any = type(optimizer).step
    replaced = optimizer.__dict__.get("step")
    if (
        getattr(method, "__code__", None) is not _SPAN_AND_HOOKS
        or (replaced is not None and not _notes_call(replaced, method))
        or optimizer._optimizer_step_pre_hooks  # pyright: ignore[reportPrivateUsage]
        or optimizer._optimizer_step_post_hooks  # pyright: ignore[reportPrivateUsage]
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
        or _is_profiled()
    ):
        optimizer.step()
        return
    if replaced is not None:
        optimizer._opt_called = True  # pyright: ignore[reportAttributeAccessIssue] - torch's own attribute
    method.__wrapped__(optimizer)


def zero_grad(optimizer: Optimizer) -> None:
    """Call ``optimizer.zero_grad()``; its span, which takes most of its time, only while profiling.

    Args:
        optimizer: The optimizer. A ``zero_grad`` that was replaced is called as it is.

    >>> weight = torch.nn.Parameter(torch.ones(1))
    >>> weight.grad = torch.ones(1)
    >>> zero_grad(torch.optim.SGD([weight], lr=0.5))
    >>> weight.grad is None
    True
    """
    if getattr(optimizer.zero_grad, "__func__", None) is not _ZERO_GRAD or _is_profiled():
        optimizer.zero_grad()
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


def _notes_call(replaced: Any, method: Any) -> bool:
    """Return whether the step of an optimizer was replaced by a schedule of torch, and by nothing else."""
    return (
        getattr(replaced, "__wrapped__", None) is method
        and getattr(getattr(replaced, "__code__", None), "co_filename", None) == _FILE_OF_SCHEDULES
    )


def _is_profiled() -> bool:
    return torch.autograd._profiler_enabled()  # pyright: ignore[reportPrivateImportUsage]
