"""Distributed data parallelism (DDP): each rank has a replica of the model and a data shard; gradients are averaged.

g = 1/W * sum_r g_r        Li et al. 2020, https://arxiv.org/abs/2006.15704
"""

from __future__ import annotations

import gc
import operator
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
from composer.parallel.added_parameters import AddedParameters
from composer.parallel.replicas import broadcast_model, make_replicas, requested_replica_size
from composer.parallel.strategy import Strategy
from composer.parallel.unfinished_collectives import BucketCounter

if TYPE_CHECKING:
    from composer.core.replicas import Replicas
    from composer.core.state import State

# The default bucket size of DistributedDataParallel.
_BUCKET_BYTES = 25 * 2**20
# Maximum number of buckets in flight, each with a copy of its gradients.
_MAX_IN_FLIGHT = 3
_IS_TRAINED = operator.attrgetter("requires_grad")

__all__ = ["DDPStrategy", "DDPSyncStrategy", "average_gradients", "ddp_sync_context", "prepare_ddp_module"]


class DDPSyncStrategy(StrEnum):
    """When gradients are averaged across ranks with gradient accumulation.

    - ``SINGLE_AUTO_SYNC``: during the backward pass of the last microbatch.
    - ``MULTI_AUTO_SYNC``: during the backward pass of every microbatch, for models in which some parameters get no
      gradient in some microbatches.
    - ``FORCED_SYNC``: after all backward passes, for all gradients that exist.

    >>> DDPSyncStrategy("single_auto_sync").name
    'SINGLE_AUTO_SYNC'
    """

    SINGLE_AUTO_SYNC = "single_auto_sync"
    MULTI_AUTO_SYNC = "multi_auto_sync"
    FORCED_SYNC = "forced_sync"


class DDPStrategy(Strategy):
    """Averages gradients with ``DistributedDataParallel``.

    If an algorithm synchronizes replicas itself (``Algorithm.replica_size``), gradients are averaged only among the
    ranks of each replica, and ``state.replicas`` is set. The model of a replica of one rank is not wrapped.

    Args:
        sync: When gradients are averaged. None is with every microbatch if parameters may be unused, else with the
            last.
        find_unused_parameters: Whether parameters may get no gradient in a step; also enabled by algorithms that need
            it.

    >>> DDPStrategy("forced_sync").sync
    <DDPSyncStrategy.FORCED_SYNC: 'forced_sync'>
    """

    name = "ddp"
    can_finish_collectives = True

    def __init__(self, sync: str | DDPSyncStrategy | None = None, *, find_unused_parameters: bool = False) -> None:
        self.sync = None if sync is None else DDPSyncStrategy(one_of("ddp_sync_strategy", sync, list(DDPSyncStrategy)))
        self.find_unused_parameters = find_unused_parameters
        self._state: State | None = None
        # Those of the model, and those among them that were frozen, when it was wrapped.
        self._parameters: list[nn.Parameter] = []
        self._frozen: list[nn.Parameter] = []
        self._added: AddedParameters | None = None
        self._find_unused = False
        self._replicas: Replicas | None = None
        self._buckets: BucketCounter | None = None

    def prepare(self, state: State) -> None:
        """Wrap the model; the weights are broadcast from rank 0.

        Args:
            state: The state of the run.

        Raises:
            ValueError: The size of the replicas that an algorithm requests does not divide the world size.
        """
        size = requested_replica_size(state.algorithms)
        if size is not None:
            state.replicas = self._replicas = make_replicas(size, state.device.torch_device.type)
            broadcast_model(state.model)  # as the wrapper does in its group, whose ranks are only those of a replica
        unused = self.find_unused_parameters or any(one.find_unused_parameters for one in state.algorithms)
        if self.sync is None:
            self.sync = DDPSyncStrategy.MULTI_AUTO_SYNC if unused else DDPSyncStrategy.SINGLE_AUTO_SYNC
        self.has_collectives_per_microbatch = self.sync is DDPSyncStrategy.MULTI_AUTO_SYNC
        self._find_unused = unused
        self._state, self._added = state, AddedParameters(state)
        self._wrap()

    def begin_batch(self) -> None:
        """Synchronize the buffers, which DDP would do in its next forward pass.

        There, a rank that fails before its forward pass would make the others hang. The model is wrapped again if there
        are parameters to train that were frozen, or not in an optimizer, when it was wrapped, since their gradients are
        not averaged; their values become those of rank 0. So it is if parameters that were trained are frozen.
        """
        if self._late() or self._has_newly_frozen():
            self._wrap_again()
        if self._buckets is not None:
            self._buckets.sent = 0
        if self.sync is not DDPSyncStrategy.MULTI_AUTO_SYNC:
            self._broadcast_buffers()

    def _late(self) -> list[nn.Parameter]:
        """Return the parameters that are trained but were not when the model was wrapped: unfrozen or added ones."""
        late = [one for one in self._frozen if one.requires_grad]
        if self._added is not None and (added := self._added.found()):
            known = {id(one) for one in self._parameters}
            late += [one for one in added if id(one) not in known and one.requires_grad]
        return late

    def _has_newly_frozen(self) -> bool:
        """Return whether the last forward pass met parameters that were frozen after the model was wrapped."""
        return isinstance(self.module, _FixedBuckets) and self.module.has_newly_frozen

    def _broadcast_buffers(self) -> None:
        """Broadcast the buffers of rank 0."""
        module: Any = self.module
        if module is not None and module.modules_buffers:
            module._sync_buffers()

    def accumulate(self, *, is_last: bool) -> AbstractContextManager[Any]:
        """Return the context for a microbatch, in which gradients are averaged or only accumulated.

        Args:
            is_last: Whether it is the last microbatch of its batch.
        """
        if self._buckets is not None:
            self._buckets.sent = 0
        if self.sync is DDPSyncStrategy.MULTI_AUTO_SYNC:
            self._broadcast_buffers()
        return _sync_context(self.module, is_last, self.sync)

    def record_collectives(self) -> None:
        """Count the gradient buckets that a backward pass all-reduces.

        If gradients are averaged with every microbatch, or parameters may be unused, this switches to averaging after
        the backward passes: the gradients are the same, and no rank can hang in a pass.
        """
        if self._buckets is not None:
            return
        if self.sync is DDPSyncStrategy.MULTI_AUTO_SYNC or self._find_unused:
            self.sync, self.has_collectives_per_microbatch = DDPSyncStrategy.FORCED_SYNC, False
        self._buckets = BucketCounter()
        self._count_buckets()

    def finish_collectives(self, microbatches: int) -> None:
        """All-reduce zeros in place of the remaining gradients.

        Args:
            microbatches: Number of microbatches of the batch that are not complete.
        """
        if self._has_newly_frozen():
            return  # gradients are averaged after the backward passes
        if self._buckets is not None and self.sync is DDPSyncStrategy.SINGLE_AUTO_SYNC and self.module is not None:
            # Only the backward pass of the last microbatch all-reduces gradients.
            self._buckets.reduce_remaining(self.module, after=self._buckets.sent if microbatches == 1 else 0)

    def discard_batch(self, state: State) -> None:
        """Wrap the model again, since a failed backward pass leaves the wrapper in the middle of a reduction.

        Args:
            state: The state of the run.
        """
        for optimizer in state.optimizers:
            optimizer.zero_grad()  # they are views of the buckets
        if self.module is not None and self.sync is DDPSyncStrategy.FORCED_SYNC:
            return  # the wrapper has not reduced anything
        self._wrap_again()

    def _wrap_again(self) -> None:
        if self.module is not None:
            # Remove them now, in case of another reference to the wrapper.
            cast("Any", self.module)._remove_autograd_hooks()
            self.module = None
            gc.collect()
        self._wrap()

    def _wrap(self) -> None:
        if self._state is None or self._added is None or (self._replicas is not None and self._replicas.size == 1):
            return
        self._parameters = list(self._state.model.parameters())
        self._frozen = [one for one in self._parameters if not one.requires_grad]
        self._added.note()
        group = None if self._replicas is None else self._replicas.group
        wrapped = prepare_ddp_module(self._state.model, self._find_unused, group)
        self.module = wrapped if isinstance(wrapped, DistributedDataParallel) else None
        if self.module is not None:
            release_at_exit(self.close)
            # begin_batch() broadcasts them instead; only at construction must the wrapper do so.
            cast("Any", self.module).broadcast_buffers = False
        self._count_buckets()

    def _count_buckets(self) -> None:
        if self._buckets is not None and self.module is not None:
            self._buckets.attach(self.module)

    def reduce(self) -> None:
        """Average the gradients that the wrapper has not averaged.

        All with ``FORCED_SYNC`` or newly frozen parameters; else those of parameters trained since the forward pass.
        """
        if self._replicas is not None and self._replicas.size == 1:
            return
        parameters = self._late()
        if self.sync is DDPSyncStrategy.FORCED_SYNC or self._has_newly_frozen():
            known = {id(one) for one in self._parameters}
            parameters = [*self._parameters, *(one for one in parameters if id(one) not in known)]
        average_gradients(parameters, None if self._replicas is None else self._replicas.group)

    def close(self) -> None:
        """Release the wrapper and its hooks."""
        self.module = self._state = self._added = None
        self._parameters, self._frozen = [], []


def prepare_ddp_module(
    module: nn.Module, find_unused_parameters: bool, group: torch_dist.ProcessGroup | None = None
) -> nn.Module:
    """Wrap a module in ``DistributedDataParallel``, unless it has no trainable parameters.

    Args:
        module: A module on its device, with the same layers on each rank.
        find_unused_parameters: Whether parameters may get no gradient in a step.
        group: The process group among whose ranks gradients are averaged; all ranks if None.

    Raises:
        RuntimeError: The process group is not initialized.

    >>> module = nn.Identity()
    >>> prepare_ddp_module(module, find_unused_parameters=False) is module
    True
    """
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return module
    if not dist.is_initialized():
        raise RuntimeError("The process group is not initialized; call composer.dist.initialize_dist() first.")
    # If parameters may be unused, DistributedDataParallel keeps its first buckets.
    wrapper = DistributedDataParallel if find_unused_parameters else _FixedBuckets
    # Gradients as views of the buckets need no second copy.
    return wrapper(
        module, process_group=group, find_unused_parameters=find_unused_parameters, gradient_as_bucket_view=True
    )


class _FixedBuckets(DistributedDataParallel):
    """Assigns gradients to the same buckets in each step, in the reverse order of the parameters.

    Its base class has a single bucket in the first step of a process, and then orders buckets by that step's backward
    pass. The order in which more than two ranks are summed depends on the place in a bucket, so that the first step
    after resuming would round otherwise than the same step of the uninterrupted run. It averages no gradients anymore
    once a parameter was frozen (``has_newly_frozen``), for whose gradient its base class would wait.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.has_newly_frozen = False
        self._trained = [one for one in self.module.parameters() if one.requires_grad]
        self.reducer._push_all_rebuilt_params()
        self.reducer._rebuild_buckets()

    def _pre_forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self.require_backward_grad_sync and not all(map(_IS_TRAINED, self._trained)):
            self.has_newly_frozen, self.require_backward_grad_sync = True, False
        try:
            return super()._pre_forward(*inputs, **kwargs)
        except RuntimeError as error:
            if "Expected to have finished reduction" in str(error):
                error.add_note(
                    "Some parameters got no gradient in the last step. If that is intended, pass "
                    "Trainer(find_unused_parameters=True)."
                )
            raise

    def _build_params_for_reducer(self) -> tuple[list[nn.Parameter], list[bool]]:
        """Return the parameters from last to first, as backward passes usually reach them, and which are sparse."""
        parameters, is_sparse = super()._build_params_for_reducer()
        return parameters[::-1], is_sparse[::-1]


def ddp_sync_context(
    state: State, is_final_microbatch: bool, sync_strategy: str | DDPSyncStrategy
) -> AbstractContextManager[Any]:
    """Return the context for the forward and backward pass of a microbatch, for custom training loops.

    Args:
        state: A state whose model was wrapped by :func:`prepare_ddp_module`; with others the context does nothing.
        is_final_microbatch: Whether it is the last microbatch of its batch.
        sync_strategy: When gradients are averaged. With ``FORCED_SYNC``, at the end of the context of the last
            microbatch.

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
    """A context that averages gradients on exit, unless it failed."""

    def __init__(self, inner: AbstractContextManager[Any], parameters: list[nn.Parameter]) -> None:
        self._inner, self._parameters = inner, parameters

    def __enter__(self) -> None:
        self._inner.__enter__()

    def __exit__(self, error_type: type[BaseException] | None, *error: Any) -> None:
        self._inner.__exit__(error_type, *error)
        if error_type is None:
            average_gradients(self._parameters)


def _sync_context(module: nn.Module | None, is_last: bool, sync: DDPSyncStrategy | None) -> AbstractContextManager[Any]:
    now = sync is DDPSyncStrategy.MULTI_AUTO_SYNC or (sync is DDPSyncStrategy.SINGLE_AUTO_SYNC and is_last)
    return nullcontext() if now or not isinstance(module, DistributedDataParallel) else module.no_sync()


def average_gradients(parameters: list[nn.Parameter], group: torch_dist.ProcessGroup | None = None) -> None:
    """All-reduce the mean of each gradient that exists on any rank; missing gradients count as zero.

    Args:
        parameters: The same parameters on each rank.
        group: The process group; all ranks if None.

    >>> average_gradients([nn.Parameter(torch.ones(1))])
    """
    size = torch_dist.get_world_size(group) if dist.is_initialized() else 1
    if size == 1 or not parameters:
        return
    # On the CPU, by gloo, to avoid a host-device sync.
    has_grad = torch.tensor([parameter.grad is not None for parameter in parameters], dtype=torch.uint8)
    torch_dist.all_reduce(has_grad, torch_dist.ReduceOp.MAX, group)
    gradients: list[Tensor] = []
    for parameter, needed in zip(parameters, has_grad.tolist(), strict=True):
        if needed:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
    if not gradients:
        return
    for gradient in gradients:
        gradient.div_(size)
    in_flight: deque[tuple[Any, Tensor, list[Tensor]]] = deque()
    for bucket in _in_buckets(gradients):
        # One all-reduce for many small gradients; a large one needs no copy.
        flat = bucket[0] if len(bucket) == 1 else torch.cat([gradient.flatten() for gradient in bucket])
        in_flight.append((torch_dist.all_reduce(flat, group=group, async_op=True), flat, bucket))
        if len(in_flight) > _MAX_IN_FLIGHT:
            _wait_and_copy_back(*in_flight.popleft())
    for pending in in_flight:
        _wait_and_copy_back(*pending)


def _wait_and_copy_back(work: Any, flat: Tensor, bucket: list[Tensor]) -> None:
    """Wait for an all-reduce, and copy its result into the gradients."""
    work.wait()
    if len(bucket) > 1:
        chunks = flat.split([gradient.numel() for gradient in bucket])
        views = [chunk.view(gradient.shape) for chunk, gradient in zip(chunks, bucket, strict=True)]
        torch._foreach_copy_(bucket, views)  # pyright: ignore[reportPrivateImportUsage]


def _in_buckets(gradients: list[Tensor]) -> list[list[Tensor]]:
    """Return the gradients in buckets of one dtype and device; only a bucket of one gradient may exceed the size."""
    buckets: list[list[Tensor]] = []
    filled, key = 0, None
    for gradient in gradients:
        size = gradient.numel() * gradient.element_size()
        is_dense = gradient.layout == torch.strided
        if not is_dense or key != (gradient.dtype, gradient.device) or filled + size > _BUCKET_BYTES:
            buckets.append([])
            filled, key = 0, (gradient.dtype, gradient.device) if is_dense else None
        buckets[-1].append(gradient)
        filled += size
    return buckets
