"""Data parallelism: every process has the whole model, and its own part of each batch.

g = 1/W * sum_r g_r        Li et al. 2020, https://arxiv.org/abs/2006.15704
"""

from __future__ import annotations

import gc
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from composer import dist
from composer._text import one_of
from composer.dist.group_exit import release_at_exit
from composer.parallel.buckets import Buckets
from composer.parallel.strategy import Strategy

if TYPE_CHECKING:
    from composer.core.state import State

# As large as those of DistributedDataParallel.
_BUCKET_BYTES = 25 * 2**20
# So many buckets are on their way at once, each with a copy of its gradients.
_UNDER_WAY = 3

__all__ = ["DDPStrategy", "DDPSyncStrategy", "average_gradients", "ddp_sync_context", "prepare_ddp_module"]


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
    can_catch_up = True

    def __init__(self, sync: str | DDPSyncStrategy | None = None, *, find_unused_parameters: bool = False) -> None:
        self.sync = None if sync is None else DDPSyncStrategy(one_of("ddp_sync_strategy", sync, list(DDPSyncStrategy)))
        self.find_unused_parameters = find_unused_parameters
        self._parameters: list[nn.Parameter] = []
        self._unused = False
        self._buckets: Buckets | None = None

    def prepare(self, state: State) -> None:
        """Wrap the model; the weights of the first process become those of all.

        Args:
            state: The state of the run.
        """
        unused = self.find_unused_parameters or any(one.find_unused_parameters for one in state.algorithms)
        if self.sync is None:
            self.sync = DDPSyncStrategy.MULTI_AUTO_SYNC if unused else DDPSyncStrategy.SINGLE_AUTO_SYNC
        self.syncs_in_forward = self.sync is DDPSyncStrategy.MULTI_AUTO_SYNC
        self._parameters = list(state.model.parameters())
        self._unused = unused
        self._wrap(state.model)

    def begin(self) -> None:
        """Bring together what the wrapper would in its next forward pass: buffers, and the order of its buckets.

        There a process that has failed before its forward pass would leave the others waiting.
        """
        if self._buckets is not None:
            self._buckets.sent = 0
        if self.module is not None:
            cast("Any", self.module).reducer._rebuild_buckets()  # which it does once, after the first backward pass
        if self.sync is not DDPSyncStrategy.MULTI_AUTO_SYNC:
            self._share_buffers()

    def _share_buffers(self) -> None:
        """Give all processes the buffers of the first."""
        module: Any = self.module
        if module is not None and module.modules_buffers:
            module._sync_buffers()

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context for a microbatch, in which gradients are averaged or only added up.

        Args:
            is_last: Whether it is the last of its batch.
        """
        if self._buckets is not None:
            self._buckets.sent = 0
        if self.sync is DDPSyncStrategy.MULTI_AUTO_SYNC:
            self._share_buffers()
        return _sync_context(self.module, is_last, self.sync)

    def watch(self) -> None:
        """Count the buckets of gradients that a backward pass has sent.

        Where gradients are averaged with every microbatch, or parameters may be unused, they are averaged after the
        backward passes from now on: the same gradients, and nothing that others could wait for.
        """
        if self._buckets is not None:
            return
        if self.sync is DDPSyncStrategy.MULTI_AUTO_SYNC or self._unused:
            self.sync, self.syncs_in_forward = DDPSyncStrategy.FORCED_SYNC, False
        self._buckets = Buckets()
        self._count_buckets()

    def catch_up(self, microbatches: int) -> None:
        """Send zeros in place of the gradients that the others expect.

        Args:
            microbatches: Number of those of the batch that are not done.
        """
        if self._buckets is not None and self.sync is DDPSyncStrategy.SINGLE_AUTO_SYNC and self.module is not None:
            # Only the backward pass of the last microbatch sends any.
            self._buckets.send_rest(self.module, after=self._buckets.sent if microbatches == 1 else 0)

    def recover(self, state: State) -> None:
        """Wrap the model anew, where a backward pass that broke off leaves the wrapper in the middle of sending.

        Args:
            state: The state of the run.
        """
        for optimizer in state.optimizers:
            optimizer.zero_grad()  # views of what was sent
        if self.module is not None and self.sync is DDPSyncStrategy.FORCED_SYNC:
            return  # it has sent nothing
        if self.module is not None:
            # Before it goes, in case somebody else has a reference to it.
            cast("Any", self.module)._remove_autograd_hooks()
            self.module = None
            gc.collect()
        self._wrap(state.model)

    def _wrap(self, model: nn.Module) -> None:
        wrapped = prepare_ddp_module(model, self._unused)
        self.module = wrapped if isinstance(wrapped, DistributedDataParallel) else None
        if self.module is not None:
            release_at_exit(self.close)
            # By begin() instead; when it is made, the wrapper has to.
            cast("Any", self.module).broadcast_buffers = False
        self._count_buckets()

    def _count_buckets(self) -> None:
        if self._buckets is not None and self.module is not None:
            self._buckets.attach(self.module)

    def reduce(self) -> None:
        """Average the gradients, where this was put off until now."""
        if self.sync is DDPSyncStrategy.FORCED_SYNC:
            average_gradients(self._parameters)

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
            average_gradients(self._parameters)


def _sync_context(module: nn.Module | None, is_last: bool, sync: DDPSyncStrategy | None) -> AbstractContextManager[Any]:
    now = sync is DDPSyncStrategy.MULTI_AUTO_SYNC or (sync is DDPSyncStrategy.SINGLE_AUTO_SYNC and is_last)
    return nullcontext() if now or not isinstance(module, DistributedDataParallel) else module.no_sync()


def average_gradients(parameters: list[nn.Parameter], group: torch_dist.ProcessGroup | None = None) -> None:
    """Average the gradients that any process has; others count as zero there.

    Args:
        parameters: The same on each process.
        group: The processes; all if None.

    >>> average_gradients([nn.Parameter(torch.ones(1))])
    """
    size = torch_dist.get_world_size(group) if dist.is_initialized() else 1
    if size == 1 or not parameters:
        return
    # On the host, by gloo: to read it waits for no device.
    has = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
    torch_dist.all_reduce(has, torch_dist.ReduceOp.MAX, group)
    gradients: list[Tensor] = []
    for parameter, needed in zip(parameters, has.tolist(), strict=True):
        if needed:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
    if not gradients:
        return
    for gradient in gradients:
        gradient.div_(size)
    under_way: deque[tuple[Any, Tensor, list[Tensor]]] = deque()
    for bucket in _in_buckets(gradients):
        # One call for many small gradients; a large one needs no copy.
        flat = bucket[0] if len(bucket) == 1 else torch.cat([gradient.flatten() for gradient in bucket])
        under_way.append((torch_dist.all_reduce(flat, group=group, async_op=True), flat, bucket))
        if len(under_way) > _UNDER_WAY:
            _take_back(*under_way.popleft())
    for sent in under_way:
        _take_back(*sent)


def _take_back(work: Any, flat: Tensor, bucket: list[Tensor]) -> None:
    """Wait for a sum, and put it into the gradients."""
    work.wait()
    if len(bucket) > 1:
        parts = flat.split([gradient.numel() for gradient in bucket])
        views = [part.view(gradient.shape) for part, gradient in zip(parts, bucket, strict=True)]
        torch._foreach_copy_(bucket, views)  # pyright: ignore[reportPrivateImportUsage]


def _in_buckets(gradients: list[Tensor]) -> list[list[Tensor]]:
    """The gradients in parts of one dtype and device, each not larger than a bucket if it has several."""
    buckets: list[list[Tensor]] = []
    filled, kind = 0, None
    for gradient in gradients:
        size = gradient.numel() * gradient.element_size()
        is_dense = gradient.layout == torch.strided
        if not is_dense or kind != (gradient.dtype, gradient.device) or filled + size > _BUCKET_BYTES:
            buckets.append([])
            filled, kind = 0, (gradient.dtype, gradient.device) if is_dense else None
        buckets[-1].append(gradient)
        filled += size
    return buckets
