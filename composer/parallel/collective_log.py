"""Which collectives ``fully_shard`` starts in a pass, and starting the rest of them where a pass broke off."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

__all__ = ["CollectiveLog"]


class CollectiveLog:
    """Writes down each collective of a microbatch, by whether it is the last of its batch.

    Microbatches of a kind start the same ones in the same order, as they must in all processes. So what a process has
    left out is the end of the list of the microbatch of that kind before.

    Args:
        model: Divided by ``fully_shard``, without collectives of its own.

    >>> with CollectiveLog(nn.Linear(1, 1)).microbatch(is_last=True):
    ...     pass
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._lists: dict[bool, list[_Collective]] = {}
        self._trained: list[bool] = []
        self._now: list[_Collective] = []
        self._kind: bool | None = None
        for unit in (module for module in model.modules() if isinstance(module, FSDPModule)):
            unit.set_custom_all_gather(_Gather(self))  # pyright: ignore[reportArgumentType] - its base has no public name
            unit.set_custom_reduce_scatter(_Scatter(self))  # pyright: ignore[reportArgumentType]

    @contextlib.contextmanager
    def microbatch(self, *, is_last: bool) -> Generator[None]:
        """Record the collectives of a microbatch; the list is kept if the microbatch completes.

        Args:
            is_last: Whether it is the last of its batch.
        """
        self._now, self._kind = [], is_last
        yield
        if is_last:
            self._trained = self._which_are_trained()
        self._lists[is_last] = self._now
        self.abandon()  # of the next one nothing is done, also if it breaks off before it begins

    def start_rest(self, microbatches: int) -> None:
        """Start what the others expect in a microbatch that broke off and those after it, with zeros.

        Args:
            microbatches: Number of those that are not done.

        Raises:
            RuntimeError: What they expect is not known, since other weights are trained than in the batch before.
        """
        kinds = [number == microbatches - 1 for number in range(microbatches)]
        if self._trained != self._which_are_trained() or not all(kind in self._lists for kind in kinds):
            raise RuntimeError(
                "Out of memory in the first batch in which other weights are trained than before, with weights that "
                "are divided; the other processes cannot be told. Give device_train_microbatch_size a number."
            )
        done, self._kind = len(self._now), None
        rest = [collective for kind in kinds for collective in self._lists[kind]][done:]
        for collective in rest:
            collective.start()

    def abandon(self) -> None:
        """Discard the current list, such as that of an interrupted microbatch; completed lists stay."""
        self._now, self._kind = [], None

    def note(self, collective: _Collective) -> None:
        """Write one down, unless it is of an evaluation."""
        if self._kind is not None:
            self._now.append(collective)

    def _which_are_trained(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self._parameters]


class _Collective(NamedTuple):
    """One collective, without its tensors; a gathering where there is no operation."""

    sizes: tuple[int, int]
    dtype: torch.dtype
    device: torch.device
    group: torch_dist.ProcessGroup
    operation: Any

    def start(self) -> None:
        output, given = (torch.zeros(size, dtype=self.dtype, device=self.device) for size in self.sizes)
        if self.operation is None:
            torch_dist.all_gather_single(output, given, group=self.group)
        else:
            torch_dist.reduce_scatter_single(output, given, op=self.operation, group=self.group)


class _Communication:
    """What ``fully_shard`` calls to allocate the tensors of a collective, and to start it."""

    def __init__(self, log: CollectiveLog) -> None:
        self._log = log

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def _note(self, tensors: Iterable[Tensor], group: torch_dist.ProcessGroup, operation: Any = None) -> None:
        output, given = tensors
        sizes = output.numel(), given.numel()
        self._log.note(_Collective(sizes, output.dtype, output.device, group, operation))


class _Gather(_Communication):
    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: torch_dist.ProcessGroup, async_op: bool = False
    ) -> Any:
        self._note((output_tensor, input_tensor), group)
        return torch_dist.all_gather_single(output_tensor, input_tensor, group=group, async_op=async_op)


class _Scatter(_Communication):
    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: torch_dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        self._note((output_tensor, input_tensor), group, op)
        return torch_dist.reduce_scatter_single(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
