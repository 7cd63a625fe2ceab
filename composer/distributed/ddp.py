"""Data parallelism: every process has the whole model, and its own part of each batch.

g = 1/W * sum_r g_r        Li et al. 2020, https://arxiv.org/abs/2006.15704
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from composer import dist
from composer._text import one_of
from composer.distributed.strategy import Strategy

if TYPE_CHECKING:
    from composer.core.state import State

__all__ = ["DDPStrategy", "DDPSyncStrategy", "ddp_sync_context", "prepare_ddp_module"]


class DDPSyncStrategy(StrEnum):
    """When the gradients of the microbatches of a batch are averaged over the processes.

    - ``SINGLE_AUTO_SYNC``: during the backward pass of the last microbatch.
    - ``MULTI_AUTO_SYNC``: during that of every microbatch, which suits models some of whose parameters get no gradient
      in some microbatches.
    - ``FORCED_SYNC``: after all backward passes, all gradients that there are.

    >>> DDPSyncStrategy("single_auto_sync").name
    'SINGLE_AUTO_SYNC'
    """

    SINGLE_AUTO_SYNC = "single_auto_sync"
    MULTI_AUTO_SYNC = "multi_auto_sync"
    FORCED_SYNC = "forced_sync"


class DDPStrategy(Strategy):
    """Averages gradients by torch's ``DistributedDataParallel``.

    Args:
        sync: When; None is with every microbatch where parameters may be unused, else with the last.
        find_unused_parameters: Whether parameters may get no gradient in a step. Algorithms that say so count too.

    >>> DDPStrategy("forced_sync").sync
    <DDPSyncStrategy.FORCED_SYNC: 'forced_sync'>
    """

    name = "ddp"

    def __init__(self, sync: str | DDPSyncStrategy | None = None, *, find_unused_parameters: bool = False) -> None:
        self.sync = None if sync is None else DDPSyncStrategy(one_of("ddp_sync_strategy", sync, list(DDPSyncStrategy)))
        self.find_unused_parameters = find_unused_parameters
        self._parameters: list[nn.Parameter] = []

    def prepare(self, state: State) -> None:
        """Wrap the model; the weights of the first process become those of all.

        Args:
            state: The state of the run.
        """
        unused = self.find_unused_parameters or any(one.find_unused_parameters for one in state.algorithms)
        if self.sync is None:
            self.sync = DDPSyncStrategy.MULTI_AUTO_SYNC if unused else DDPSyncStrategy.SINGLE_AUTO_SYNC
        self.meets_in_forward = self.sync is DDPSyncStrategy.MULTI_AUTO_SYNC
        self._parameters = list(state.model.parameters())
        wrapped = prepare_ddp_module(state.model, unused)
        self.module = wrapped if isinstance(wrapped, DistributedDataParallel) else None

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context for a microbatch, in which gradients are averaged or only added up.

        Args:
            is_last: Whether it is the last of its batch.
        """
        return _sync_context(self.module, is_last, self.sync)

    def reduce(self) -> None:
        """Average the gradients, where this was put off until now."""
        if self.sync is DDPSyncStrategy.FORCED_SYNC:
            _average(self._parameters)

    def close(self) -> None:
        """Give the model back, without the hooks that wait for other processes."""
        self.module, self._parameters = None, []


def prepare_ddp_module(module: nn.Module, find_unused_parameters: bool) -> nn.Module:
    """Wrap a module for data parallelism, unless there is nothing in it to train.

    Args:
        module: On its device; on each process the same layers.
        find_unused_parameters: Whether parameters may get no gradient in a step.

    Raises:
        RuntimeError: The process group is not set up.

    >>> module = nn.Identity()
    >>> prepare_ddp_module(module, find_unused_parameters=False) is module
    True
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    if not dist.is_initialized():
        raise RuntimeError("The process group is not set up; call composer.dist.initialize_dist() first.")
    # Gradients as views of what is sent need no second copy of all of them.
    return DistributedDataParallel(module, find_unused_parameters=find_unused_parameters, gradient_as_bucket_view=True)


def ddp_sync_context(
    state: State, is_final_microbatch: bool, sync_strategy: str | DDPSyncStrategy
) -> AbstractContextManager[Any]:
    """Return the context for forward and backward of a microbatch, for loops of one's own.

    Args:
        state: Whose model is one of :func:`prepare_ddp_module`; with any other the context does nothing.
        is_final_microbatch: Whether it is the last of its batch.
        sync_strategy: When gradients are averaged. With ``FORCED_SYNC`` it is when the context of the last microbatch
            ends.

    >>> from composer import State
    >>> with ddp_sync_context(State(model=nn.Linear(1, 1)), True, "single_auto_sync"):
    ...     pass
    """
    sync = DDPSyncStrategy(one_of("sync_strategy", sync_strategy, list(DDPSyncStrategy)))
    context = _sync_context(state.model, is_final_microbatch, sync)
    if sync is DDPSyncStrategy.FORCED_SYNC and is_final_microbatch:
        return _AveragingContext(context, list(state.model.parameters()))
    return context


class _AveragingContext(AbstractContextManager[None]):
    """A context at whose end gradients are averaged, unless it failed."""

    def __init__(self, inner: AbstractContextManager[Any], parameters: list[nn.Parameter]) -> None:
        self._inner, self._parameters = inner, parameters

    def __enter__(self) -> None:
        self._inner.__enter__()

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        self._inner.__exit__(kind, *error)
        if kind is None:
            _average(self._parameters)


def _sync_context(module: nn.Module | None, is_last: bool, sync: DDPSyncStrategy | None) -> AbstractContextManager[Any]:
    now = sync is DDPSyncStrategy.MULTI_AUTO_SYNC or (sync is DDPSyncStrategy.SINGLE_AUTO_SYNC and is_last)
    return nullcontext() if now or not isinstance(module, DistributedDataParallel) else module.no_sync()


def _average(parameters: list[nn.Parameter]) -> None:
    """Average the gradients that any process has; others count as zero there."""
    if dist.get_world_size() == 1 or not parameters:
        return
    # On the host, by gloo: to read it waits for no device.
    has = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
    torch_dist.all_reduce(has, torch_dist.ReduceOp.MAX)
    works: list[Any] = []
    for parameter, needed in zip(parameters, has.tolist(), strict=True):
        if needed:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient: Tensor = parameter.grad
            gradient.div_(dist.get_world_size())
            works.append(torch_dist.all_reduce(gradient, async_op=True))
    for work in works:
        work.wait()
