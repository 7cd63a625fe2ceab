"""Complete the collectives of a batch that one rank cannot finish, as after an OOM, so that other ranks do not hang.

:class:`BucketCounter` counts the gradient buckets that ``DistributedDataParallel`` all-reduces, and all-reduces zeros
for the rest. :class:`CollectiveLog` records the all-gathers and reduce-scatters of ``fully_shard``, and issues the
rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

__all__ = ["BucketCounter", "CollectiveLog"]


class BucketCounter:
    """Counts the gradient buckets that a ``DistributedDataParallel`` all-reduces.

    Attributes:
        sent: Number of buckets since it was last set to 0.

    >>> BucketCounter().sent
    0
    """

    def __init__(self) -> None:
        self.sent = 0

    def attach(self, module: Any) -> None:
        """Start counting, without a change of the averaged gradients.

        Args:
            module: A ``DistributedDataParallel`` without another communication hook.
        """
        # A lambda, since torch requires annotations to be classes or absent, and ours are strings.
        module.register_comm_hook(module.process_group, lambda group, bucket: self._send(group, bucket))  # noqa: PLW0108

    def reduce_remaining(self, module: nn.Module, *, after: int) -> None:
        """All-reduce zeros for the buckets that a full backward pass would have sent.

        Args:
            module: The ``DistributedDataParallel`` module.
            after: Number of buckets already sent.
        """
        reducer: Any = module.reducer
        # In bucket order; their memory is what the interrupted pass has left.
        works = [reducer._run_comm_hook(bucket) for bucket in reducer._get_zeros_like_grad_buckets()[after:]]
        for work in works:
            work.wait()

    def _send(self, group: torch_dist.ProcessGroup, bucket: Any) -> Any:
        self.sent += 1
        return allreduce_hook(group, bucket)


class CollectiveLog:
    """Records the collectives that ``fully_shard`` issues in each microbatch.

    All microbatches but the last of a batch issue the same collectives in the same order, and so do all last ones, as
    collectives require on all ranks. So the collectives that a rank did not issue are the tail of the list of the
    latest completed microbatch of the same type.

    Args:
        model: Sharded by ``fully_shard``, without custom collectives.

    >>> with CollectiveLog(nn.Linear(1, 1)).microbatch(is_last=True):
    ...     pass
    """

    def __init__(self, model: nn.Module) -> None:
        # Imported when used: data parallelism does not need it, and it takes as long to import as the rest of torch.
        from torch.distributed.fsdp import FSDPModule

        self._parameters = list(model.parameters())
        self._completed: dict[bool, list[_Collective]] = {}
        self._requires_grad: list[bool] = []
        self._current: list[_Collective] = []
        self._is_last: bool | None = None
        for unit in (module for module in model.modules() if isinstance(module, FSDPModule)):
            unit.set_custom_all_gather(_RecordedAllGather(self))  # pyright: ignore[reportArgumentType] - its base has no public name
            unit.set_custom_reduce_scatter(_RecordedReduceScatter(self))  # pyright: ignore[reportArgumentType]

    @contextlib.contextmanager
    def microbatch(self, *, is_last: bool) -> Generator[None]:
        """Record the collectives of a microbatch; the list is kept if the microbatch completes.

        Args:
            is_last: Whether it is the last microbatch of its batch.
        """
        self._current, self._is_last = [], is_last
        yield
        if is_last:
            self._requires_grad = self._trainable_flags()
        self._completed[is_last] = self._current
        self.abandon()  # the next microbatch has issued nothing, also if it fails before it begins

    def issue_remaining(self, microbatches: int) -> None:
        """Issue, with zeros, the remaining collectives of an interrupted microbatch and those of the ones after it.

        Args:
            microbatches: Number of microbatches that are not complete.

        Raises:
            RuntimeError: The collectives are unknown, since other parameters require gradients than in the last batch.
        """
        flags = [number == microbatches - 1 for number in range(microbatches)]
        if self._requires_grad != self._trainable_flags() or not all(is_last in self._completed for is_last in flags):
            raise RuntimeError(
                "Out of memory with sharded parameters, in the first batch after requires_grad of some parameters "
                "changed; the collectives that the other ranks wait for are unknown. Set device_train_microbatch_size "
                "to a number."
            )
        done, self._is_last = len(self._current), None
        remaining = [collective for is_last in flags for collective in self._completed[is_last]][done:]
        for collective in remaining:
            collective.start()

    def abandon(self) -> None:
        """Discard the current list, such as that of an interrupted microbatch; completed lists stay."""
        self._current, self._is_last = [], None

    def record(self, collective: _Collective) -> None:
        """Append a collective to the current list, unless it belongs to an evaluation."""
        if self._is_last is not None:
            self._current.append(collective)

    def _trainable_flags(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self._parameters]


class _Collective(NamedTuple):
    """A collective without its tensors; an all-gather if ``operation`` is None, else a reduce-scatter."""

    sizes: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    group: torch_dist.ProcessGroup
    operation: Any

    def start(self) -> None:
        output, local = (torch.zeros(size, dtype=self.dtype, device=self.device) for size in self.sizes)
        if self.operation is None:
            torch_dist.all_gather_single(output, local, group=self.group)
        else:
            torch_dist.reduce_scatter_single(output, local, op=self.operation, group=self.group)


class _RecordedCommunication:
    """The hooks that ``fully_shard`` calls to allocate the tensors of a collective and to issue it."""

    def __init__(self, log: CollectiveLog) -> None:
        self._log = log

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def _record(self, tensors: Iterable[Tensor], group: torch_dist.ProcessGroup, operation: Any = None) -> None:
        output, local = tensors
        sizes = output.numel(), local.numel()
        self._log.record(_Collective(sizes, output.dtype, output.device, group, operation))


class _RecordedAllGather(_RecordedCommunication):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: torch_dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        self._record((output_tensor, input_tensor), group)
        return torch_dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)


class _RecordedReduceScatter(_RecordedCommunication):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: torch_dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        self._record((output_tensor, input_tensor), group, op)
        return torch_dist.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
